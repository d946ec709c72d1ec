# The shadow device (shadow_device.h) stands in for a GPU on every machine. The tests that need a real one, and a build with
# CONTEXTURE_CUDA=ON, skip elsewhere, visibly.
add_library(shadow_device OBJECT device/shadow_device.cpp device/shadow_memory.cpp)
target_link_libraries(shadow_device PUBLIC contexture::torch contexture_flags)
contexture_torch_pch(shadow_device)
foreach(name shadow_device parity train streams memory nccl search)
  contexture_test(device/${name}_test.cpp LINK train LABEL device TIMEOUT 300 ENV OMP_WAIT_POLICY=passive)
  target_link_libraries(device_${name}_test PRIVATE shadow_device)
  target_include_directories(device_${name}_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})  # train/tiny_world.h
endforeach()
