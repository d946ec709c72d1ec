# Small loops on two threads: threads that spin at the end of each make seconds minutes on a busy machine.
foreach(name step published_encoder objectives refresh masked_spans generate trainer utility loss_scale model_trace planning cuts distinct)
  contexture_test(train/${name}_test.cpp LINK train TIMEOUT 300 ENV OMP_WAIT_POLICY=passive)
  target_include_directories(train_${name}_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/train)
endforeach()
target_include_directories(train_cuts_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/core)  # expect_error.h
