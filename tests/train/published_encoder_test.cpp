// Training that starts from a published encoder (model.text_encoder): what it starts from, what it
// embeds, that a run needs nothing but its folder, and the way back to a Hugging Face folder.
#include "train/published_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "model/bert_weights.h"
#include "prepared.h"
#include "retriever/text_encoder.h"
#include "tiny_world.h"
#include "train/evaluator.h"
#include "train/trainer.h"

namespace contexture::train {
namespace {

namespace fs = std::filesystem;

// A world with a copy of the encoder's folder, which tests change and delete.
class PublishedEncoder : public testing::Test {
 protected:
  void SetUp() override {
    fs::copy(with_tiny_bert(RunConfig()).model.text_encoder, folder(), fs::copy_options::recursive);
  }
  fs::path folder() const { return fs::path(world_.path()) / "bert"; }
  RunConfig config(const std::string& precision = "fp64") const {
    RunConfig c = with_tiny_bert(world_.config(precision));
    c.model.text_encoder = folder().string();
    return c;
  }
  template <typename Error>
  std::string refusal(const RunConfig& config) const {
    try {
      Trainer(config, false);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  // By `index build --encoder`'s encoder, at length 1.
  at::Tensor embedded(const fs::path& encoder, const std::vector<std::string>& texts) const {
    const auto loaded = retriever::TextEncoder::load(encoder, model::EncoderPrecision::kFp32);
    std::vector<float> numbers = loaded.embed(texts);
    const at::Tensor rows =
        at::from_blob(numbers.data(), {static_cast<int64_t>(texts.size()), loaded.dim()},
                      at::kFloat)
            .clone();
    return rows / rows.norm(2, {1}, true);
  }
  static std::vector<std::string> document_texts(Session& session) {
    std::vector<std::string> out;
    for (int64_t row = 0; row < session.documents().size(); ++row) {
      const data::Document& d = session.corpus().document(row);
      out.push_back(retriever::document_text(d.title, d.text));
    }
    return out;
  }
  TinyWorld world_;
};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST_F(PublishedEncoder, TheFirstIndexHoldsThePublishedEncodersEmbeddings) {
  for (const char* precision : {"fp32", "fp64"}) {
    data::BadRecords bad;
    Session session(config(precision), bad);
    AdamW optimizer(session.config().optimizer, session.engine());
    session.start_weights(optimizer);
    session.make_retriever();
    // fp32 sums in another order, of unit length
    EXPECT_LT(
        largest_difference(session.retriever().state().vectors.slice(0, session.documents().size()),
                           embedded(folder(), document_texts(session))),
        2e-6)
        << precision;
    data::Example example;
    example.question = "What is the capital of Land B?";
    const PreparedInput input = session.encoder().encode(example, "", nullptr, 0);
    EXPECT_LT(largest_difference(session.embed("query", {&input.query}),
                                 embedded(folder(), {example.question})),
              2e-6)
        << precision;
  }
}

TEST_F(PublishedEncoder, MastersHoldThePublishedValuesExactlyInBf16) {
  data::BadRecords bad;
  Session session(config("bf16"), bad);
  AdamW optimizer(session.config().optimizer, session.engine());
  session.start_weights(optimizer);
  parallel::NamedTensors masters, moments;
  optimizer.save(masters, moments);
  const auto weights = model::ForeignWeights::open(folder());
  for (const auto& parameter : model::text_parameters(*session.config().model.text)) {
    const at::Tensor published = model::published_value(weights, parameter);
    EXPECT_TRUE(at::equal(masters.at(parameter.name), published)) << parameter.name;
    EXPECT_TRUE(at::equal(session.model().parameters().at(parameter.name).value.detach(),
                          published.to(at::kBFloat16)))
        << parameter.name;
  }
}

TEST_F(PublishedEncoder, GradientsOfAStepEqualFiniteDifferences) {
  RunConfig c = config();
  c.data.group_size = 1;
  c.train.batch_size = 4;
  c.data.inverse_cloze_per_step = 2;
  Prepared made(c, 1);
  Session& session = made.session;
  AdamW optimizer(session.config().optimizer, session.engine());
  session.start_weights(optimizer);
  const auto total = [&] {
    const StepStats stats = made.forward_backward();
    return stats.loss + c.retriever.contrastive_weight() * stats.contrastive;
  };
  total();
  std::map<std::string, at::Tensor> grads;
  for (const auto& p : session.model().parameters().all()) {
    if (p->grad.defined() && p->name.rfind("retriever.", 0) == 0) grads[p->name] = p->grad.clone();
  }
  EXPECT_EQ(grads.size(), model::text_parameters(*session.config().model.text).size());
  expect_differences(session, grads, total);
}

// Losses and figures of a run's metrics, as text.
std::vector<std::string> records(const std::string& run) {
  std::ifstream file(run + "/metrics.jsonl");
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    if (record.contains("loss"))
      out.push_back(concat(record["loss"].dump(), " ", record["contrastive"].dump(), " ",
                           record["grad_norm"].dump()));
    if (record.contains("eval")) out.push_back(record["eval"].dump());
  }
  return out;
}

TEST_F(PublishedEncoder, ARunGoesOnBitForBitWithoutTheFolderItStartedFrom) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    RunConfig whole = config(precision);
    whole.run.dir = concat(world_.path(), "/whole-", precision);
    whole.train.steps = 8;
    whole.model.dropout = 0.1;
    whole.retriever.refresh_every =
        4;  // so that evaluation finds a fresh index, as one of an opened run is
    whole.eval.every = 4;
    whole.eval.examples = 4;
    Trainer(whole, false).run();
    RunConfig parts = whole;
    parts.run.dir = concat(world_.path(), "/parts-", precision);
    parts.data.tokenizer = whole.run.dir + "/tokenizer.model";
    parts.train.stop_at = 5;
    Trainer(parts, false).run();
    fs::rename(folder(), folder().string() + ".away");
    parts.train.stop_at = 0;
    Trainer(parts, true).run();
    EXPECT_EQ(records(parts.run.dir), records(whole.run.dir)) << precision;
    EXPECT_EQ(records(parts.run.dir).size(), 10U) << precision;

