# Third-party packages. Every one can be replaced by the user's own through CMAKE_PREFIX_PATH.
# LibTorch: CONTEXTURE_LIBTORCH names a folder with include/ and lib/ (the unpacked PyPI wheel's torch/,
# or the official LibTorch download); tools/setup.sh puts the wheel in the XDG cache.
if(DEFINED ENV{XDG_CACHE_HOME})
  set(cache_home $ENV{XDG_CACHE_HOME})
else()
  set(cache_home $ENV{HOME}/.cache)
endif()
set(CONTEXTURE_LIBTORCH "${cache_home}/contexture/libtorch-2.11.0/torch" CACHE PATH
    "LibTorch: a folder with include/ and lib/")
if(NOT EXISTS ${CONTEXTURE_LIBTORCH}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "No LibTorch at CONTEXTURE_LIBTORCH=${CONTEXTURE_LIBTORCH} (lib/libtorch_cpu.so is missing). "
    "Run tools/setup.sh, or pass -DCONTEXTURE_LIBTORCH=/path/to/libtorch.")
endif()
add_library(contexture_torch INTERFACE)
add_library(contexture::torch ALIAS contexture_torch)
target_include_directories(contexture_torch SYSTEM INTERFACE ${CONTEXTURE_LIBTORCH}/include
                           ${CONTEXTURE_LIBTORCH}/include/torch/csrc/api/include)
target_link_libraries(contexture_torch INTERFACE ${CONTEXTURE_LIBTORCH}/lib/libtorch_cpu.so
                      ${CONTEXTURE_LIBTORCH}/lib/libc10.so)
# The OpenMP runtime that LibTorch brings is the process's only one.
file(GLOB torch_openmp ${CONTEXTURE_LIBTORCH}/lib/libgomp*.so*)
target_link_libraries(contexture_torch INTERFACE ${torch_openmp})
# libtorch_cpu.so itself needs libcudart and libcupti; its own RPATH finds them, the linker need not.
# torch_cpu comes first among the needed libraries: FAISS and LibTorch must find its MKL, not the reference BLAS that
# LAPACK brings, which is many times slower (tests/model/blas_test.cpp).
set(torch_needed ${CONTEXTURE_LIBTORCH}/lib/libtorch_cpu.so)
if(CONTEXTURE_CUDA)
  # at::Device("cuda") works once libtorch_cuda is loaded: nothing names its symbols, so the linker is told to keep it.
  find_package(CUDAToolkit REQUIRED)
  find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CONTEXTURE_LIBTORCH}/../nvidia/nccl/include REQUIRED)
  target_include_directories(contexture_torch SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_INCLUDE})
  target_compile_definitions(contexture_torch INTERFACE CONTEXTURE_CUDA=1)
  list(APPEND torch_needed ${CONTEXTURE_LIBTORCH}/lib/libc10_cuda.so ${CONTEXTURE_LIBTORCH}/lib/libtorch_cuda.so)
endif()
list(JOIN torch_needed "," torch_needed)
target_link_options(contexture_torch INTERFACE "LINKER:--push-state,--no-as-needed,${torch_needed},--pop-state"
                    -Wl,--unresolved-symbols=ignore-in-shared-libs
                    -Wl,-rpath,${CONTEXTURE_LIBTORCH}/lib -Wl,--disable-new-dtags)

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(LibArchive REQUIRED)
# Debian's OpenCV config comes only with the whole libopencv-dev; the three libraries we use do without.
find_path(OPENCV_INCLUDE opencv2/imgcodecs.hpp PATH_SUFFIXES opencv4 REQUIRED)
add_library(contexture_opencv INTERFACE)
add_library(contexture::opencv ALIAS contexture_opencv)
target_include_directories(contexture_opencv SYSTEM INTERFACE ${OPENCV_INCLUDE})
foreach(part imgcodecs imgproc core)
  find_library(OPENCV_${part} opencv_${part} REQUIRED)
  target_link_libraries(contexture_opencv INTERFACE ${OPENCV_${part}})
endforeach()
find_package(ICU REQUIRED COMPONENTS uc i18n)
find_package(GTest REQUIRED)
find_path(FAISS_INCLUDE faiss/Index.h REQUIRED)
# Debian's library is for any x86-64; tools/fast_faiss.sh builds the same release for AVX2. A program to hand on takes the
# former.
if(CONTEXTURE_NATIVE)
  find_library(FAISS_LIBRARY faiss_avx2 PATHS ${cache_home}/contexture/faiss-avx2/lib NO_DEFAULT_PATH)
endif()
find_library(FAISS_LIBRARY faiss REQUIRED)
find_library(LAPACK_LIBRARY lapack REQUIRED)
find_library(BLAS_LIBRARY blas REQUIRED)

include(${CMAKE_CURRENT_LIST_DIR}/sentencepiece.cmake)

# FAISS is static and wants a BLAS: torch_cpu's MKL must come right after it, and a LAPACK and its BLAS last for
# the few routines that torch_cpu lacks (behind the reference BLAS, FAISS is many times slower).
add_library(contexture_faiss INTERFACE)
add_library(contexture::faiss ALIAS contexture_faiss)
target_include_directories(contexture_faiss SYSTEM INTERFACE ${FAISS_INCLUDE})
target_link_libraries(contexture_faiss INTERFACE ${FAISS_LIBRARY} contexture::torch ${LAPACK_LIBRARY} ${BLAS_LIBRARY})
