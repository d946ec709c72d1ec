#include "parallel/row_pieces.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "core/error.h"

namespace contexture::parallel {
namespace {

// "vectors@120" is {"vectors", 120}.
std::optional<std::pair<std::string, int64_t>> parse_piece(const std::string& name) {
  const size_t at = name.rfind('@');
  if (at == std::string::npos || at + 1 == name.size()) return std::nullopt;
  int64_t first = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + at + 1, end, first);
  if (error != std::errc() || stop != end || first < 0) return std::nullopt;
  return std::pair(name.substr(0, at), first);
}

}  // namespace

RowPieces::RowPieces(at::Tensor whole) { by_first_row_[0] = std::move(whole); }

RowPieces::RowPieces(int64_t first_row, at::Tensor piece) : cut_(true) {
  by_first_row_[first_row] = std::move(piece);
}

RowPieces RowPieces::find(const NamedTensors& tensors, const std::string& name) {
  if (const auto whole = tensors.find(name); whole != tensors.end())
    return RowPieces(whole->second);
  RowPieces out;
  for (const auto& [key, tensor] : tensors) {
    const auto piece = parse_piece(key);
    if (!piece || piece->first != name) continue;
    out.cut_ = true;
    out.by_first_row_[piece->second] = tensor;
  }
  int64_t next = 0;
  for (const auto& [first, tensor] : out.by_first_row_) {
    CONTEXTURE_DATA_REQUIRE(first == next && tensor.dim() == 2, "The pieces of '", name,
                            "' do not fit together: one begins at row ", first, ", where row ",
                            next, " should follow. Use another checkpoint.");
    next += tensor.size(0);
  }
  return out;
}

int64_t RowPieces::rows() const {
  int64_t rows = 0;
  for (const auto& [first, tensor] : by_first_row_) rows += tensor.size(0);
  return rows;
}

at::Tensor RowPieces::slice(int64_t begin, int64_t end) const {
  CONTEXTURE_INVARIANT(!empty() && begin <= end, begin, " to ", end);
  const at::Tensor& some = by_first_row_.begin()->second;
  const at::Tensor out = at::empty({end - begin, some.size(1)}, some.options());
  int64_t copied = 0;
  for (const auto& [first, tensor] : by_first_row_) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + tensor.size(0));
    if (from >= to) continue;
    out.narrow(0, from - begin, to - from).copy_(tensor.narrow(0, from - first, to - from));
    copied += to - from;
  }
  CONTEXTURE_INVARIANT(copied == end - begin, copied, " rows of ", begin, " to ", end);
  return out;
}

void RowPieces::put(NamedTensors& tensors, const std::string& name) const {
  for (const auto& [first, tensor] : by_first_row_) {
    if (!cut_) {
      tensors[name] = tensor;
    } else if (tensor.size(0) > 0) {
      tensors[concat(name, "@", first)] = tensor;
    }
  }
}

void join_pieces(NamedTensors& tensors) {
  std::set<std::string> cut;
  for (const auto& [key, tensor] : tensors) {
    if (const auto piece = parse_piece(key)) cut.insert(piece->first);
  }
  for (const std::string& name : cut) {
    const RowPieces pieces = RowPieces::find(tensors, name);
    std::erase_if(tensors, [&](const auto& entry) {
      const auto piece = parse_piece(entry.first);
      return piece && piece->first == name;
    });
    tensors[name] = pieces.slice(0, pieces.rows());
  }
}

}  // namespace contexture::parallel