    data::BadRecords bad;
    const auto opened = open_run(settings_of(parts.run.dir, {}), bad);
    const Evaluator evaluator(*opened);
    const PictureSet set(opened->config(), "train.jsonl", {}, opened->documents(), bad);
    const Json figures = evaluator.quick(set, Evaluator::choose(set, 4));
    EXPECT_EQ(figures.dump(), records(parts.run.dir).back()) << precision;
    fs::rename(folder().string() + ".away", folder());
  }
}

TEST_F(PublishedEncoder, AnExportedEncoderEmbedsAsTheRunDoes) {
  RunConfig c = config("fp32");
  c.train.steps = 3;
  c.model.text_encoder_tokens = 20;
  c.optimizer.groups = {{"retriever.", 2.0, 1.0, false}};
  Trainer(c, false).run();
  const fs::path exported = fs::path(world_.path()) / "exported";
  export_encoder(c.run.dir, exported);
  data::BadRecords bad;
  const auto run = open_run(settings_of(c.run.dir, {}), bad);
  const at::Tensor trained = run->model().embed("doc", run->documents().all());
  const std::vector<std::string> texts = document_texts(*run);
  // fp32 sums in another order, of unit length
  EXPECT_LT(largest_difference(trained, embedded(exported, texts)), 2e-6);
  EXPECT_GT(largest_difference(trained, embedded(folder(), texts)), 1e-3) << "three steps moved it";
  EXPECT_EQ(retriever::TextEncoder::load(exported, model::EncoderPrecision::kFp32).max_tokens(),
            20);
  EXPECT_THROW(export_encoder(c.run.dir, exported), UsageError);
  // A new run may start from it.
  RunConfig next = config("fp32");
  next.run.dir = world_.path() + "/next";
  next.model.text_encoder = exported.string();
  next.train.steps = 1;
  Trainer(next, false).run();
}

TEST_F(PublishedEncoder, EditedTextsAreEmbeddedAsEdited) {
  RunConfig c = config();
  c.data.counterfactual.probability = 1.0;
  c.data.inverse_cloze_per_step = 8;
  c.train.batch_size = 4;  // leaves documents for pairs
  Prepared made(c);
  const retriever::Documents& documents = made.session.documents();
  int edited = 0;
  for (const auto& [row, sequence] : made.step.edited) {
    const model::Sequence& original = documents.sequence(row);
    EXPECT_EQ(sequence.tokens == original.tokens, sequence.words == original.words);
    edited += sequence.words != original.words ? 1 : 0;
  }
  EXPECT_GT(edited, 0);
  ASSERT_FALSE(made.step.pairs.empty());
  for (const PreparedPair& pair : made.step.pairs) {
    EXPECT_GT(pair.query.words.size(), 2U);
    EXPECT_EQ(pair.document.tokens == documents.sequence(pair.row).tokens,
              pair.document.words == documents.sequence(pair.row).words);
  }
  data::Document document = made.session.corpus().document(0);
  const std::vector<int32_t> before = documents.sequence(0).words;
  document.text += " More.";
  made.session.corpus().edit(0, document);
  made.session.documents().reload(0);
  EXPECT_NE(documents.sequence(0).words, before);
}

TEST_F(PublishedEncoder, BlocksWriteTheShapesThatTheyAnnounceAndFlopsAreCounted) {
  for (const char* fusion : {"memory", "fid", "prefix"}) {
    RunConfig c = config("fp32");
    c.model.fusion = fusion;
    Prepared made(c);
    const model::Microbatch batch = made.assembled().batches[0];
    const parallel::Feeds feeds =
        model::make_feeds(made.session.config().model, batch, at::kFloat, at::kCPU);
    const parallel::Pass pass(feeds);
    const parallel::ForwardPass run =
        parallel::Executor(made.session.model().blocks()).forward(pass, false);
    for (const auto& block : made.session.model().blocks()) {
      const auto shapes = block->shapes(pass);
      for (size_t o = 0; o < shapes.size(); ++o) {
        const at::Tensor& wire = run.wire(block->outputs()[o]);
        EXPECT_EQ(wire.sizes(), at::IntArrayRef(shapes[o].sizes)) << block->outputs()[o];
        EXPECT_EQ(wire.scalar_type(), shapes[o].dtype) << block->outputs()[o];
      }
    }
    // A layer's matrices are 4 D^2 + 2 D F; attention is 4 D for each pair of a query and a key.
    const auto layer =
        std::find_if(made.session.model().blocks().begin(), made.session.model().blocks().end(),
                     [](const auto& block) { return block->name() == "query.text.layer.0"; });
    double rows = 0.0, pairs = 0.0;
    for (const model::Input& input : batch.inputs) {
      const auto n = static_cast<double>(input.query.words.size());
      rows += n;
      pairs += n * n;
    }
    const double D = 24.0, F = 40.0;
    EXPECT_DOUBLE_EQ((*layer)->forward_flops(pass),
                     2 * rows * (4 * D * D + 2 * D * F) + 4 * pairs * D);
    EXPECT_EQ(made.session.model().config().retrieval_width(), 24);
  }
}

// Documents by themselves go through the published encoder, and through the model's own only where
// the decoder reads their states. Answers are the same with those kept from before.
TEST_F(PublishedEncoder, DocumentsAreReadByWhatNeedsThem) {
  for (const std::string fusion : {"memory", "fid", "prefix"}) {
    SCOPED_TRACE(fusion);
    RunConfig c = config("fp64");
    c.model.fusion = fusion;
    Prepared made(c);
    const model::ModelConfig& settings = made.session.model().config();
    const model::Microbatch batch = made.assembled().batches[0];
    const parallel::Feeds feeds = model::make_feeds(settings, batch, at::kDouble, at::kCPU);
    EXPECT_EQ(feeds.count("doc.token"), fusion == "memory" ? 1u : 0u);
    int64_t rows = 0;
    for (const auto& [name, feed] : feeds)
      rows += name != "target.token" && name.ends_with(".token") ? feed.numel() : 0;
    EXPECT_EQ(batch.rows(settings), rows);
    eval::DocumentCache cache;
    const auto answered = [&](eval::DocumentCache* kept) {
      return eval::generate(made.session.model(), made.session.inference(), batch, {}, kept);
    };
    const auto want = answered(nullptr);
    for (int again = 0; again < 2; ++again) {
      const auto got = answered(&cache);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].tokens, want[i].tokens);
        EXPECT_EQ(got[i].document_prob, want[i].document_prob);
      }
    }
    EXPECT_EQ(cache.hits > 0, fusion != "fid");  // whose reader sees the question, too
  }
}

