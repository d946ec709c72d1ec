# Training quantisers is many short parallel loops: threads that spin at the end of each make them
# minutes on a busy machine.
contexture_test(retriever/corpus_test.cpp LINK retriever)
contexture_test(retriever/assembly_test.cpp LINK retriever LABEL unit)
contexture_test(retriever/index_test.cpp LINK retriever ENV OMP_WAIT_POLICY=passive)
contexture_test(retriever/index_factories_test.cpp LINK retriever TIMEOUT 300 ENV OMP_NUM_THREADS=1)
contexture_test(retriever/index_files_test.cpp LINK retriever ENV OMP_NUM_THREADS=1)
contexture_test(retriever/refresh_test.cpp LINK retriever LABEL unit)

contexture_test(retriever/sharded_index_test.cpp LINK retriever ENV OMP_NUM_THREADS=1)
contexture_test(retriever/rank_search_test.cpp LINK retriever ENV OMP_NUM_THREADS=1)
contexture_test(retriever/embedding_job_test.cpp LINK retriever ENV OMP_NUM_THREADS=1)
