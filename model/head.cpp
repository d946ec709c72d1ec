// B inputs, T rows and L keys of the longest one, R = B * T, M memory rows or targets, D model
// width, C copy width, V vocabulary.
#include "core/error.h"
#include "model/decoder.h"
#include "model/init.h"
#include "parallel/decoding.h"

namespace contexture::model {

using parallel::Init;
using parallel::ParameterStore;
using parallel::Pass;
using parallel::Tensors;
using parallel::WireShape;

Head::Head(ParameterStore& store, const ModelConfig& config, const std::string& memory_wire)
    : Block("head",
            config.copy_head ? std::vector<std::string>{"dec.states", memory_wire, "slot.log_prob"}
                             : std::vector<std::string>{"dec.states"},
            {"loss.reader", "target.log_prob"}),
      memory_tower_(memory_wire.substr(0, memory_wire.find('.'))),
      copies_(config.copy_head),
      tp_(store.tp()) {
  const int64_t D = config.width, C = config.copy_width;
  const parallel::Split by_token{0, {config.vocab}};
  weight_ = config.tie_head
                ? &use(store, "embed.token", {config.vocab, D}, embedding_init(config), by_token)
                : &use(store, "head.weight", {config.vocab, D}, fan_in_init(D), by_token);
  if (!copies_) return;
  query_ = &use(store, "copy.query", {C, D}, fan_in_init(D));
  key_ = &use(store, "copy.key", {C, D}, fan_in_init(D));
  match_one_ = &use(store, "copy.match_one", {1}, Init::constant(4.0));
  match_two_ = &use(store, "copy.match_two", {1}, Init::constant(2.0));
  context_ = &use(store, "copy.context", {D, D}, fan_in_init(D));
  gate_ = &use(store, "copy.gate", {1, 2 * D},
               Init::normal(0.7 / std::sqrt(2.0 * static_cast<double>(D))));
  gate_bias_ = &use(store, "copy.gate_bias", {1}, Init::constant(1.0));
}

Head::Memory Head::memory_of(const at::Tensor& state_MD, const Pass& pass) const {
  const auto feed = [&](const char* name) { return pass.feed(memory_tower_ + "." + name); };
  return {state_MD, feed("token"), feed("previous"), feed("before")};
}

Head::Pointed Head::point(const at::Tensor& state_RD, const Memory& from,
                          const at::Tensor& slot_log_prob, const Pass& pass) const {
  const int64_t* shape = pass.feed("pointer.shape").data_ptr<int64_t>();
  const int64_t B = shape[0], T = shape[1], L = shape[2], D = state_RD.size(1),
                C = query_->shape[0];
  const at::ScalarType wide = parallel::wide_dtype(state_RD.scalar_type());
  const at::Tensor &key_row = pass.feed("pointer.key_row"),
                   &key_slot = pass.feed("pointer.key_slot");
  const auto of_keys = [&](const at::Tensor& feed_M) {
    return (feed_M.numel() > 0 ? feed_M : at::zeros({1}, feed_M.options()))
        .index_select(0, key_row)
        .view({B, 1, L});
  };
  const at::Tensor memory =
      from.state_MD.size(0) > 0 ? from.state_MD : at::zeros({1, D}, from.state_MD.options());
  const at::Tensor query_BTC = ops::linear(state_RD, query_->value).view({B, T, C});
  const at::Tensor key_BLC =
      ops::linear(memory, key_->value).index_select(0, key_row).view({B, L, C});
  const at::Tensor last_BT1 = pass.feed("pointer.last").view({B, T, 1}),
                   before_BT1 = pass.feed("pointer.before").view({B, T, 1});
  const at::Tensor one = of_keys(from.previous_M).eq(last_BT1);
  const at::Tensor two = one.logical_and(of_keys(from.before_M).eq(before_BT1));
  // Padded keys carry the slot after the last one, whose log-probability is none.
  const at::Tensor bias_B1L =
      at::cat({slot_log_prob, at::full({1}, -1e30, slot_log_prob.options())})
          .index_select(0, key_slot)
          .view({B, 1, L});
  const at::Tensor logits_BTL =
      at::bmm(query_BTC, key_BLC.transpose(1, 2)).to(wide) / std::sqrt(static_cast<double>(C)) +
      bias_B1L + one.to(wide) * match_one_->value.to(wide) +
      two.to(wide) * match_two_->value.to(wide);
  const at::Tensor any_B11 = key_slot.view({B, 1, L}).narrow(2, 0, 1).lt(slot_log_prob.size(0));
  const at::Tensor weight_BTL = logits_BTL.softmax(2) * any_B11.to(wide);
  Pointed out;
  out.context_RD = at::bmm(weight_BTL.to(state_RD.scalar_type()),
                           memory.index_select(0, key_row).view({B, L, D}))
                       .view({B * T, D});
  const at::Tensor gate_R =
      (ops::linear(at::cat({state_RD, out.context_RD}, 1), gate_->value) + gate_bias_->value)
          .to(wide)
          .view(-1);
  const at::Tensor any_R = any_B11.expand({B, T, 1}).reshape(-1);
  out.log_copy_R = at::log_sigmoid(gate_R).masked_fill(any_R.logical_not(), -1e30);
  out.log_generate_R = at::log_sigmoid(-gate_R).masked_fill(any_R.logical_not(), 0.0);
  out.weight_RL = weight_BTL.view({B * T, L});
  out.token_RL = of_keys(from.token_M).expand({B, T, L}).reshape({B * T, L});
  return out;
}

std::vector<WireShape> Head::shapes(const Pass& pass) const {
  const auto wide = parallel::wide_dtype(weight_->value.scalar_type());
  if (pass.decoding == nullptr)
    return {{{}, at::kDouble}, {{pass.feed("target.token").numel()}, wide}};
  return {{{0}, at::kDouble}, {{pass.feed("pointer.row").numel(), weight_->shape[0]}, wide}};
}

double Head::forward_flops(const Pass& pass) const {
  const auto targets = static_cast<double>(pass.feed("target.token").numel()),
             D = static_cast<double>(weight_->shape[1]);
  double flops = targets * static_cast<double>(weight_->numel());
  if (copies_) {
    const int64_t* shape = pass.feed("pointer.shape").data_ptr<int64_t>();
    const auto rows = static_cast<double>(shape[0] * shape[1]),
               keys = static_cast<double>(shape[2]), C = static_cast<double>(query_->shape[0]);
    const auto memory = static_cast<double>(pass.feed(memory_tower_ + ".token").numel());
    flops += rows * C * D + memory * C * D + rows * keys * (C + D) + targets * D * D;
  }
  return 2.0 * flops;
}

Tensors Head::forward(const Tensors& inputs, const Pass& pass) const {
  if (pass.decoding != nullptr) return {at::Tensor(), log_probs(inputs, pass)};
  const at::Tensor& target_M = pass.feed("target.token");
  const at::ScalarType wide = parallel::wide_dtype(inputs[0].scalar_type());
  const auto target_log_prob = [&](const at::Tensor& hidden_MD) {
    return tensor_parallel::target_log_prob(
        ops::column_linear(hidden_MD, weight_->value, tp_).to(wide), *weight_, target_M, tp_);
  };
  at::Tensor log_prob_M;
  if (target_M.numel() == 0) {
    log_prob_M = inputs[0].narrow(0, 0, 0).sum(1).to(wide);
  } else if (!copies_) {
    log_prob_M = target_log_prob(inputs[0].index_select(0, pass.feed("target.row")));
  } else {
    const at::Tensor state_RD = inputs[0].index_select(0, pass.feed("pointer.row"));
    const at::Tensor& cell_M = pass.feed("pointer.cell");
    const Pointed pointed = point(state_RD, memory_of(inputs[1], pass), inputs[2], pass);
    const at::Tensor hidden_MD =
        (state_RD + ops::linear(pointed.context_RD, context_->value)).index_select(0, cell_M);
    const at::Tensor matching_ML =
        pointed.token_RL.index_select(0, cell_M).eq(target_M.unsqueeze(1)).to(wide);
    const at::Tensor copy_M = (pointed.weight_RL.index_select(0, cell_M) * matching_ML).sum(1);
    log_prob_M =
        at::logaddexp(pointed.log_generate_R.index_select(0, cell_M) + target_log_prob(hidden_MD),
                      pointed.log_copy_R.index_select(0, cell_M) + copy_M.clamp_min(1e-30).log());
  }
  // A scalar in fp64: the sum over microbatches then does not depend on how the batch was cut.
  const at::Tensor joint = log_prob_M.narrow(0, 0, *pass.feed("loss.rows").data_ptr<int64_t>());
  return {-(joint.to(at::kDouble).sum() / pass.feed("loss.tokens")), log_prob_M};
}

at::Tensor Head::log_probs(const Tensors& inputs, const Pass& pass) const {
  const at::ScalarType wide = parallel::wide_dtype(inputs[0].scalar_type());
  const at::Tensor state_RD = inputs[0].index_select(0, pass.feed("pointer.row"));
  const auto generate = [&](const at::Tensor& hidden) {
    const at::Tensor logits = ops::linear(hidden, weight_->value);
    return tensor_parallel::all_columns(logits, weight_->shape[0], tp_).to(wide).log_softmax(1);
  };
  if (!copies_) return generate(state_RD);
  const Tensors& kept = pass.decoding->keep(name() + ".memory", [&] {
    const Memory now = memory_of(inputs[1], pass);
    return Tensors{now.state_MD, now.token_M, now.previous_M, now.before_M};
  });
  const Pointed pointed = point(state_RD, {kept[0], kept[1], kept[2], kept[3]}, inputs[2], pass);
  const at::Tensor generated_RV =
      generate(state_RD + ops::linear(pointed.context_RD, context_->value));
  const at::Tensor copied_RV =
      at::zeros_like(generated_RV).scatter_add(1, pointed.token_RL, pointed.weight_RL);
  return at::logaddexp(pointed.log_generate_R.unsqueeze(1) + generated_RV,
                       pointed.log_copy_R.unsqueeze(1) + copied_RV.clamp_min(1e-30).log());
}

}  // namespace contexture::model
