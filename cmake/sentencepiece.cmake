# contexture::sentencepiece, kept apart from everything else in the process: Debian's shared library exports
# FLAGS_minloglevel as an object, LibTorch's libc10 as an int, and each would write over the other's memory.
# A static libsentencepiece.a is preferred, with its symbols hidden; otherwise the shared library is copied into the
# build folder with those symbols hidden (cmake/hide_symbols.cpp).
find_path(SENTENCEPIECE_INCLUDE sentencepiece_processor.h REQUIRED)
find_library(SENTENCEPIECE_LIBRARY NAMES libsentencepiece.a sentencepiece REQUIRED)
find_library(SENTENCEPIECE_TRAIN_LIBRARY NAMES libsentencepiece_train.a sentencepiece_train REQUIRED)

add_library(contexture_sentencepiece INTERFACE)
add_library(contexture::sentencepiece ALIAS contexture_sentencepiece)
target_include_directories(contexture_sentencepiece SYSTEM INTERFACE ${SENTENCEPIECE_INCLUDE})
if(SENTENCEPIECE_LIBRARY MATCHES "\\.a$")
  target_link_options(contexture_sentencepiece INTERFACE
    -Wl,--exclude-libs,libsentencepiece.a:libsentencepiece_train.a)
  target_link_libraries(contexture_sentencepiece INTERFACE
    ${SENTENCEPIECE_TRAIN_LIBRARY} ${SENTENCEPIECE_LIBRARY} Threads::Threads)
else()
  set(isolated_dir ${CMAKE_BINARY_DIR}/lib)
  set(isolated ${isolated_dir}/libsentencepiece.so.0)
  file(REAL_PATH ${SENTENCEPIECE_LIBRARY} original)
  if(NOT EXISTS ${isolated} OR ${original} IS_NEWER_THAN ${isolated}
     OR ${CMAKE_CURRENT_LIST_DIR}/hide_symbols.cpp IS_NEWER_THAN ${isolated})
    file(MAKE_DIRECTORY ${isolated_dir})
    try_compile(hide_symbols_built ${CMAKE_BINARY_DIR}/hide_symbols ${CMAKE_CURRENT_LIST_DIR}/hide_symbols.cpp
                CXX_STANDARD 20 OUTPUT_VARIABLE log COPY_FILE ${CMAKE_BINARY_DIR}/hide_symbols/run)
    if(NOT hide_symbols_built)
      message(FATAL_ERROR "cmake/hide_symbols.cpp doesn't compile: ${log}")
    endif()
    execute_process(COMMAND ${CMAKE_BINARY_DIR}/hide_symbols/run ${original} ${isolated}
                            FLAGS_minloglevel FLAGS_help FLAGS_version
                    RESULT_VARIABLE failed OUTPUT_VARIABLE log ERROR_VARIABLE log)
    if(failed)
      message(FATAL_ERROR "Can't isolate ${original}: ${log}. Install a static libsentencepiece.a instead.")
    endif()
  endif()
  target_link_libraries(contexture_sentencepiece INTERFACE ${isolated} ${SENTENCEPIECE_TRAIN_LIBRARY})
  target_link_options(contexture_sentencepiece INTERFACE -Wl,-rpath,${isolated_dir})
endif()
