// attention against its reference.
#include <ATen/Parallel.h>

#include <random>

#include "core/error.h"
#include "model/ops.h"
#include "ops_check.h"

namespace contexture::model::ops {
namespace {

const auto kOptions = at::TensorOptions(at::kDouble);

at::Tensor longs(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

struct Layout {
  std::string name;
  Segments segments;
  int64_t num_queries, num_keys;
};

Layout self(const std::vector<int64_t>& begin, bool causal) {
  return {causal ? "causal self" : "self", self_segments(longs(begin), causal), begin.back(),
          begin.back()};
}

Layout crossing(const std::string& name, const std::vector<int64_t>& query_begin,
                const std::vector<int64_t>& segment_begin, const std::vector<int64_t>& key_begin,
                const std::vector<int64_t>& key_end, int64_t num_keys, bool causal = false) {
  return {name,
          {longs(query_begin), longs(segment_begin), longs(key_begin), longs(key_end), causal},
          query_begin.back(),
          num_keys};
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      self({0, 1}, false),
      self({0, 7, 7, 18, 70}, false),
      self({0, 7, 7, 18, 70}, true),
      self({0, 300}, false),
      self({0, 2, 302}, true),
      self({0}, false),
      crossing("no keys at all", {0, 3, 5}, {0, 0, 1}, {2}, {2}, 4),
      crossing("zero key rows", {0, 3}, {0, 1}, {0}, {0}, 0),
      crossing("shared documents", {0, 28, 53, 57, 58}, {0, 3, 5, 8, 9},
               {0, 40, 90, 40, 0, 90, 90, 40, 150}, {40, 90, 130, 90, 40, 130, 130, 90, 170}, 180),
      crossing("overlapping runs", {0, 20, 40}, {0, 1, 3}, {3, 0, 10}, {20, 11, 30}, 33),
      crossing("long lists", {0, 12, 24}, {0, 2, 4}, {0, 200, 100, 450}, {300, 450, 401, 500}, 500),
      crossing("causal, more keys than queries", {0, 9, 30}, {0, 2, 3}, {0, 30, 40}, {17, 33, 80},
               80, true),
      crossing("causal, fewer keys than queries", {0, 20, 25}, {0, 2, 2}, {0, 8}, {4, 13}, 13,
               true),
      crossing("rows without an owner", {2, 5, 30}, {0, 1, 2}, {0, 4}, {4, 24}, 31),
      crossing("many short segments", {0, 15}, {0, 80}, std::vector<int64_t>(80, 5),
               std::vector<int64_t>(80, 8), 9),
  };
  return all;
}

struct Heads {
  int64_t H, G, K;
};

using Attend = decltype(&reference::attention);

Operator attend(const Segments& segments, Attend with = &attention) {
  return [=](const std::vector<at::Tensor>& x) { return with(x[0], x[1], x[2], segments, x[3]); };
}

// The CPU's kernels, and what other devices take.
constexpr std::pair<const char*, Attend> kForms[] = {{"kernel", &attention},
                                                     {"padded", &padded::attention}};

std::vector<at::Tensor> attention_inputs(const Layout& layout, const Heads& heads, bool with_bias) {
  const auto& [H, G, K] = heads;
  const int64_t extra = layout.num_queries == 30 ? 3 : 0;  // unowned rows at the end as well
  return {at::randn({layout.num_queries + extra, H, K}, kOptions) * 1.5,
          at::randn({layout.num_keys, G, K}, kOptions),
          at::randn({layout.num_keys, G, K}, kOptions),
          with_bias ? at::randn({layout.segments.num_segments()}, kOptions) : at::Tensor()};
}

TEST(Attention, MatchesTheReferenceForEveryLayoutAndType) {
  at::manual_seed(1);
  const std::vector<Heads> all_heads{{4, 2, 32}, {3, 1, 5}, {2, 2, 64}, {8, 1, 16}, {1, 1, 1}};
  for (const auto type : all_types()) {
    for (const auto& layout : layouts()) {
      for (size_t i = 0; i < all_heads.size(); ++i) {
        const auto inputs = attention_inputs(layout, all_heads[i], i % 2 == 0);
        for (const auto& [name, form] : kForms) {
          expect_same(attend(layout.segments, form), attend(layout.segments, &reference::attention),
                      inputs, type, layout.name + ", heads " + std::to_string(i) + ", " + name);
        }
      }
    }
  }
}

TEST(Attention, MatchesTheReferenceForRandomLayouts) {
  at::manual_seed(2);
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  for (int round = 0; round < 30; ++round) {
    const int64_t S = below(6), M = below(200), G = 1 + below(3), H = G * (1 + below(3));
    std::vector<int64_t> query_begin{0}, segment_begin{0}, key_begin, key_end;
    for (int64_t s = 0; s < S; ++s) {
      query_begin.push_back(query_begin.back() + below(60));
      for (int64_t p = below(4); p > 0; --p) {
        key_begin.push_back(below(M + 1));
        key_end.push_back(key_begin.back() + below(M - key_begin.back() + 1));
      }
      segment_begin.push_back(int64_t(key_begin.size()));
    }
    const Layout layout = crossing("random " + std::to_string(round), query_begin, segment_begin,
                                   key_begin, key_end, M, round % 2 == 0);
    const auto inputs = attention_inputs(layout, {H, G, 1 + below(70)}, round % 3 == 0);
    for (const auto& [name, form] : kForms) {
      expect_same(attend(layout.segments, form), attend(layout.segments, &reference::attention),
                  inputs, at::kDouble, layout.name + ", " + name);
    }
  }
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  at::manual_seed(4);
  const Layout layout = layouts()[9];  // overlapping runs
  const auto inputs = attention_inputs(layout, {2, 1, 4}, true);
  const auto op = attend(layout.segments);
  const auto results = run_with_gradients(op, inputs);
  const auto loss = [&](const std::vector<at::Tensor>& x) {
    const auto y = op(x);
    return ((at::arange(y.numel(), at::kDouble) * 0.7 + 0.3).sin() * y.flatten())
        .sum()
        .item<double>();
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto direction = at::randn_like(inputs[i]);
    auto up = inputs, down = inputs;
    up[i] = inputs[i] + 1e-5 * direction;
    down[i] = inputs[i] - 1e-5 * direction;
    const double slope = (loss(up) - loss(down)) / 2e-5;
    const double expected = (results[i + 1] * direction).sum().item<double>();
    // The central difference is off by step^2 * third derivative, and by rounding / step.
    EXPECT_NEAR(slope, expected, 1e-7 * std::max(1.0, std::abs(expected))) << "input " << i;
  }
}

TEST(Attention, ReadsSlicesOfOneFusedProjection) {
  at::manual_seed(5);
  const Layout layout = layouts()[1];
  const int64_t N = layout.num_queries;
  for (const auto type : all_types()) {
    const auto qkv = at::randn({N, 8 * 16}, kOptions).to(type);
    const auto op = [&](Attend form) {
      return [&layout, form, N](const std::vector<at::Tensor>& x) {
        const auto heads = x[0].view({N, 8, 16});
        return attend(layout.segments, form)(
            {heads.slice(1, 0, 4), heads.slice(1, 4, 6), heads.slice(1, 6), at::Tensor()});
      };
    };
    for (const auto& [name, form] : kForms)
      expect_same(op(form), op(&reference::attention), {qkv}, type, name);
    const auto columns = at::randn({4, N, 16}, kOptions).to(type).transpose(0, 1);
    expect_same(attend(layout.segments), attend(layout.segments, &reference::attention),
                {columns, columns, columns, at::Tensor()}, type);
  }
}

TEST(Attention, GivesTheSameBitsOnOneAndTwoThreads) {
  at::manual_seed(6);
  const int threads = at::get_num_threads();
  for (const auto& layout : layouts()) {
    auto inputs = attention_inputs(layout, {4, 2, 32}, true);
    for (size_t i = 0; i < 3; ++i) inputs[i] = inputs[i].to(at::kFloat);
    at::set_num_threads(1);
    const auto one = run_with_gradients(attend(layout.segments), inputs);
    at::set_num_threads(2);
    const auto two = run_with_gradients(attend(layout.segments), inputs);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i])) << layout.name;
  }
  at::set_num_threads(threads);
}

