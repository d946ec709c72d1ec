# Benchmarks of parts, built on demand (ninja ops_bench); what users time is `contexture bench`.
add_executable(ops_bench EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/ops_bench.cpp)
target_link_libraries(ops_bench PRIVATE model contexture_flags)
contexture_torch_pch(ops_bench)
