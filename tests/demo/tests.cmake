# Label demo: trains for minutes. It needs the demo set (tools/demo_data) and runs last, alone.
contexture_test(demo/demo_test.cpp LINK core LABEL demo TIMEOUT 2400)
add_dependencies(demo_demo_test contexture)
set_tests_properties(demo_demo_test PROPERTIES RUN_SERIAL ON)
contexture_test(demo/joint_test.cpp LINK core LABEL demo TIMEOUT 2400)
add_dependencies(demo_joint_test contexture)
set_tests_properties(demo_joint_test PROPERTIES RUN_SERIAL ON)