TEST(Attention, ASequenceAloneGivesTheSameBitsAsAmongOthers) {
  at::manual_seed(7);
  for (const bool causal : {false, true}) {
    const std::vector<int64_t> begin{0, 11, 13, 150, 420};
    const auto x = at::randn({420, 2, 32});
    const auto together = attention(x, x, x, self_segments(longs(begin), causal));
    for (size_t s = 0; s + 1 < begin.size(); ++s) {
      const auto own = x.slice(0, begin[s], begin[s + 1]);
      const auto alone = attention(own, own, own, self_segments(longs({0, own.size(0)}), causal));
      EXPECT_TRUE(at::equal(alone, together.slice(0, begin[s], begin[s + 1]))) << "sequence " << s;
    }
  }
}

TEST(Attention, PassesNotANumberOn) {
  auto q = at::randn({12, 1, 16});
  q[3][0][5] = NAN;
  const auto y = attention(q, q, q, self_segments(longs({0, 12}), false));
  EXPECT_TRUE(at::isnan(y[3]).any().item<bool>());
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const auto x = at::zeros({4, 2, 8});
  const auto fine = self_segments(longs({0, 4}), false);
  EXPECT_THROW(attention(x, at::zeros({4, 3, 8}), at::zeros({4, 3, 8}), fine), UserError);
  EXPECT_THROW(attention(x, x, at::zeros({4, 2, 4}), fine), UserError);
  EXPECT_THROW(attention(x, x, x, fine, at::zeros({2})), UserError);
  EXPECT_THROW(attention(x, x, x, self_segments(longs({0, 5}), false)), UserError);
  EXPECT_THROW(attention(x, x, x, self_segments(longs({0, 3, 2}), false)), UserError);
}

