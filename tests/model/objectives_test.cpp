// Objectives on log-probabilities: published figures worked by hand (docs/retrieval.md), closed
// forms, and gradients against finite differences.
#include "model/objectives.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>

namespace contexture::model::objectives {
namespace {

constexpr double kRounding = 5e-7;  // the figures are given to six or seven decimals

at::Tensor table(std::vector<double> values, std::vector<int64_t> shape) {
  return at::tensor(values, at::kDouble).view(shape);
}

// The worked example: three documents, two target tokens.
class Worked : public testing::Test {
 protected:
  const at::Tensor score = table({2, 1, 0}, {1, 3});
  const at::Tensor prior = log_prior(score);
  const at::Tensor lik = table({.5, .4, .2, .9, .1, .1}, {1, 3, 2}).log();
  const at::Tensor tokens = table({2}, {1});
};

void expect_values(const at::Tensor& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.numel(), static_cast<int64_t>(expected.size()));
  const at::Tensor flat = actual.detach().reshape(-1).contiguous();
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(flat.data_ptr<double>()[i], expected[i], kRounding) << i;
}

TEST_F(Worked, Prior) { expect_values(prior.exp(), {.665241, .244728, .090031}); }

TEST_F(Worked, RagSequence) { expect_values(rag_sequence(prior, lik), {1.725974}); }

TEST_F(Worked, RagToken) { expect_values(rag_token(prior, lik), {1.642631}); }

TEST_F(Worked, Posterior) { expect_values(posterior(prior, lik), {.747463, .247479, .005058}); }

TEST_F(Worked, TheGradientOfTheSequenceFormIsPriorMinusPosterior) {
  const at::Tensor leaf = score.detach().clone().set_requires_grad(true);
  const at::Tensor loss = emdr2(log_prior(leaf), lik, /*per_sequence=*/true);
  expect_values(torch::autograd::grad({loss.sum()}, {leaf})[0], {-.082222, -.002750, .084973});
}

TEST_F(Worked, Emdr2HasTheValueOfTheMarginals) {
  expect_values(emdr2(prior, lik, true), {1.725974});
  expect_values(emdr2(prior, lik, false), {1.642631});
}

TEST_F(Worked, PDistOfTheMeanLikelihood) {
  const at::Tensor target = pdist_target(prior, lik, tokens, {});
  expect_values(target, {.460344, .436720, .102936});
  expect_values(kl_to_prior(target, prior, /*mean=*/false), {.0972255});
  expect_values(kl_to_prior(target, prior, /*mean=*/true), {.0324085});
}

TEST_F(Worked, PDistOfTheSequenceLikelihood) {
  const at::Tensor target = pdist_target(prior, lik, tokens, {.per_sequence = true});
  expect_values(target, {.512821, .461538, .025641});
  expect_values(kl_to_prior(target, prior, /*mean=*/false), {.1271555});
}

TEST_F(Worked, RealmAveragesOverTheMaskedTokens) {
  expect_values(realm(prior, lik, tokens), {1.642631 / 2});
}

TEST(Loop, PrefersTheDocumentWhoseAbsenceHurtsMost) {
  const at::Tensor prior = log_prior(table({0, 0}, {1, 2}));
  const at::Tensor without = table({.2, .8}, {1, 2, 1}).log();  // without 0 the answer is unlikely
  // softmax(-log .2, -log .8) = (5, 1.25) / 6.25
  expect_values(loop_target(prior, without, table({1}, {1}), {}), {.8, .2});
}

TEST(ADist, IsTheSoftmaxOfAttentionMassOverTheTemperature) {
  const at::Tensor prior = log_prior(table({0, 0}, {1, 2}));
  // softmax(log 3, log 1)
  expect_values(adist_target(prior, table({std::log(3.0) / 2, 0}, {1, 2}), {.temperature = 0.5}),
                {.75, .25});
}

TEST(Objectives, AbsentCandidatesAndTokensChangeNothing) {
  const at::Tensor score = table({2, 1, 0}, {1, 3});
  const at::Tensor lik = table({.5, .4, .2, .9, .1, .1}, {1, 3, 2}).log();
  // The same input beside a longer one: one more (absent) candidate, one more (absent) token.
  at::Tensor wide_score = at::full({2, 4}, kAbsent, at::kDouble);
  wide_score[0].narrow(0, 0, 3).copy_(score[0]);
  wide_score[1].copy_(table({0, 1, 2, 3}, {4}));
  at::Tensor wide_lik = at::zeros({2, 4, 3}, at::kDouble);
  wide_lik[0].narrow(0, 0, 3).narrow(1, 0, 2).copy_(lik[0]);
  wide_lik[1].fill_(-1.0);
  const at::Tensor tokens = table({2, 3}, {2});
  const at::Tensor prior = log_prior(wide_score);
  EXPECT_NEAR(rag_sequence(prior, wide_lik)[0].item<double>(), 1.725974, kRounding);
  EXPECT_NEAR(rag_token(prior, wide_lik)[0].item<double>(), 1.642631, kRounding);
  const at::Tensor target = pdist_target(prior, wide_lik, tokens, {});
  EXPECT_EQ(target[0][3].item<double>(), 0.0);
  EXPECT_NEAR(kl_to_prior(target, prior, false)[0].item<double>(), .0972255, kRounding);
  EXPECT_NEAR(kl_to_prior(target, prior, true)[0].item<double>(), .0324085, kRounding);
}

TEST(Objectives, AnInputWithoutCandidatesGivesZeroAndNoGradient) {
  const at::Tensor score = at::full({1, 2}, kAbsent, at::kDouble).set_requires_grad(true);
  const at::Tensor lik = at::zeros({1, 2, 1}, at::kDouble), tokens = table({1}, {1});
  const at::Tensor prior = log_prior(score);
  const at::Tensor sum = rag_sequence(prior, lik) + rag_token(prior, lik) +
                         kl_to_prior(pdist_target(prior, lik, tokens, {}), prior, false);
  EXPECT_EQ(sum.item<double>(), 0.0);
  EXPECT_EQ(torch::autograd::grad({sum.sum()}, {score})[0].abs().sum().item<double>(), 0.0);
}

struct Objective {
  const char* name;
  bool trains_reader;
  std::function<at::Tensor(const at::Tensor& score, const at::Tensor& lik)> loss;
};

class Gradient : public testing::TestWithParam<Objective> {};

TEST_P(Gradient, EqualsFiniteDifferences) {
  at::Tensor score = table({2, 1, 0, .5, -1, kAbsent}, {2, 3});
  at::Tensor lik = table({.5, .4, .2, .9, .1, .1, .3, 1, .6, 1, 1, 1}, {2, 3, 2}).log();
  const at::Tensor weight = table({1.0, 0.7}, {2});
  const auto value = [&](const at::Tensor& s, const at::Tensor& l) {
    return (GetParam().loss(s, l) * weight).sum();
  };
  const at::Tensor s = score.clone().set_requires_grad(true),
                   l = lik.clone().set_requires_grad(true);
  const auto grads =
      torch::autograd::grad({value(s, l)}, {s, l}, {}, std::nullopt, false, /*allow_unused=*/true);
  const double h = 1e-6;  // central differences: error of order h^2, rounding 1e-16 / h
  // What is detached is held at its value: targets are made from `fixed`, not from what is moved.
  const auto check = [&](at::Tensor moved, const at::Tensor& grad, bool expects) {
    if (!expects) {
      EXPECT_TRUE(!grad.defined() || grad.abs().sum().item<double>() == 0.0);
      return;
    }
    ASSERT_TRUE(grad.defined());
    double* x = moved.data_ptr<double>();
    const at::Tensor flat = grad.contiguous();
    for (int64_t i = 0; i < moved.numel(); ++i) {
      if (x[i] < kAbsent / 2) continue;
      const double before = x[i];
      x[i] = before + h;
      const double above = value(score, lik).item<double>();
      x[i] = before - h;
      const double below = value(score, lik).item<double>();
      x[i] = before;
      EXPECT_NEAR(flat.data_ptr<double>()[i], (above - below) / (2 * h), 1e-8) << i;
    }
  };
  check(score, grads[0], true);
  check(lik, grads[1], GetParam().trains_reader);
}

const at::Tensor& two_tokens() {
  static const at::Tensor tokens = table({2, 1}, {2});
  return tokens;
}

at::Tensor distilled(const at::Tensor& score, const at::Tensor& target) {
  return kl_to_prior(target, log_prior(score), /*mean=*/false);
}

INSTANTIATE_TEST_SUITE_P(
    All, Gradient,
    testing::Values(
        Objective{"rag_sequence", true,
                  [](const auto& s, const auto& l) { return rag_sequence(log_prior(s), l); }},
        Objective{"rag_token", true,
                  [](const auto& s, const auto& l) { return rag_token(log_prior(s), l); }},
        Objective{
            "realm", true,
            [](const auto& s, const auto& l) { return realm(log_prior(s), l, two_tokens()); }},
        Objective{"emdr2", false,
                  [](const auto& s, const auto& l) { return emdr2(log_prior(s), l, false); }},
        Objective{"emdr2_sequence", false,
                  [](const auto& s, const auto& l) { return emdr2(log_prior(s), l, true); }},
        Objective{"pdist", false,
                  [](const auto& s, const auto& l) {
                    return distilled(s, pdist_target(log_prior(s), l, two_tokens(), {}));
                  }},
        Objective{"loop", false,
                  [](const auto& s, const auto& l) {
                    return distilled(
                        s, loop_target(log_prior(s), l, two_tokens(), {.temperature = 0.5}));
                  }},
        Objective{"adist", false,
                  [](const auto& s, const auto& l) {
                    return distilled(s, adist_target(log_prior(s), l.sum(2), {}));
                  }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace contexture::model::objectives
