contexture_test(parallel/communicator_test.cpp LINK parallel TIMEOUT 600)
contexture_test(parallel/mesh_test.cpp LINK parallel)
contexture_test(parallel/launch_env_test.cpp LINK parallel)
