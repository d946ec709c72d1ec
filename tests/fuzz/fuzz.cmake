# libFuzzer programs, built with -DCONTEXTURE_FUZZ=ON and clang:
#   cmake --preset fuzz && cmake --build --preset fuzz && ctest --preset fuzz
# contexture_fuzz(name LINK layers [SEEDS folder or files]): tests/fuzz/<name>_fuzz.cpp, run for CONTEXTURE_FUZZ_SECONDS.
set(CONTEXTURE_FUZZ_SECONDS 180 CACHE STRING "How long ctest runs each fuzz target")
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "CONTEXTURE_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++-14")
endif()

add_custom_target(fuzz_targets)
set(contexture_fuzz_folder ${CMAKE_CURRENT_LIST_DIR})
function(contexture_fuzz name)
  cmake_parse_arguments(A "" "" "LINK;SEEDS" ${ARGN})
  set(target ${name}_fuzz)
  add_executable(${target} ${contexture_fuzz_folder}/${target}.cpp)
  target_link_libraries(${target} PRIVATE ${A_LINK} contexture_flags)
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz_targets ${target})
  # Seeds are copied, since libFuzzer writes what it finds into its first folder.
  set(corpus ${CMAKE_BINARY_DIR}/fuzz/${name})
  file(MAKE_DIRECTORY ${corpus})
  foreach(seed ${A_SEEDS})
    file(COPY ${seed} DESTINATION ${corpus})
  endforeach()
  math(EXPR limit "${CONTEXTURE_FUZZ_SECONDS} + 120")
  add_test(NAME ${target} COMMAND ${target} -max_total_time=${CONTEXTURE_FUZZ_SECONDS} -timeout=10
           -rss_limit_mb=2048 -print_final_stats=1 ${corpus} WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  set_tests_properties(${target} PROPERTIES LABELS fuzz TIMEOUT ${limit})
endfunction()

contexture_fuzz(safetensors LINK core SEEDS ${contexture_fuzz_folder}/../golden/reference.safetensors)
contexture_fuzz(config LINK core SEEDS ${contexture_fuzz_folder}/seeds/config.json)
if(TARGET data)
  set(seeds ${contexture_fuzz_folder}/seeds)
  contexture_fuzz(jsonl LINK data SEEDS ${seeds}/corpus.jsonl)
  file(GLOB foreign_seeds ${seeds}/foreign/*)
  contexture_fuzz(foreign LINK data SEEDS ${foreign_seeds})
  contexture_fuzz(tar LINK data SEEDS ${seeds}/shard.tar ${seeds}/shard.tar.gz)
  contexture_fuzz(image LINK data SEEDS ${seeds}/gray.png ${seeds}/color.jpg ${seeds}/color.bmp ${seeds}/color.tif
                  ${seeds}/color.webp)
endif()
if(TARGET retriever)
  contexture_fuzz(index_card LINK retriever SEEDS ${contexture_fuzz_folder}/seeds/index_card.bin)
endif()
