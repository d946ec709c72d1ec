contexture_test(parallel/communicator_test.cpp LINK parallel TIMEOUT 300)
