// The published encoder as blocks: the embeddings of model/sentence_encoder, of a plain composition
// in fp64, and gradients against finite differences.
#include "model/text_tower.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "model/bert_weights.h"
#include "model/model.h"
#include "model/sentence_encoder.h"

namespace contexture::model {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(CONTEXTURE_SOURCE_DIR) / "tests/golden";
const fs::path kTiny = kGolden / "tiny_bert";
const fs::path kMiniLM = CONTEXTURE_MINILM;  // where tools/minilm puts it

ModelConfig small(const fs::path& folder) {
  ModelConfig config;
  config.vocab = 40;
  config.width = 16;
  config.heads = config.kv_heads = 2;
  config.head_width = 8;
  config.ffn_width = 24;
  config.encoder_layers = config.decoder_layers = 1;
  config.text_encoder = folder.string();
  config.read_text_encoder(folder);
  return config;
}

Json goldens() { return read_json_file((kGolden / "sentence_encoder.json").string()); }

// The texts of the goldens as queries or documents.
std::vector<Sequence> golden_texts(const char* which) {
  std::vector<Sequence> out;
  const Json json = goldens();
  for (const Json& entry : json[which])
    out.push_back({{}, nullptr, out.size(), entry["ids"].get<std::vector<int32_t>>()});
  return out;
}

std::vector<const Sequence*> pointers(const std::vector<Sequence>& sequences) {
  std::vector<const Sequence*> out;
  for (const Sequence& s : sequences) out.push_back(&s);
  return out;
}

void load_published(parallel::ParameterStore& store, const ModelConfig& config) {
  const at::NoGradGuard no_grad;
  const auto weights = ForeignWeights::open(config.text_encoder);
  for (const TextParameter& parameter : text_parameters(*config.text))
    store.at(parameter.name).value.detach().copy_(published_value(weights, parameter));
}

at::Tensor embed(const ModelConfig& config, at::ScalarType dtype, const std::string& tower,
                 const std::vector<Sequence>& texts) {
  Model model(config);
  model.materialise(dtype, at::kCPU, 1);
  load_published(model.parameters(), config);
  return model.embed(tower, pointers(texts), /*max_rows=*/100);
}

at::Tensor unit(const at::Tensor& rows) { return rows / rows.norm(2, {1}, true); }

// What SentenceEncoder makes of them, at length 1.
at::Tensor reference(const ModelConfig& config, const std::vector<Sequence>& texts) {
  const SentenceEncoder encoder(*config.text, ForeignWeights::open(config.text_encoder),
                                EncoderPrecision::kFp32);
  std::vector<std::span<const int32_t>> ids;
  for (const Sequence& s : texts) ids.emplace_back(s.words);
  return unit(encoder.embed(ids));
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// One text, step by step in fp64, from the published tensors by name.
at::Tensor plainly(const ModelConfig& config, const Sequence& text) {
  const SentenceEncoderConfig& c = *config.text;
  const auto weights = ForeignWeights::open(config.text_encoder);
  const int64_t D = c.width, F = c.ffn_width, K = D / c.heads,
                N = static_cast<int64_t>(text.words.size());
  const auto get = [&](const std::string& name, at::IntArrayRef shape) {
    return bert_weight(weights, name, shape).to(at::kDouble);
  };
  const auto dense = [&](const at::Tensor& x, const std::string& name, int64_t out, int64_t in) {
    return x.mm(get(name + ".weight", {out, in}).t()) + get(name + ".bias", {out});
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor centred = x - x.mean(1, true);
    return centred / (centred.square().mean(1, true) + c.norm_eps).sqrt() *
               get(name + ".LayerNorm.weight", {D}) +
           get(name + ".LayerNorm.bias", {D});
  };
  const std::vector<int64_t> ids(text.words.begin(), text.words.end());
  at::Tensor x =
      norm(get("embeddings.word_embeddings.weight", {c.vocab, D}).index_select(0, at::tensor(ids)) +
               get("embeddings.position_embeddings.weight", {c.positions, D}).narrow(0, 0, N) +
               get("embeddings.token_type_embeddings.weight", {c.types, D})[0],
           "embeddings");
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string layer = concat("encoder.layer.", i, ".");
    const at::Tensor q = dense(x, layer + "attention.self.query", D, D),
                     k = dense(x, layer + "attention.self.key", D, D),
                     v = dense(x, layer + "attention.self.value", D, D);
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < c.heads; ++h) {
      const auto head = [&](const at::Tensor& t) { return t.narrow(1, h * K, K); };
      heads.push_back(
          (head(q).mm(head(k).t()) / std::sqrt(static_cast<double>(K))).softmax(1).mm(head(v)));
    }
    x = norm(x + dense(at::cat(heads, 1), layer + "attention.output.dense", D, D),
             layer + "attention.output");
    const at::Tensor up = dense(x, layer + "intermediate.dense", F, D);
    const at::Tensor gelu = up * 0.5 * (1 + (up / std::sqrt(2.0)).erf());
    x = norm(x + dense(gelu, layer + "output.dense", D, F), layer + "output");
  }
  return unit((c.mean_pooling ? x.mean(0) : x[0]).unsqueeze(0))[0];
}

