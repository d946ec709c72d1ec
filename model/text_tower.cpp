// N rows (tokens of all texts), D width, H heads of this rank, K head width, F feed-forward width,
// S texts.
#include "model/text_tower.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/init.h"
#include "model/ops.h"
#include "model/tower.h"
#include "parallel/device.h"

namespace contexture::model {

using parallel::Init;
using parallel::ParameterStore;
using parallel::Pass;
using parallel::Tensors;
using parallel::WireShape;

namespace {

// BERT's own initialisation; published weights take its place (model/bert_weights.h).
const Init kInit = Init::normal(0.02);

at::Tensor layer_norm(const at::Tensor& x_ND, const parallel::Parameter& gain,
                      const parallel::Parameter& bias, double eps) {
  return at::layer_norm(x_ND, {x_ND.size(1)}, gain.value, bias.value, eps);
}

}  // namespace

void add_text_feeds(const SentenceEncoderConfig& config, const std::string& tower,
                    const std::vector<const Sequence*>& sequences, at::Device device,
                    parallel::Feeds& feeds) {
  std::vector<int64_t> token, position, row_key, row_sequence, begin{0};
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = *sequences[i];
    CONTEXTURE_DATA_REQUIRE(
        !s.words.empty() && static_cast<int64_t>(s.words.size()) <= config.max_tokens, "text ", i,
        " of ", tower, " has ", s.words.size(), " tokens; model.text_encoder reads 1 to ",
        config.max_tokens, ".");
    for (size_t p = 0; p < s.words.size(); ++p) {
      CONTEXTURE_DATA_REQUIRE(s.words[p] >= 0 && s.words[p] < config.vocab, "token ", s.words[p],
                              " is outside the ", config.vocab,
                              " of model.text_encoder. Is vocab.txt another model's?");
      token.push_back(s.words[p]);
      position.push_back(static_cast<int64_t>(p));
      row_sequence.push_back(static_cast<int64_t>(i));
      row_key.push_back(static_cast<int64_t>(s.key * 0x9E3779B97F4A7C15ULL + p));
    }
    begin.push_back(static_cast<int64_t>(token.size()));
  }
  feeds[tower + ".token"] = parallel::to_device(to_tensor(token), device);
  feeds[tower + ".position"] = parallel::to_device(to_tensor(position), device);
  feeds[tower + ".row_key"] = parallel::to_device(to_tensor(row_key), device);
  feeds[tower + ".row_sequence"] = parallel::to_device(to_tensor(row_sequence), device);
  const at::Tensor begin_S1 = feeds[tower + ".begin"] = to_tensor(begin);
  feed_segments(ops::self_segments(begin_S1, /*causal=*/false), tower + ".self", feeds);
}

TextEmbed::TextEmbed(ParameterStore& store, const SentenceEncoderConfig& config,
                     const std::string& tower)
    : Block(tower + ".embed", {}, {tower + ".h.0"}),
      tower_(tower),
      eps_(config.norm_eps),
      group_{store.tp(), false} {
  const int64_t D = config.width;
  word_ = &use(store, "retriever.word", {config.vocab, D}, kInit, {0, {config.vocab}});
  position_ = &use(store, "retriever.position", {config.positions, D}, kInit);
  type_ = &use(store, "retriever.type", {config.types, D}, kInit);
  gain_ = &use(store, "retriever.norm.weight", {D}, Init::constant(1.0));
  bias_ = &use(store, "retriever.norm.bias", {D}, Init::constant(0.0));
}

std::vector<WireShape> TextEmbed::shapes(const Pass& pass) const {
  return layers::rows(pass, tower_, *gain_, gain_->shape[0], group_);
}

Tensors TextEmbed::forward(const Tensors&, const Pass& pass) const {
  const at::Tensor word_ND =
      tensor_parallel::embedding(*word_, pass.feed(tower_ + ".token"), group_.ranks);
  const at::Tensor position_ND = at::embedding(position_->value, pass.feed(tower_ + ".position"));
  return {layer_norm(word_ND + type_->value[0] + position_ND, *gain_, *bias_, eps_)};
}

