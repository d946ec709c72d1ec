// N rows, D model width, H query heads, G key-value heads, K head width, S sequences, E embedding
// width, P patches.
#include "model/tower.h"

#include <cmath>

#include "core/error.h"
#include "core/rng.h"
#include "model/init.h"
#include "model/internal/dropout_mask.h"
#include "parallel/device.h"

namespace contexture::model {

using parallel::Init;
using parallel::ParameterStore;
using parallel::Pass;
using parallel::Tensors;
using parallel::WireShape;

Embed::Embed(ParameterStore& store, const ModelConfig& config, const std::string& tower,
             const std::string& role)
    : Block(tower + ".embed", {}, {tower + ".h.0"}),
      tower_(tower),
      group_(tensor_parallel::group_of(store)) {
  const int64_t D = config.width;
  token_ =
      &use(store, "embed.token", {config.vocab, D}, embedding_init(config), {0, {config.vocab}});
  patch_ = &use(store, "embed.patch", {D, config.patch_width()}, fan_in_init(config.patch_width()));
  patch_position_ =
      &use(store, "embed.patch_position", {config.num_patches(), D}, embedding_init(config));
  // The decoder writes what the encoder reads: each mixes in the preceding token in its own way.
  if (config.token_shift)
    shift_ =
        &use(store, tower == "dec" ? "decoder.shift" : "encoder.shift", {D, D}, fan_in_init(D));
  if (!role.empty()) role_ = &use(store, role, {D}, embedding_init(config));
}

std::vector<WireShape> Embed::shapes(const Pass& pass) const {
  return layers::rows(pass, tower_, *token_, token_->shape[1], group_);
}

double Embed::forward_flops(const Pass& pass) const {
  const auto rows = static_cast<double>(pass.feed(tower_ + ".token").numel()),
             patches = static_cast<double>(pass.feed(tower_ + ".patch_row").numel());
  const auto D = static_cast<double>(token_->shape[1]);
  return 2.0 * (patches * static_cast<double>(patch_->numel()) +
                (shift_ != nullptr ? rows * D * D : 0.0));  // tokens are looked up
}

Tensors Embed::forward(const Tensors&, const Pass& pass) const {
  const auto feed = [&](const char* name) -> const at::Tensor& {
    return pass.feed(tower_ + "." + name);
  };
  at::Tensor h_ND = tensor_parallel::embedding(*token_, feed("token"), group_.ranks);
  if (shift_ != nullptr) {
    h_ND = h_ND + ops::linear(tensor_parallel::embedding(*token_, feed("previous"), group_.ranks),
                              shift_->value);
  }
  h_ND = h_ND * (0.5 * std::sqrt(static_cast<double>(
                           h_ND.size(1))));  // rows of unit length to the scale of patches
  if (feed("patches").size(0) > 0) {
    const at::Tensor patch_QD = ops::linear(feed("patches"), patch_->value) +
                                at::embedding(patch_position_->value, feed("patch_index"));
    h_ND = h_ND.index_copy(0, feed("patch_row"), patch_QD);
  }
  if (role_ != nullptr) h_ND = h_ND + role_->value;
  return {tensor_parallel::own_rows(h_ND, group_)};
}

std::array<at::Tensor, 3> SelfAttention::project(const at::Tensor& x_ND,
                                                 const at::Tensor& position_N) const {
  const int64_t N = position_N.size(0), H = heads, G = kv_heads, K = head_width;
  const at::Tensor rotated =
      ops::rotary(
          tensor_parallel::enter(ops::rms_norm(x_ND, tensor_parallel::for_rows(*norm, group), eps),
                                 qkv->value, group, N),
          position_N, H + G, K, rope_theta)
          .view({N, H + 2 * G, K});
  const std::vector<at::Tensor> parts =
      rotated.split_with_sizes({H, G, G}, 1);  // their gradients are joined in one pass
  return {parts[0], parts[1], parts[2]};
}

at::Tensor SelfAttention::finish(const at::Tensor& attended_NHK) const {
  return tensor_parallel::leave(
      ops::linear(attended_NHK.view({attended_NHK.size(0), heads * head_width}), out->value),
      group);
}

at::Tensor FeedForward::branch(const at::Tensor& x_ND, int64_t num_rows) const {
  const at::Tensor normed = ops::rms_norm(x_ND, tensor_parallel::for_rows(*norm, group), eps);
  return tensor_parallel::leave(
      ops::linear(ops::swiglu(tensor_parallel::enter(normed, in->value, group, num_rows)),
                  out->value),
      group);
}

EncoderLayer::EncoderLayer(ParameterStore& store, const ModelConfig& config,
                           const std::string& tower, const std::string& prefix, int64_t index)
    : Block(concat(tower, ".layer.", index), {concat(tower, ".h.", index)},
            {concat(tower, ".h.", index + 1)}),
      tower_(tower),
      heads_width_(config.heads * config.head_width),
      dropout_(config.dropout) {
  const auto declare = [&](const std::string& name, std::vector<int64_t> shape, Init init,
                           parallel::Split split) {
    return &use(store, concat(prefix, ".layer.", index, ".", name), std::move(shape), init,
                std::move(split));
  };
  attention_ =
      self_attention(config, config.encoder_layers, tensor_parallel::group_of(store), declare);
  mlp_ = feed_forward(config, config.encoder_layers, tensor_parallel::group_of(store), declare);
}

std::vector<WireShape> EncoderLayer::shapes(const Pass& pass) const {
  return layers::rows(pass, tower_, *attention_.norm, attention_.norm->shape[0], attention_.group);
}

double EncoderLayer::forward_flops(const Pass& pass) const {
  return Block::forward_flops(pass) +
         layers::attention_flops(pass, tower_ + ".self", heads_width_, /*causal=*/false);
}

Tensors EncoderLayer::forward(const Tensors& inputs, const Pass& pass) const {
  at::Tensor x_ND = inputs[0];
  const auto [q, k, v] = attention_.project(x_ND, pass.feed(tower_ + ".position"));
  const at::Tensor read =
      ops::attention(q, k, v, segments_feed(pass, tower_ + ".self", /*causal=*/false));
  x_ND = x_ND + layers::dropout(attention_.finish(read), dropout_, pass, tower_,
                                name() + ".attention", attention_.group);
  x_ND = x_ND + layers::dropout(mlp_.branch(x_ND, read.size(0)), dropout_, pass, tower_,
                                name() + ".mlp", attention_.group);
  return {x_ND};
}

FinalNorm::FinalNorm(ParameterStore& store, const ModelConfig& config, const std::string& in,
                     const std::string& out, const std::string& parameter)
    : Block(out.substr(0, out.find('.')) + ".norm", {in}, {out}),
      tower_(out.substr(0, out.find('.'))),
      group_(tensor_parallel::group_of(store)),
      eps_(config.norm_eps) {
  gain_ = &use(store, parameter, {config.width}, Init::constant(1.0));
}

std::vector<WireShape> FinalNorm::shapes(const Pass& pass) const {
  return layers::rows(pass, tower_, *gain_, gain_->shape[0], {});
}

Tensors FinalNorm::forward(const Tensors& inputs, const Pass& pass) const {
  const at::Tensor own = ops::rms_norm(inputs[0], tensor_parallel::for_rows(*gain_, group_), eps_);
  return {tensor_parallel::all_rows(own, group_, pass.feed(tower_ + ".token").numel())};
}

Pool::Pool(ParameterStore& store, const ModelConfig& config, const std::string& tower,
           const std::string& prefix)
    : Block(tower + ".pool", {tower + ".states"}, {tower + ".embedding"}),
      tower_(tower),
      config_(config) {
  const int64_t D = config.width, E = config.embedding_width;
  plain_ = &use(store, prefix + ".pool.plain", {E, D}, fan_in_init(D));
  if (config.pooling == "patches") {
    patch_ = &use(store, prefix + ".pool.patch", {config.patch_projection, D}, fan_in_init(D));
  }
}

std::vector<WireShape> Pool::shapes(const Pass& pass) const {
  return {{{pass.feed(tower_ + ".begin").numel() - 1, config_.embedding_width},
           parallel::wide_dtype(plain_->value.scalar_type())}};
}

double Pool::forward_flops(const Pass& pass) const {
  const auto plain =
      static_cast<double>(patch_ != nullptr ? pass.feed(tower_ + ".plain_seq").numel()
                                            : pass.feed(tower_ + ".begin").numel() - 1);
  const double patches = patch_ != nullptr
                             ? static_cast<double>(pass.feed(tower_ + ".patch_row").numel()) *
                                   static_cast<double>(patch_->numel())
                             : 0.0;
  return 2.0 * (plain * static_cast<double>(plain_->numel()) + patches);
}

Tensors Pool::forward(const Tensors& inputs, const Pass& pass) const {
  const at::Tensor& states_ND = inputs[0];
  const int64_t S = pass.feed(tower_ + ".begin").numel() - 1;
  const at::Tensor begin = parallel::to_device(pass.feed(tower_ + ".begin"), states_ND.device());
  const at::ScalarType wide = parallel::wide_dtype(states_ND.scalar_type());
  const auto pooled_plain = [&](const at::Tensor& sequences) {  // [s] int64 on the states' device
    if (config_.pooling == "cls")
      return ops::linear(states_ND.index_select(0, begin.index_select(0, sequences)),
                         plain_->value);
    const at::Tensor mean =
        layers::sequence_means(states_ND, pass, tower_).index_select(0, sequences);
    return ops::linear(mean.to(states_ND.scalar_type()), plain_->value);
  };
  at::Tensor pooled_SE;
  if (patch_ == nullptr) {
    pooled_SE = pooled_plain(at::arange(S, pass.feed(tower_ + ".token").options()));
  } else {
    const at::Tensor &with = pass.feed(tower_ + ".picture_seq"),
                     &without = pass.feed(tower_ + ".plain_seq");
    std::vector<at::Tensor> parts, places;
    if (with.numel() > 0) {
      const at::Tensor patch = states_ND.index_select(0, pass.feed(tower_ + ".patch_row"));
      parts.push_back(
          ops::linear(patch, patch_->value).view({with.numel(), config_.embedding_width}));
      places.push_back(with);
    }
    if (without.numel() > 0) {
      parts.push_back(pooled_plain(without));
      places.push_back(without);
    }
    if (parts.empty())
      return {at::zeros({0, config_.embedding_width}, states_ND.options().dtype(wide))};
    pooled_SE =
        parts.size() == 1 ? parts[0] : at::cat(parts).index_select(0, at::cat(places).argsort());
  }
  return {layers::unit_length(pooled_SE.to(wide))};
}

at::Tensor layers::sequence_means(const at::Tensor& states_ND, const Pass& pass,
                                  const std::string& tower) {
  const at::Tensor begin_S1 = parallel::to_device(pass.feed(tower + ".begin"), states_ND.device());
  const at::ScalarType wide = parallel::wide_dtype(states_ND.scalar_type());
  const at::Tensor length_S = begin_S1.diff();
  return at::zeros({length_S.numel(), states_ND.size(1)}, states_ND.options().dtype(wide))
             .index_add(0, pass.feed(tower + ".row_sequence"), states_ND.to(wide)) /
         length_S.unsqueeze(1);
}

at::Tensor layers::unit_length(const at::Tensor& rows_SE) {
  return rows_SE / (rows_SE.square().sum(1, /*keepdim=*/true) + 1e-12).sqrt();
}

double layers::attention_flops(const Pass& pass, const std::string& prefix, int64_t width,
                               bool causal) {
  const ops::Segments segments = segments_feed(pass, prefix, causal);
  const int64_t *query = segments.query_begin.data_ptr<int64_t>(),
                *segment = segments.segment_begin.data_ptr<int64_t>();
  const int64_t *begin = segments.key_begin.data_ptr<int64_t>(),
                *end = segments.key_end.data_ptr<int64_t>();
  double pairs = 0.0;
  for (int64_t s = 0; s < segments.num_sequences(); ++s) {
    double keys = 0.0;
    for (int64_t p = segment[s]; p < segment[s + 1]; ++p)
      keys += static_cast<double>(end[p] - begin[p]);
    const auto rows = static_cast<double>(query[s + 1] - query[s]);
    pairs += causal ? rows * (keys - (rows - 1.0) / 2.0) : rows * keys;
  }
  return 4.0 * pairs * static_cast<double>(width);
}

std::vector<WireShape> layers::rows(const Pass& pass, const std::string& tower,
                                    const parallel::Parameter& like, int64_t width,
                                    const tensor_parallel::Group& group) {
  const auto [begin, end] = group.rows(pass.feed(tower + ".token").numel());
  return {{{end - begin, width}, like.value.scalar_type()}};
}

at::Tensor layers::dropout(const at::Tensor& branch_ND, double p, const Pass& pass,
                           const std::string& tower, const std::string& place,
                           const tensor_parallel::Group& group) {
  if (p == 0.0 || !pass.training) return branch_ND;
  // Counter-based: a mask depends on (seed, step, place, the row's owner and position, column)
  // alone, so every layout and every recomputation draws the same one.
  const at::Tensor& all_keys = pass.feed(tower + ".row_key");
  const auto [first, last] = group.rows(all_keys.numel());
  const StreamKey stream =
      stream_key(pass.seed, "dropout:" + place, static_cast<uint64_t>(pass.step));
  const at::Tensor mask =
      internal::dropout_mask(all_keys.narrow(0, first, last - first), branch_ND.size(1), p, stream);
  return branch_ND * mask.to(branch_ND.scalar_type());
}

}  // namespace contexture::model
