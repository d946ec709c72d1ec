#include "parallel/internal/downsets.h"

#include <unordered_map>

#include "core/error.h"

namespace contexture::parallel {
namespace {

struct SetHash {
  size_t operator()(const std::vector<uint64_t>& words) const {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (const uint64_t word : words)
      hash = (hash ^ word) * 0xff51afd7ed558ccdu, hash ^= hash >> 32;
    return hash;
  }
};

}  // namespace

std::vector<uint64_t> bits_of(const std::vector<int>& blocks, int num_words) {
  std::vector<uint64_t> words(num_words, 0);
  for (const int block : blocks) words[block / 64] |= uint64_t{1} << (block % 64);
  return words;
}

Downsets::Downsets(const CutGraph& graph, int max_downsets) {
  const int n = static_cast<int>(graph.blocks.size());
  num_words_ = n / 64 + 1;
  std::vector<std::vector<uint64_t>> before;
  for (const CutBlock& block : graph.blocks) before.push_back(bits_of(block.before, num_words_));
  // Breadth first: a downset comes after all its subsets, and the whole comes last.
  std::unordered_map<std::vector<uint64_t>, int, SetHash> index;
  std::vector<uint64_t> set(num_words_, 0);
  index.emplace(set, 0);
  words_ = set;
  num_blocks_ = {0};
  for (int i = 0; i < static_cast<int>(num_blocks_.size()); ++i) {
    first_step_.push_back(static_cast<int>(steps_.size()));
    for (int b = 0; b < n; ++b) {
      if (contains(i, b) || !contains_all(i, before[b])) continue;
      set.assign(bits(i).begin(), bits(i).end());
      set[b / 64] |= uint64_t{1} << (b % 64);
      const auto [found, inserted] = index.emplace(set, static_cast<int>(num_blocks_.size()));
      if (inserted) {
        if (static_cast<int>(num_blocks_.size()) == max_downsets) {
          complete_ = false;
          first_step_.push_back(static_cast<int>(steps_.size()));
          return;
        }
        words_.insert(words_.end(), set.begin(), set.end());
        num_blocks_.push_back(num_blocks_[i] + 1);
      }
      steps_.push_back({b, found->second});
    }
  }
  first_step_.push_back(static_cast<int>(steps_.size()));
}

Downsets Downsets::prefixes(const CutGraph& graph) {
  const int n = static_cast<int>(graph.blocks.size());
  Downsets chain;
  chain.num_words_ = n / 64 + 1;
  std::vector<uint64_t> set(chain.num_words_, 0);
  for (int i = 0; i <= n; ++i) {
    chain.words_.insert(chain.words_.end(), set.begin(), set.end());
    chain.num_blocks_.push_back(i);
    chain.first_step_.push_back(i);
    if (i < n) chain.steps_.push_back({i, i + 1}), set[i / 64] |= uint64_t{1} << (i % 64);
  }
  chain.first_step_.push_back(n);
  return chain;
}

bool Downsets::contains_all(int downset, std::span<const uint64_t> set) const {
  const auto own = bits(downset);
  for (int w = 0; w < num_words_; ++w) {
    if (set[w] & ~own[w]) return false;
  }
  return true;
}

bool Downsets::contains_any(int downset, std::span<const uint64_t> set) const {
  const auto own = bits(downset);
  for (int w = 0; w < num_words_; ++w) {
    if (set[w] & own[w]) return true;
  }
  return false;
}

}  // namespace contexture::parallel
