contexture_test(parallel/communicator_test.cpp LINK parallel TIMEOUT 300)
contexture_test(parallel/mesh_test.cpp LINK parallel)