TEST_F(PublishedEncoder, WhatItCannotEmbedIsRefused) {
  RunConfig c = config();
  c.data.query = "picture";
  EXPECT_NE(refusal<UsageError>(c).find("data.query=picture"), std::string::npos);
  c = config();
  c.data.pairs = "pairs.jsonl";
  c.data.pairs_per_step = 2;
  EXPECT_NE(refusal<UsageError>(c).find("data.pairs_per_step=2"), std::string::npos);
  c = config();
  c.data.picture_text_per_step = 2;
  EXPECT_NE(refusal<UsageError>(c).find("data.picture_text_per_step=2"), std::string::npos);
  Prepared made(config());
  const data::Image picture{16, 16, std::vector<uint8_t>(16 * 16 * 3)};
  EXPECT_THROW(made.session.encoder().encode({}, "", &picture, 0), DataError);
  c = config();
  c.parallel.tp = 4;
  c.model.heads = c.model.kv_heads = 4;
  read_text_encoder(c);
  EXPECT_THROW(c.validate(), UsageError);  // three heads
  write_file_atomic(fs::path(world_.path()) / "corpus.jsonl",
                    std::string_view(read_file(fs::path(world_.path()) / "corpus.jsonl") +
                                     R"({"id": "bare", "text": "", "image": "p0.png"})" + "\n"));
  const std::string error = refusal<DataError>(config());
  EXPECT_NE(error.find("document bare"), std::string::npos) << error;
}

TEST_F(PublishedEncoder, FoldersThatDoNotFitAreRefusedByWhatIsWrong) {
  const auto says = [&](const std::string& part) {
    const std::string error = refusal<DataError>(config());
    EXPECT_NE(error.find(part), std::string::npos) << error;
    fs::remove_all(folder());
    SetUp();
  };
  fs::remove(folder() / "vocab.txt");
  says(folder().string() + " has no vocab.txt");
  fs::remove(folder() / "model.safetensors");
  fs::remove(folder() / "pytorch_model.bin");
  says("has no weights");
  write_file_atomic(folder() / "vocab.txt",
                    std::string_view(read_file(folder() / "vocab.txt") + "more\n"));
  says("106 tokens");
  std::string text = read_file(folder() / "config.json");
  write_file_atomic(folder() / "config.json",
                    std::string_view(text.replace(text.find(": 2,\n  \"pad"), 3, ": 3")));
  says("encoder.layer.2");
  fs::remove(folder() / "config.json");
  says("has no config.json");
}

}  // namespace
}  // namespace contexture::train
