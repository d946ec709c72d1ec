# Benchmarks of parts, built on demand (ninja ops_bench); what users time is `contexture bench`.
add_executable(ops_bench EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/ops_bench.cpp)
target_link_libraries(ops_bench PRIVATE model contexture_flags)
contexture_torch_pch(ops_bench)
# What token slices gain.
add_executable(slices_bench EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/slices_bench.cpp)
target_link_libraries(slices_bench PRIVATE model contexture_flags)
target_include_directories(slices_bench PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/parallel)  # sliced_sleepers.h
contexture_torch_pch(slices_bench)
# A rank of the experiments in tests/bench/network.
add_executable(layout_bench ${CMAKE_CURRENT_LIST_DIR}/network/layout_bench.cpp)
target_link_libraries(layout_bench PRIVATE model contexture_flags)
contexture_torch_pch(layout_bench)
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  add_test(NAME network_bytes COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/network/bytes.py --bench $<TARGET_FILE:layout_bench>)
  set_tests_properties(network_bytes PROPERTIES LABELS network SKIP_RETURN_CODE 77 TIMEOUT 300)
endif()
