#include "parallel/gather.h"

#include <algorithm>
#include <cstring>

namespace contexture::parallel {

at::Tensor gather_rows(Communicator* group, const at::Tensor& mine) {
  if (group == nullptr) return mine;
  const int n = group->size();
  const at::Tensor counts = at::zeros({n}, at::kLong);
  group->all_gather(counts, at::full({1}, mine.size(0), at::kLong)).wait();
  const int64_t most = counts.max().item<int64_t>(),
                width = mine.numel() / std::max<int64_t>(1, mine.size(0));
  const at::Tensor widths = at::full({1}, mine.size(0) > 0 ? width : 0, at::kLong);
  group->all_reduce(widths, ReduceOp::kMax).wait();
  const int64_t row = widths.item<int64_t>();
  const at::Tensor padded = at::zeros({most, row}, mine.options()),
                   all = at::empty({n, most, row}, mine.options());
  padded.narrow(0, 0, mine.size(0)).copy_(mine.reshape({mine.size(0), row}));
  if (most > 0 && row > 0) group->all_gather(all.view(-1), padded.view(-1)).wait();
  std::vector<at::Tensor> parts;
  for (int r = 0; r < n; ++r) parts.push_back(all[r].narrow(0, 0, counts[r].item<int64_t>()));
  return at::cat(parts);
}

std::vector<std::string> gather_texts(Communicator* group, const std::string& mine) {
  if (group == nullptr) return {mine};
  const int64_t n = group->size();
  const at::Tensor lengths = at::zeros({n}, at::kLong);
  group->all_gather(lengths, at::full({1}, static_cast<int64_t>(mine.size()), at::kLong)).wait();
  const int64_t most = lengths.max().item<int64_t>();
  const at::Tensor padded = at::zeros({most}, at::kByte), all = at::empty({n * most}, at::kByte);
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  group->all_gather(all, padded).wait();
  std::vector<std::string> out;
  for (int64_t r = 0; r < n; ++r) {
    out.emplace_back(static_cast<const char*>(all.data_ptr()) + r * most,
                     static_cast<size_t>(lengths[r].item<int64_t>()));
  }
  return out;
}

}  // namespace contexture::parallel
