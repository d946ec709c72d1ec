foreach(name cli scores run resume)
  contexture_test(cli/${name}_test.cpp LINK core LABEL cli TIMEOUT 600 BINARY)
  target_sources(cli_${name}_test PRIVATE ${CMAKE_CURRENT_LIST_DIR}/program.cpp)
endforeach()
