# Threads that spin while they wait make these tests crawl on a busy machine.
contexture_test(model/ops_test.cpp LINK model LABEL unit ENV OMP_WAIT_POLICY=passive)
contexture_test(model/ops_attention_test.cpp LINK model LABEL unit TIMEOUT 300 ENV OMP_WAIT_POLICY=passive)
contexture_test(model/objectives_test.cpp LINK model LABEL unit ENV OMP_NUM_THREADS=1)
contexture_test(model/golden_test.cpp LINK train model LABEL unit ENV OMP_NUM_THREADS=1)
contexture_test(model/blas_test.cpp LINK retriever data LABEL unit ENV OMP_WAIT_POLICY=passive)
target_link_libraries(model_blas_test PRIVATE ${CMAKE_DL_LIBS})
contexture_test(model/sentence_encoder_test.cpp LINK model LABEL unit ENV OMP_WAIT_POLICY=passive)
target_compile_definitions(model_sentence_encoder_test PRIVATE CONTEXTURE_MINILM="${cache_home}/contexture/minilm-0.1.0")
