foreach(name step objectives refresh generate trainer loss_scale model_trace planning)
  contexture_test(train/${name}_test.cpp LINK train)
  target_include_directories(train_${name}_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/train)
endforeach()
