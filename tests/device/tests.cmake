# These need a GPU, and a build with CONTEXTURE_CUDA=ON; elsewhere they skip, visibly.
contexture_test(device/parity_test.cpp LINK model LABEL device)
