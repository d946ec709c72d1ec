# A folder is a layer: one static library with an include root of its own, so that an #include of a
# folder that is not a declared dependency does not compile (docs/design.md 8).
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # ccache refuses precompiled headers unless told that their macros and times may differ. Paths below the source tree
  # count as relative, so that another clone of it finds what this one compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${CCACHE_PROGRAM})
endif()

add_library(contexture_flags INTERFACE)
target_compile_options(contexture_flags INTERFACE -Wall -Wextra -Wno-unknown-pragmas
                       $<$<BOOL:${CONTEXTURE_WERROR}>:-Werror>)
if(CONTEXTURE_SANITIZE)
  target_compile_options(contexture_flags INTERFACE -fsanitize=${CONTEXTURE_SANITIZE} -fno-sanitize-recover=all
                         -fno-omit-frame-pointer -g)
  target_link_options(contexture_flags INTERFACE -fsanitize=${CONTEXTURE_SANITIZE})
endif()
if(CONTEXTURE_FUZZ)
  target_compile_options(contexture_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# layer(name SOURCES ... [DEPENDS layers] [PUBLIC libraries] [SYSTEM private libraries] [KERNELS sources])
# KERNELS are sources compiled for this processor (CONTEXTURE_NATIVE) with vectorisation on.
function(layer name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPENDS;PUBLIC;SYSTEM;KERNELS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES} ${A_KERNELS})
  set(root ${CMAKE_BINARY_DIR}/include_roots/${name})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${root}/${name} SYMBOLIC)
  target_include_directories(${name} PUBLIC ${root})
  target_link_libraries(${name} PUBLIC ${A_DEPENDS} ${A_PUBLIC} contexture_flags PRIVATE ${A_SYSTEM})
  if(A_KERNELS AND CONTEXTURE_NATIVE)
    set_source_files_properties(${A_KERNELS} PROPERTIES
      COMPILE_OPTIONS "-O3;-march=native;-fno-math-errno;-fno-trapping-math" SKIP_PRECOMPILE_HEADERS ON)
  endif()
  if("contexture::torch" IN_LIST A_PUBLIC OR NOT "${A_DEPENDS}" MATCHES "^(core|data|core;data)?$")
    contexture_torch_pch(${name})
  endif()
  check_listed(${CMAKE_CURRENT_SOURCE_DIR} ${A_SOURCES} ${A_KERNELS})
  headers_alone(${name})
endfunction()

# Every header of a layer compiled by itself, so that each includes what it needs. (Layers above data/ share the
# precompiled LibTorch header, which hides a missing LibTorch include, but no missing include of ours.) Built by the
# target contexture_headers only, which ctest runs.
function(headers_alone name)
  file(GLOB headers RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *.h)
  foreach(header ${headers})
    set(source ${CMAKE_BINARY_DIR}/headers/${name}/${header}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${name}/${header}\"\n" @ONLY)
    list(APPEND sources ${source})
  endforeach()
  add_library(${name}_headers OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(${name}_headers PRIVATE ${name})
  get_target_property(pch ${name} PRECOMPILE_HEADERS_REUSE_FROM)
  if(pch)
    target_precompile_headers(${name}_headers REUSE_FROM ${pch})
  endif()
  if(NOT TARGET contexture_headers)
    add_custom_target(contexture_headers)
  endif()
  add_dependencies(contexture_headers ${name}_headers)
endfunction()

# One precompiled LibTorch header for all targets: torch headers cost 20 s a file without it.
function(contexture_torch_pch name)
  if(NOT TARGET contexture_pch)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/pch.cpp CONTENT "\n")
    add_library(contexture_pch STATIC ${CMAKE_BINARY_DIR}/pch.cpp)
    target_link_libraries(contexture_pch PUBLIC contexture::torch contexture_flags)
    # Without times, so that one from ccache is as good as a new one.
    target_compile_options(contexture_pch PRIVATE "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
    target_precompile_headers(contexture_pch PRIVATE <ATen/ATen.h> <torch/csrc/autograd/custom_function.h>)
  endif()
  target_precompile_headers(${name} REUSE_FROM contexture_pch)
endfunction()

# Fails the configure step when a source on disk is not listed.
function(check_listed dir)
  file(GLOB_RECURSE on_disk RELATIVE ${dir} CONFIGURE_DEPENDS ${dir}/*.cpp)
  foreach(source ${on_disk})
    if(NOT source IN_LIST ARGN)
      message(FATAL_ERROR "${dir}/${source} is on disk but not listed in its CMakeLists.txt")
    endif()
  endforeach()
endfunction()

# contexture_test(folder/file_test.cpp LINK layers [LABEL label] [TIMEOUT s] [ENV k=v ...]) : one test program.
# Labels: unit, browser, cli, device, demo (minutes of training), fuzz, style. A test that runs the program itself,
# CONTEXTURE_BINARY, also says add_dependencies(<its target> contexture).
function(contexture_test source)
  cmake_parse_arguments(A "" "LABEL;TIMEOUT" "LINK;ENV" ${ARGN})
  string(REGEX REPLACE "[/.]" "_" target ${source})
  string(REGEX REPLACE "_cpp$" "" target ${target})
  if(NOT A_LABEL)
    set(A_LABEL unit)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  add_executable(${target} ${source})
  target_link_libraries(${target} PRIVATE ${A_LINK} contexture_flags GTest::gtest GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE
    CONTEXTURE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" CONTEXTURE_BINARY="${CMAKE_BINARY_DIR}/bin/contexture")
  set(above_data ${A_LINK})
  list(REMOVE_ITEM above_data core data)
  if(above_data)
    contexture_torch_pch(${target})
  endif()
  if(CONTEXTURE_TEST_PYTHON)
    list(APPEND A_ENV "CONTEXTURE_TEST_PYTHON=${CONTEXTURE_TEST_PYTHON}")
  endif()
  add_test(NAME ${target} COMMAND ${target})
  set_tests_properties(${target} PROPERTIES LABELS "${A_LABEL}" TIMEOUT ${A_TIMEOUT} ENVIRONMENT "${A_ENV}")
  set_property(GLOBAL APPEND PROPERTY CONTEXTURE_TEST_SOURCES ${source})
endfunction()
