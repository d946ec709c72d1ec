# Planning: no tensors.
foreach(name trace partition planner_golden chain_planners cost_model cluster)
  contexture_test(parallel/${name}_test.cpp LINK parallel LABEL unit)
  target_include_directories(parallel_${name}_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/core)  # expect_error.h
endforeach()