TEST(TextTower, EmbedsAsSentenceEncoderDoes) {
  ModelConfig config = small(kTiny);
  const auto texts = golden_texts("tiny");
  for (const bool mean : {false, true}) {
    config.text->mean_pooling = mean;
    const at::Tensor want = reference(config, texts);
    for (const char* tower : {"query", "doc"}) {
      // fp32 sums in another order; unit-length vectors
      EXPECT_LT(largest_difference(embed(config, at::kFloat, tower, texts), want), 2e-6) << mean;
      EXPECT_LT(largest_difference(embed(config, at::kDouble, tower, texts), want), 2e-6) << mean;
    }
    const at::Tensor bf16 = embed(config, at::kBFloat16, "doc", texts);
    EXPECT_GT(at::cosine_similarity(bf16, want, 1).min().item<double>(), 0.995)
        << "8 bits a number";
  }
}

TEST(TextTower, InFp64EqualsThePlainComposition) {
  ModelConfig config = small(kTiny);
  const auto texts = golden_texts("tiny");
  for (const bool mean : {false, true}) {
    config.text->mean_pooling = mean;
    const at::Tensor got = embed(config, at::kDouble, "doc", texts);
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_LT(largest_difference(got[static_cast<int64_t>(i)], plainly(config, texts[i])), 1e-12)
          << i << ": fp64 rounding";
    }
  }
}

TEST(TextTower, GivesTheReferencesEmbeddingsOfMiniLM) {
  if (!fs::exists(kMiniLM)) GTEST_SKIP() << "run tools/minilm first";
  const ModelConfig config = small(kMiniLM);
  std::vector<at::Tensor> rows;
  const Json json = goldens();
  for (const Json& entry : json["minilm"])
    rows.push_back(at::tensor(entry["embedding"].get<std::vector<double>>()));
  // The goldens are fp32 sums in another order, of unit length.
  EXPECT_LT(largest_difference(embed(config, at::kFloat, "query", golden_texts("minilm")),
                               at::stack(rows)),
            1e-5);
}

TEST(TextTower, ItsParametersAreThePublishedOnes) {
  for (const char* fusion : {"memory", "fid", "prefix"}) {
    ModelConfig config = small(kTiny);
    config.fusion = fusion;
    const Model model(config);
    std::map<std::string, std::vector<int64_t>> declared, published;
    for (const auto& p : model.parameters().all()) {
      if (p->name.rfind("retriever.", 0) == 0) declared[p->name] = p->shape;
    }
    for (const TextParameter& p : text_parameters(*config.text)) published[p.name] = p.shape();
    EXPECT_EQ(declared, published) << fusion;
  }
}