TextLayer::TextLayer(ParameterStore& store, const SentenceEncoderConfig& config, double dropout,
                     const std::string& tower, int64_t index)
    : Block(concat(tower, ".layer.", index), {concat(tower, ".h.", index)},
            {concat(tower, ".h.", index + 1)}),
      tower_(tower),
      dropout_(dropout),
      eps_(config.norm_eps),
      width_(config.width),
      head_width_(config.width / config.heads),
      group_{store.tp(), false} {
  const int64_t D = width_, F = config.ffn_width, K = head_width_;
  const auto [first, last] = parallel::part_of(config.heads, store.part());
  heads_ = last - first;
  const auto affine = [&](const std::string& name, std::vector<int64_t> shape, Init weight,
                          const parallel::Split& weight_split, const parallel::Split& bias_split) {
    const std::string path = concat("retriever.layer.", index, ".", name);
    const int64_t outputs = shape[0];
    return Affine{&use(store, path + ".weight", std::move(shape), weight, weight_split),
                  &use(store, path + ".bias", {outputs}, Init::constant(0.0), bias_split)};
  };
  const auto norm = [&](const std::string& name) {
    return affine(name, {D}, Init::constant(1.0), {}, {});
  };
  const parallel::Split heads = head_rows({D, D, D}, K), hidden{0, {F}};
  qkv_ = affine("attention.qkv", {3 * D, D}, kInit, heads, heads);
  out_ = affine("attention.out", {D, D}, kInit, {1, {D}, K}, {});
  attention_norm_ = norm("attention.norm");
  up_ = affine("mlp.up", {F, D}, kInit, hidden, hidden);
  down_ = affine("mlp.down", {D, F}, kInit, {1, {F}}, {});
  mlp_norm_ = norm("mlp.norm");
}

std::vector<WireShape> TextLayer::shapes(const Pass& pass) const {
  return layers::rows(pass, tower_, *mlp_norm_.weight, width_, group_);
}

double TextLayer::forward_flops(const Pass& pass) const {
  return Block::forward_flops(pass) +
         layers::attention_flops(pass, tower_ + ".self", width_, /*causal=*/false);
}

Tensors TextLayer::forward(const Tensors& inputs, const Pass& pass) const {
  at::Tensor x_ND = inputs[0];
  const int64_t N = x_ND.size(0);
  const auto into = [&](const at::Tensor& rows, const Affine& affine) {
    return tensor_parallel::enter(rows, affine.weight->value, group_, N) + affine.bias->value;
  };
  const auto out_of = [&](const at::Tensor& rows, const Affine& affine, const char* place) {
    const at::Tensor branch_ND =
        tensor_parallel::leave(ops::linear(rows, affine.weight->value), group_) +
        affine.bias->value;
    return layers::dropout(branch_ND, dropout_, pass, tower_, name() + place, group_);
  };
  const auto norm = [&](const at::Tensor& rows, const Affine& affine) {
    return layer_norm(rows, *affine.weight, *affine.bias, eps_);
  };
  const auto qkv = into(x_ND, qkv_).view({N, 3, heads_, head_width_}).unbind(1);
  const at::Tensor read_NHK =
      ops::attention(qkv[0], qkv[1], qkv[2], segments_feed(pass, tower_ + ".self", false));
  const at::Tensor read_NL = read_NHK.view({N, heads_ * head_width_});
  x_ND = norm(x_ND + out_of(read_NL, out_, ".attention"), attention_norm_);
  x_ND = norm(x_ND + out_of(at::gelu(into(x_ND, up_)), down_, ".mlp"), mlp_norm_);
  return {x_ND};
}

TextPool::TextPool(const SentenceEncoderConfig& config, const std::string& tower,
                   const std::string& wire, const parallel::Parameter& like)
    : Block(tower + ".pool", {concat(tower, ".h.", config.layers)}, {wire}),
      tower_(tower),
      mean_(config.mean_pooling),
      like_(&like) {}

std::vector<WireShape> TextPool::shapes(const Pass& pass) const {
  return {{{pass.feed(tower_ + ".begin").numel() - 1, like_->shape[0]},
           parallel::wide_dtype(like_->value.scalar_type())}};
}

Tensors TextPool::forward(const Tensors& inputs, const Pass& pass) const {
  const at::Tensor& states_ND = inputs[0];
  if (mean_) return {layers::unit_length(layers::sequence_means(states_ND, pass, tower_))};
  const at::Tensor begin_S1 = parallel::to_device(pass.feed(tower_ + ".begin"), states_ND.device());
  const at::Tensor first_SD = states_ND.index_select(0, begin_S1.slice(0, 0, -1));
  return {layers::unit_length(first_SD.to(parallel::wide_dtype(states_ND.scalar_type())))};
}

void add_text_tower(ParameterStore& store, const SentenceEncoderConfig& config, double dropout,
                    const std::string& which, parallel::BlockList& blocks) {
  const std::string tower = which + ".text";
  blocks.push_back(std::make_unique<TextEmbed>(store, config, tower));
  for (int64_t i = 0; i < config.layers; ++i)
    blocks.push_back(std::make_unique<TextLayer>(store, config, dropout, tower, i));
  blocks.push_back(std::make_unique<TextPool>(config, tower, which + ".embedding",
                                              store.at("retriever.norm.weight")));
}

}  // namespace contexture::model
