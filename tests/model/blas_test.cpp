// FAISS, OpenCV and LibTorch in one process must share LibTorch's matrix products and its thread
// pool. A LAPACK brings a reference BLAS with the same symbols; once it came first among the needed
// libraries, and everything that multiplies matrices was 50 times slower, with the right results.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <set>
#include <span>
#include <string>
#include <vector>

#include "data/image.h"
#include "retriever/index.h"

namespace contexture {
namespace {

std::string file_that_defines(const char* symbol) {
  Dl_info info{};
  void* address = dlsym(RTLD_DEFAULT, symbol);
  if (address == nullptr || dladdr(address, &info) == 0) return "nothing";
  return info.dli_fname;
}

// Uses FAISS and OpenCV, so that the linker keeps them and what they need.
void use_everything() {
  std::vector<float> vectors;
  std::vector<std::string> ids;
  for (int i = 0; i < 256; ++i) {
    ids.push_back(std::to_string(i));
    for (int j = 0; j < 4; ++j) vectors.push_back(static_cast<float>((i * (j + 3)) % 17 + 1));
  }
  retriever::IndexOptions options;
  options.factory = "IVF4,Flat";
  const auto index = retriever::Index::build(options, 4, ids, vectors);
  EXPECT_EQ(index.search(std::span(vectors).first(4), 3).at(0).size(), 3u);
  EXPECT_EQ(data::resize(data::Image{2, 2, std::vector<uint8_t>(12)}, 1, 1).rgb.size(), 3u);
}

TEST(Blas, MatrixProductsAreThoseOfLibTorch) {
  use_everything();
  for (const char* symbol : {"sgemm_", "dgemm_", "sgemv_"}) {
    EXPECT_NE(file_that_defines(symbol).find("libtorch_cpu"), std::string::npos)
        << symbol << " comes from " << file_that_defines(symbol);
  }
}

TEST(Blas, OneOpenMpRuntimeIsLoaded) {
  use_everything();
  std::set<std::string> runtimes;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const std::string file = info->dlpi_name;
        const std::string name = file.substr(file.rfind('/') + 1);
        for (const char* prefix : {"libgomp", "libiomp", "libomp."}) {
          if (name.rfind(prefix, 0) == 0) static_cast<std::set<std::string>*>(out)->insert(file);
        }
        return 0;
      },
      &runtimes);
  EXPECT_EQ(runtimes.size(), 1u) << testing::PrintToString(runtimes);
}

}  // namespace
}  // namespace contexture
