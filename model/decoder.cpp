// N rows, D model width, H query heads, G key-value heads, K head width, M memory rows, P segments,
// C copy width.
#include "model/decoder.h"

#include "core/error.h"
#include "model/init.h"
#include "parallel/decoding.h"
#include "parallel/device.h"
#include "parallel/slice.h"

namespace contexture::model {

using parallel::Init;
using parallel::ParameterStore;
using parallel::Pass;
using parallel::Tensors;
using parallel::WireShape;

Score::Score(const parallel::ParameterStore& store, const ModelConfig& config)
    : Block("score", {"query.embedding", "doc.embedding"}, {"slot.log_prob"}),
      store_(&store),
      temperature_(config.score_temperature) {}

std::vector<WireShape> Score::shapes(const Pass& pass) const {
  return {{{pass.feed("slot.query").numel()},
           parallel::wide_dtype(store_->all().front()->value.scalar_type())}};
}

double Score::forward_flops(const Pass&) const { return 0.0; }  // a dot product a slot

Tensors Score::forward(const Tensors& inputs, const Pass& pass) const {
  const at::Tensor &query = pass.feed("slot.query"), &doc = pass.feed("slot.doc"),
                   &cell = pass.feed("slot.cell");
  const int64_t* shape =
      pass.feed("slot.shape").data_ptr<int64_t>();  // CPU: inputs, most slots of one
  at::Tensor score =
      (inputs[0].index_select(0, query) * inputs[1].index_select(0, doc)).sum(1) / temperature_;
  const double weight = *pass.feed("score.attentive_weight").data_ptr<double>();
  if (weight != 1.0)
    score = score * weight + score.detach() * (1.0 - weight);  // same value, scaled gradient
  // Inputs may have different numbers of documents: empty cells take no probability.
  const at::Tensor cells =
      at::full({shape[0] * shape[1]}, -1e30, score.options()).index_copy(0, cell, score);
  return {cells.view({shape[0], shape[1]}).log_softmax(1).view(-1).index_select(0, cell)};
}

at::Tensor segment_bias(const at::Tensor& slot_log_prob, const at::Tensor& slot_segment,
                        int64_t num_segments) {
  return at::zeros({num_segments}, slot_log_prob.options())
      .index_copy(0, slot_segment, slot_log_prob);
}

DecoderLayer::DecoderLayer(ParameterStore& store, const ModelConfig& config, int64_t index,
                           const std::string& memory_wire, bool writes_mass)
    : Block(concat("dec.layer.", index),
            config.reads_documents(index)
                ? std::vector<std::string>{concat("dec.h.", index), memory_wire, "slot.log_prob"}
            : config.fusion == "prefix"
                ? std::vector<std::string>{concat("dec.h.", index), "slot.log_prob"}
                : std::vector<std::string>{concat("dec.h.", index)},
            writes_mass
                ? std::vector<std::string>{concat("dec.h.", index + 1), concat("dec.mass.", index)}
                : std::vector<std::string>{concat("dec.h.", index + 1)}),
      config_(config),
      memory_tower_(memory_wire.substr(0, memory_wire.find('.'))),
      writes_mass_(writes_mass) {
  const auto declare = [&](const std::string& name, std::vector<int64_t> shape, Init init,
                           parallel::Split split) {
    return &use(store, concat("decoder.layer.", index, ".", name), std::move(shape), init,
                std::move(split));
  };
  attention_ =
      self_attention(config, config.decoder_layers, tensor_parallel::group_of(store), declare);
  if (config.reads_documents(index)) {
    const int64_t q = config.heads * config.head_width, G = config.kv_heads, K = config.head_width;
    cross_norm_ = declare("cross.norm", {config.width}, Init::constant(1.0), {});
    cross_q_ = declare("cross.q", {q, config.width}, fan_in_init(config.width), head_rows({q}, K));
    cross_kv_ = declare("cross.kv", {2 * G * K, config.width}, fan_in_init(config.width),
                        head_rows({G * K, G * K}, K));
    cross_out_ =
        declare("cross.out", {config.width, q}, branch_init(q, config.decoder_layers), {1, {q}, K});
    null_k_ = declare("cross.null_k", {1, G, K}, Init::constant(0.0), {1, {G}});
    null_v_ = declare("cross.null_v", {1, G, K}, Init::constant(0.0), {1, {G}});
  }
  mlp_ = feed_forward(config, config.decoder_layers, tensor_parallel::group_of(store), declare);
}

std::vector<WireShape> DecoderLayer::shapes(const Pass& pass) const {
  std::vector<WireShape> out =
      layers::rows(pass, "dec", *attention_.norm, config_.width, attention_.group);
  if (!writes_mass_) return out;
  const auto wide = parallel::wide_dtype(attention_.norm->value.scalar_type());
  if (pass.decoding != nullptr) return {out[0], {{0}, wide}};
  const int64_t* shape = pass.feed("candidate.shape").data_ptr<int64_t>();
  out.push_back({{shape[0] * shape[1]}, wide});
  return out;
}

std::pair<at::Tensor, at::Tensor> DecoderLayer::project_memory(const at::Tensor& states_MD) const {
  const at::Tensor kv = ops::column_linear(states_MD, cross_kv_->value, attention_.group.ranks)
                            .view({states_MD.size(0), 2, attention_.kv_heads, config_.head_width});
  const at::Tensor null = at::stack({null_k_->value, null_v_->value}, 1);
  const std::vector<at::Tensor> parts =
      at::cat({kv, null}).unbind(1);  // one copy, and gradients joined in one pass
  return {parts[0], parts[1]};
}

std::pair<at::Tensor, at::Tensor> DecoderLayer::memory_of(const at::Tensor& states_MD,
                                                          const Pass& pass) const {
  const auto projected = [&] {
    const auto [k, v] = project_memory(states_MD);
    return Tensors{k, v};
  };
  if (pass.decoding != nullptr) {
    const Tensors& both = pass.decoding->keep(name() + ".memory", projected);
    return {both[0], both[1]};
  }
  // Slices of one microbatch read the same memory. Whole microbatches do if it is that of their
  // documents, encoded once for all.
  if (pass.slice == nullptr || (pass.slice->whole && memory_tower_ != "doc"))
    return project_memory(states_MD);
  const Tensors both = pass.slice->share(
      name() + ".memory", {states_MD, cross_kv_->value, null_k_->value, null_v_->value}, projected);
  return {both[0], both[1]};
}

at::Tensor DecoderLayer::cross_query(const at::Tensor& x_ND, int64_t num_rows) const {
  const at::Tensor normed = ops::rms_norm(
      x_ND, tensor_parallel::for_rows(*cross_norm_, attention_.group), config_.norm_eps);
  return tensor_parallel::enter(normed, cross_q_->value, attention_.group, num_rows)
      .view({num_rows, attention_.heads, config_.head_width});
}

at::Tensor DecoderLayer::cross_branch(const at::Tensor& q_NHK, const at::Tensor& k,
                                      const at::Tensor& v, const ops::Segments& memory,
                                      const at::Tensor& bias_P) const {
  const at::Tensor read_NHK = ops::attention(q_NHK, k, v, memory, bias_P);
  return tensor_parallel::leave(
      ops::linear(read_NHK.view({q_NHK.size(0), attention_.heads * config_.head_width}),
                  cross_out_->value),
      attention_.group);
}

at::Tensor DecoderLayer::mass(const at::Tensor& q_NHK, const at::Tensor& k, const at::Tensor& v,
                              const ops::Segments& memory, const at::Tensor& bias_P,
                              const Pass& pass) const {
  const at::NoGradGuard no_grad;
  // Joint readings come first among the memory's sequences, and their documents first among its
  // segments.
  const at::Tensor& query_begin = pass.feed("mass.query_begin");
  const int64_t sequences = query_begin.numel() - 1;
  const at::Tensor segment_begin = memory.segment_begin.narrow(0, 0, sequences + 1);
  const int64_t segments = segment_begin[sequences].item<int64_t>();
  const ops::Segments joint{query_begin, segment_begin, memory.key_begin.narrow(0, 0, segments),
                            memory.key_end.narrow(0, 0, segments), false};
  const at::Tensor norm_MG = v.detach().to(parallel::wide_dtype(v.scalar_type())).norm(2, -1);
  at::Tensor share_P =
      ops::attention_share(q_NHK.detach().index_select(0, pass.feed("mass.row")), k.detach(), joint,
                           bias_P.detach().narrow(0, 0, segments), norm_MG);
  const at::Tensor& cell = pass.feed("candidate.cell");
  at::Tensor slot =
      share_P.index_select(0, pass.feed("memory.slot_segment").narrow(0, 0, cell.numel()));
  // In a token slice: its rows' part in the mean over all rows of the target.
  const at::Tensor part_B = parallel::to_device(at::diff(query_begin), slot.device()) /
                            pass.feed("read.tokens").clamp_min(1);
  slot = slot * part_B.index_select(0, pass.feed("candidate.query")).to(slot.scalar_type());
  const int64_t* shape = pass.feed("candidate.shape").data_ptr<int64_t>();
  const at::Tensor cells =
      at::zeros({shape[0] * shape[1]}, slot.options()).index_copy(0, cell, slot);
  return over_heads(cells);
}

// The mean over all heads of what is the mean over this rank's.
at::Tensor DecoderLayer::over_heads(const at::Tensor& mine) const {
  return attention_.group.ranks == nullptr ? mine
                                           : tensor_parallel::reduce(mine, attention_.group.ranks) /
                                                 attention_.group.ranks->size();
}

double DecoderLayer::forward_flops(const Pass& pass) const {
  const int64_t width = config_.heads * config_.head_width;
  double flops = Block::forward_flops(pass) +
                 layers::attention_flops(pass, "dec.self", width, /*causal=*/true);
  if (!reads_documents()) return flops;
  // Keys and values are made of the memory's rows, not of the decoder's.
  const auto kv = static_cast<double>(cross_kv_->numel());
  const bool made_before =
      pass.slice != nullptr && pass.slice->whole && pass.slice->index > 0 && memory_tower_ == "doc";
  const double memory = made_before
                            ? 0.0
                            : static_cast<double>(pass.feed(memory_tower_ + ".token").numel()),
               rows = static_cast<double>(pass.feed("dec.token").numel());
  return flops + 2.0 * (memory - rows) * kv +
         layers::attention_flops(pass, "memory", width, /*causal=*/false);
}

Tensors DecoderLayer::forward(const Tensors& inputs, const Pass& pass) const {
  at::Tensor x_ND = inputs[0], mass_BC;
  auto [q, k, v] = attention_.project(x_ND, pass.feed("dec.position"));
  if (pass.decoding != nullptr) {
    k = pass.decoding->extend(name() + ".k", k);
    v = pass.decoding->extend(name() + ".v", v);
  }
  if (pass.slice != nullptr) {
    k = pass.slice->extend(name() + ".k", k);
    v = pass.slice->extend(name() + ".v", v);
  }
  const ops::Segments self = segments_feed(pass, "dec.self", /*causal=*/true);
  at::Tensor self_bias;
  if (config_.fusion == "prefix") {
    self_bias = segment_bias(tensor_parallel::spread(inputs[1], attention_.group.ranks),
                             pass.feed("memory.slot_segment"), self.num_segments());
  }
  const auto drop = [&](const at::Tensor& branch, const char* place) {
    return layers::dropout(branch, config_.dropout, pass, "dec", name() + place, attention_.group);
  };
  x_ND = x_ND + drop(attention_.finish(ops::attention(q, k, v, self, self_bias)), ".attention");
  if (reads_documents()) {
    const ops::Segments memory = segments_feed(pass, "memory", /*causal=*/false);
    const auto [mk, mv] = memory_of(inputs[1], pass);
    const at::Tensor bias = segment_bias(tensor_parallel::spread(inputs[2], attention_.group.ranks),
                                         pass.feed("memory.slot_segment"), memory.num_segments());
    const at::Tensor cross_q = cross_query(x_ND, q.size(0));
    if (pass.decoding != nullptr && pass.decoding->noting)
      pass.decoding->notes[name()] = over_heads(ops::attention_share(cross_q, mk, memory, bias));
    if (writes_mass_ && pass.decoding == nullptr)
      mass_BC = mass(cross_q, mk, mv, memory, bias, pass);
    x_ND = x_ND + drop(cross_branch(cross_q, mk, mv, memory, bias), ".cross");
  }
  Tensors out{x_ND + drop(mlp_.branch(x_ND, q.size(0)), ".mlp")};
  if (writes_mass_) out.push_back(mass_BC);
  return out;
}

}  // namespace contexture::model