TEST(TextTower, GradientsMatchFiniteDifferences) {
  const ModelConfig config = small(kTiny);
  parallel::ParameterStore store;
  parallel::BlockList blocks;
  add_text_tower(store, *config.text, 0.0, "query", blocks);
  add_text_tower(store, *config.text, 0.0, "doc", blocks);
  store.materialise(at::kDouble, at::kCPU, 1);
  load_published(store, config);
  const std::vector<Sequence> queries{{{}, nullptr, 1, {2, 9, 30, 3}}, {{}, nullptr, 2, {2, 3}}};
  const std::vector<Sequence> documents{{{}, nullptr, 3, {2, 5, 6, 7, 8, 9, 41, 42, 3}}};
  parallel::Feeds feeds;
  add_text_feeds(*config.text, "query.text", pointers(queries), at::kCPU, feeds);
  add_text_feeds(*config.text, "doc.text", pointers(documents), at::kCPU, feeds);
  const parallel::Pass pass(feeds, /*training=*/true);
  const parallel::Executor executor(blocks, {"doc.text.layer.1"});  // one layer computed anew
  const auto direction = [](const std::string& name, at::IntArrayRef shape) {
    return parallel::draw_initial("direction " + name, shape.vec(), parallel::Init::normal(1.0), 7);
  };
  const auto total = [&] {
    const auto run = executor.forward(pass, /*grad=*/false);
    double sum = 0.0;
    for (const char* wire : {"query.embedding", "doc.embedding"})
      sum += (run.wire(wire) * direction(wire, run.wire(wire).sizes())).sum().item<double>();
    return sum;
  };
  auto run = executor.forward(pass, /*grad=*/true);
  parallel::WireValues roots;
  for (const char* wire : {"query.embedding", "doc.embedding"})
    roots[wire] = direction(wire, run.wire(wire).sizes());
  executor.backward(std::move(run), std::move(roots));
  const double h = 1e-6;
  for (const auto& p : store.all()) {
    ASSERT_TRUE(p->grad.defined()) << p->name;
    const at::Tensor value = p->value.detach(), before = value.clone(),
                     along = direction(p->name, p->shape);
    value.copy_(before + h * along);
    const double above = total();
    value.copy_(before - h * along);
    const double below = total();
    value.copy_(before);
    const double want = (above - below) / (2 * h), got = (p->grad * along).sum().item<double>();
    // error of order h^2, and rounding over h
    EXPECT_NEAR(got, want, 1e-6 * std::max(1.0, std::abs(want))) << p->name;
  }
}

TEST(TextTower, WhatTheEncoderCannotReadIsRefused) {
  const ModelConfig config = small(kTiny);
  parallel::Feeds feeds;
  const auto add = [&](std::vector<int32_t> words) {
    const Sequence text{{}, nullptr, 0, std::move(words)};
    add_text_feeds(*config.text, "doc.text", {&text}, at::kCPU, feeds);
  };
  EXPECT_THROW(add({}), DataError);
  EXPECT_THROW(add({2, 105, 3}), DataError);
  EXPECT_THROW(add(std::vector<int32_t>(49, 5)), DataError);
  add(std::vector<int32_t>(48, 5));
}

TEST(TextTower, TheTokenLimitMustFitTheEncoder) {
  ModelConfig config = small(kTiny);
  EXPECT_EQ(config.text->max_tokens, 48);
  config.text_encoder_tokens = 64;
  config.read_text_encoder(kTiny);
  EXPECT_EQ(config.text->max_tokens, 64);
  config.text_encoder_tokens = 65;
  EXPECT_THROW(config.read_text_encoder(kTiny), UsageError);
  config.text_encoder_tokens = 0;
  config.towers = "separate";
  EXPECT_THROW(config.validate(), UsageError);
}

}  // namespace
}  // namespace contexture::model
