#include "model/internal/readings.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "parallel/device.h"

namespace contexture::model::internal {

std::vector<Reading> readings_of(const Microbatch& microbatch, size_t most) {
  const Readings& asked = microbatch.readings;
  std::vector<Reading> joint, single, left_out;
  for (size_t i = 0; i < microbatch.inputs.size(); ++i) {
    std::vector<size_t> all(microbatch.inputs[i].documents.size());
    std::iota(all.begin(), all.end(), 0);
    for (const size_t k : all) {
      if (asked.single) single.push_back({Reading::Kind::kSingle, i, {k}, k});
      if (!asked.left_out) continue;
      left_out.push_back({Reading::Kind::kLeftOut, i, all, k});
      left_out.back().places.erase(left_out.back().places.begin() + static_cast<int64_t>(k));
    }
    if (asked.none) single.push_back({Reading::Kind::kSingle, i, {}, most});
    if (asked.joint) joint.push_back({Reading::Kind::kJoint, i, std::move(all)});
  }
  joint.insert(joint.end(), std::make_move_iterator(single.begin()),
               std::make_move_iterator(single.end()));
  joint.insert(joint.end(), std::make_move_iterator(left_out.begin()),
               std::make_move_iterator(left_out.end()));
  return joint;
}

void add_objective_feeds(const Microbatch& microbatch, const std::vector<Reading>& readings,
                         size_t most, int64_t joint_targets, at::Device device,
                         parallel::Feeds& feeds) {
  const size_t B = microbatch.inputs.size(),
               C = std::max<size_t>(1, most + (microbatch.readings.none ? 1 : 0));
  size_t T = 1;
  std::vector<int64_t> query, doc, cell, null_cell, row[2], at[2];
  std::vector<double> tokens;
  for (size_t i = 0; i < B; ++i) {
    const Input& input = microbatch.inputs[i];
    T = std::max(T, input.target.size());
    tokens.push_back(static_cast<double>(input.target.size()));
    if (microbatch.readings.none) null_cell.push_back(static_cast<int64_t>(i * C + most));
    for (size_t k = 0; k < input.documents.size(); ++k) {
      query.push_back(static_cast<int64_t>(i));
      doc.push_back(input.documents[k]);
      cell.push_back(static_cast<int64_t>(i * C + k));
    }
  }
  int64_t next = 0;
  std::vector<int64_t> joint_begin{0};
  for (const Reading& reading : readings) {
    const auto targets = static_cast<int64_t>(microbatch.inputs[reading.input].target.size());
    if (reading.kind == Reading::Kind::kJoint) joint_begin.push_back(joint_begin.back() + targets);
    for (int64_t t = 0; t < targets; ++t, ++next) {
      if (reading.kind == Reading::Kind::kJoint) continue;
      const size_t which = reading.kind == Reading::Kind::kSingle ? 0 : 1;
      row[which].push_back(next);
      at[which].push_back(static_cast<int64_t>((reading.input * C + reading.column) * T) + t);
    }
  }
  const auto put = [&](const char* name, const std::vector<int64_t>& values) {
    feeds[name] = parallel::to_device(to_tensor(values), device);
  };
  put("candidate.query", query);
  put("candidate.doc", doc);
  put("candidate.cell", cell);
  put("candidate.null_cell", null_cell);
  feeds["candidate.shape"] = to_tensor({static_cast<int64_t>(B), static_cast<int64_t>(C)});
  feeds["mass.row"] = feeds.at("target.row").narrow(0, 0, joint_targets);
  feeds["mass.query_begin"] = to_tensor(joint_begin);
  put("read.single_row", row[0]);
  put("read.single_cell", at[0]);
  put("read.left_out_row", row[1]);
  put("read.left_out_cell", at[1]);
  feeds["read.shape"] =
      to_tensor({static_cast<int64_t>(B), static_cast<int64_t>(C), static_cast<int64_t>(T)});
  feeds["read.tokens"] =
      parallel::to_device(at::tensor(at::ArrayRef<double>(tokens), at::kDouble), device);
  const int64_t inputs =
      microbatch.global_inputs > 0 ? microbatch.global_inputs : static_cast<int64_t>(B);
  feeds["loss.inputs"] =
      at::full({}, static_cast<double>(std::max<int64_t>(1, inputs)), at::kDouble);
}

}  // namespace contexture::model::internal