TEST(Attention, TracesShapesAndGradientsOnMetaTensors) {
  const auto q =
      at::empty({100000, 32, 128}, at::TensorOptions().device(at::kMeta)).set_requires_grad(true);
  const auto k =
      at::empty({100000, 8, 128}, at::TensorOptions().device(at::kMeta)).set_requires_grad(true);
  const auto y = attention(q, k, k, self_segments(longs({0, 40000, 100000}), true));
  EXPECT_EQ(y.sizes(), q.sizes());
  const auto grads = torch::autograd::grad({y}, {q, k}, {at::empty_like(y)});
  EXPECT_EQ(grads[1].sizes(), k.sizes());
}

TEST(AttentionShare, CountsKeysByTheirWeights) {
  at::manual_seed(9);
  for (const auto& layout : layouts()) {
    const auto inputs = attention_inputs(layout, {4, 2, 8}, true);
    const auto& s = layout.segments;
    if (s.causal) continue;
    const auto weight_MG = at::rand({inputs[1].size(0), inputs[1].size(1)});
    const auto share = attention_share(inputs[0], inputs[1], s, inputs[3], weight_MG);
    // Values that are all equal to the weight come out of attention as its mean.
    const auto v =
        weight_MG.unsqueeze(2).expand_as(inputs[2]).contiguous().to(inputs[2].scalar_type());
    const auto y = attention(inputs[0], inputs[1], v, s, inputs[3]);
    for (int64_t i = 0; i < s.num_sequences(); ++i) {
      const int64_t begin = s.query_begin[i].item<int64_t>(),
                    end = s.query_begin[i + 1].item<int64_t>();
      if (begin == end) continue;
      const auto of_sequence = share.slice(0, s.segment_begin[i].item<int64_t>(),
                                           s.segment_begin[i + 1].item<int64_t>());
      EXPECT_NEAR(of_sequence.sum().item<double>(), y.slice(0, begin, end).mean().item<double>(),
                  1e-5)
          << layout.name;  // fp32 sums
    }
  }
}

TEST(AttentionShare, SumsToOneOverASequencesSegments) {
  at::manual_seed(8);
  for (const auto& layout : layouts()) {
    const auto inputs = attention_inputs(layout, {4, 2, 8}, true);
    const auto share = attention_share(inputs[0], inputs[1], layout.segments, inputs[3]);
    const auto& s = layout.segments;
    for (int64_t i = 0; i < s.num_sequences(); ++i) {
      const auto p = s.segment_begin.slice(0, i, i + 2);
      const auto run = [&](const at::Tensor& t) {
        return t.slice(0, p[0].item<int64_t>(), p[1].item<int64_t>());
      };
      const auto keys = (run(s.key_end) - run(s.key_begin)).sum().item<int64_t>();
      const auto queries = (s.query_begin[i + 1] - s.query_begin[i]).item<int64_t>();
      if (keys == 0 || queries == 0 || (s.causal && keys < queries)) continue;
      EXPECT_NEAR(run(share).sum().item<double>(), 1.0, 1e-5) << layout.name;  // fp32 sums
      // The share of a segment is what attention returns when its values are one and all others
      // zero.
      const int64_t first = p[0].item<int64_t>();
      auto v = at::zeros_like(inputs[2]);
      const int64_t begin = s.key_begin[first].item<int64_t>(),
                    end = s.key_end[first].item<int64_t>();
      if (layout.name != "causal self" && layout.name != "self") continue;
      v.slice(0, begin, end).fill_(1.0);
      const auto y = attention(inputs[0], inputs[1], v, s, inputs[3]);
      EXPECT_NEAR(share[first].item<double>(),
                  y.slice(0, s.query_begin[i].item<int64_t>(), s.query_begin[i + 1].item<int64_t>())
                      .mean()
                      .item<double>(),
                  1e-5);  // fp32 sums
    }
  }
}

}  // namespace
}  // namespace contexture::model::ops
