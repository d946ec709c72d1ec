contexture_test(parity/parity_test.cpp LINK train LABEL parity TIMEOUT 900)
# The same test program over a sample of the whole grid of layouts: minutes.
add_test(NAME parity_grid COMMAND parity_parity_test --gtest_filter=ParityGrid.*)
set_tests_properties(parity_grid PROPERTIES LABELS grid TIMEOUT 1800 ENVIRONMENT "CONTEXTURE_PARITY_CELLS=400")
contexture_test(parity/reshard_test.cpp LINK train LABEL parity TIMEOUT 900)
