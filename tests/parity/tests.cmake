foreach(name parity reshard sharded_index refresh_ranks memory cases traffic assembly loss_scale evaluation offload memory_prediction start_from)
  contexture_test(parity/${name}_test.cpp LINK train LABEL parity TIMEOUT 900)
  target_include_directories(parity_${name}_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})  # train/tiny_world.h
endforeach()
# The same test program over a sample of the whole grid of layouts: minutes.
add_test(NAME parity_grid COMMAND parity_parity_test --gtest_filter=ParityGrid.*)
set_tests_properties(parity_grid PROPERTIES LABELS grid TIMEOUT 1800 ENVIRONMENT "CONTEXTURE_PARITY_CELLS=400")
