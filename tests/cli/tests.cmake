foreach(name cli index scores run eval_run resume launch parallel plan faults)
  contexture_test(cli/${name}_test.cpp LINK core LABEL cli TIMEOUT 900)
  add_dependencies(cli_${name}_test contexture)
  target_sources(cli_${name}_test PRIVATE ${CMAKE_CURRENT_LIST_DIR}/program.cpp)
endforeach()
# The plan's page is loaded in a browser, too.
target_sources(cli_plan_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/eval/chromium.cpp)
target_include_directories(cli_plan_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/eval)
