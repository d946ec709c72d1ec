foreach(name schedule schedule_check schedule_list token_slices)
  contexture_test(parallel/${name}_test.cpp LINK parallel core LABEL unit)
  target_include_directories(parallel_${name}_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/core)  # expect_error.h
endforeach()
contexture_test(parallel/communicator_test.cpp LINK parallel TIMEOUT 600)
contexture_test(parallel/pipeline_test.cpp LINK parallel core)
contexture_test(parallel/decoding_test.cpp LINK parallel)
contexture_test(parallel/prediction_test.cpp LINK parallel core TIMEOUT 300)
contexture_test(parallel/slicer_test.cpp LINK parallel core)
contexture_test(parallel/mesh_test.cpp LINK parallel)
contexture_test(parallel/row_pieces_test.cpp LINK parallel)
contexture_test(parallel/device_test.cpp LINK parallel)
contexture_test(parallel/launch_env_test.cpp LINK parallel)
# Planning: no tensors.
foreach(name trace partition planner planner_choices planner_golden chain_planners cost_model cluster)
  contexture_test(parallel/${name}_test.cpp LINK parallel LABEL unit)
  target_include_directories(parallel_${name}_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/core)  # expect_error.h
endforeach()
