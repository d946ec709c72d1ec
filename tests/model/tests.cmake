# Threads that spin while they wait make these tests crawl on a busy machine.
contexture_test(model/ops_test.cpp LINK model LABEL unit ENV OMP_WAIT_POLICY=passive)
contexture_test(model/ops_attention_test.cpp LINK model LABEL unit TIMEOUT 300 ENV OMP_WAIT_POLICY=passive)
contexture_test(model/golden_test.cpp LINK train model LABEL unit)
