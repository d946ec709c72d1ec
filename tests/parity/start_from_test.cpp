// A model written apart from its run (contexture checkpoint export), and other runs that start from
// it in any layout: the same weights to the bit, the same logits; and what is refused.
#include <gtest/gtest.h>

#include <mutex>

#include "core/error.h"
#include "core/json.h"
#include "layouts.h"
#include "parallel/checkpoint.h"
#include "train/model_folder.h"
#include "train/trainer.h"

namespace contexture::train {
namespace {
namespace fs = std::filesystem;

class StartFrom : public testing::Test {
 protected:
  void SetUp() override {
    trained_ = tiny(world_);
    trained_.train.steps = 4;
    trained_.eval.every = 0;
    Trainer(trained_, false).run();
    export_model(trained_.run.dir, folder());
  }
  fs::path folder() const { return fs::path(world_.path()) / "model"; }
  // Another run, whose own weights would be others.
  RunConfig next(const std::string& name, const fs::path& from) const {
    RunConfig config = trained_;
    config.run.dir = (fs::path(world_.path()) / name).string();
    config.run.seed = 99;
    config.train.start_from = from.string();
    return config;
  }
  // Log-probabilities of answers, with gold documents read.
  static at::Tensor log_probs(Session& session, const RunConfig& config) {
    data::BadRecords bad;
    const PictureSet set(config, "train.jsonl", {}, session.documents(), bad);
    model::Microbatch batch;
    for (size_t i = 0; i < 5; ++i) {
      const data::Example& example = set.set.examples[2 * i];
      const PreparedInput prepared =
          session.encoder().encode(example, example.answers[0], set.picture(example).get(), 0);
      batch.documents.push_back(session.documents().sequence(prepared.gold.at(0)));
      batch.inputs.push_back(
          {prepared.query, prepared.prompt, prepared.target, {static_cast<int32_t>(i)}});
    }
    const parallel::Feeds feeds =
        model::make_feeds(session.model().config(), batch, session.model().dtype(), at::kCPU);
    const parallel::Pass pass(feeds);
    return session.inference().run(pass, {"target.log_prob"}).at("target.log_prob").clone();
  }
  std::string refusal(const RunConfig& config) const {
    try {
      Trainer(config, false);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }
  TinyWorld world_;
  RunConfig trained_;
};

TEST_F(StartFrom, EveryLayoutHasItsWeightsAndItsLogits) {
  data::BadRecords bad;
  const auto whole = open_run(trained_, bad, -1, /*with_index=*/false);
  const at::Tensor want = log_probs(*whole, trained_);
  const parallel::NamedTensors written = parallel::read_tensors(folder() / "model.safetensors");
  EXPECT_EQ(written.size(), whole->model().parameters().all().size());
  struct Layout {
    int64_t dp, pp, tp, zero;
    const char* schedule = "1f1b";
  };
  for (const Layout& layout : {Layout{1, 1, 1, 0}, Layout{2, 1, 1, 3}, Layout{1, 2, 1, 0},
                               Layout{1, 1, 2, 0}, Layout{2, 2, 1, 1}, Layout{1, 2, 2, 0}}) {
    SCOPED_TRACE(
        concat("dp ", layout.dp, " pp ", layout.pp, " tp ", layout.tp, " zero ", layout.zero));
    for (const fs::path& from : {folder(), fs::path(trained_.run.dir)}) {
      RunConfig config = next(
          concat("next-", layout.dp, layout.pp, layout.tp, "-", from.filename().string()), from);
      lay_out(config, layout);
      parallel::NamedTensors got;  // by name: each is on one of the ranks
      std::mutex together;
      on_threads(config.parallel, [&](const parallel::Groups& groups) {
        data::BadRecords own_bad;
        Session session(config, own_bad, groups);
        AdamW optimizer(config.optimizer, session.engine());
        const at::Tensor drawn = log_probs(session, config);
        session.start_weights(optimizer);
        const at::Tensor started = log_probs(session, config);
        EXPECT_GT((drawn - want).abs().max().item<double>(), 1e-2);
        EXPECT_LT((started - want).abs().max().item<double>(), 1e-12);  // fp64, in another order
        parallel::NamedTensors model, moments;
        optimizer.save(model, moments);
        const std::lock_guard lock(together);
        for (const auto& [name, value] : model) got[name] = value.clone();
      });
      ASSERT_EQ(got.size(), written.size());
      for (const auto& [name, value] : written) EXPECT_TRUE(at::equal(got.at(name), value)) << name;
    }
  }
}

TEST_F(StartFrom, TheFolderIsAllThatIsNeeded) {
  const Json about = parse_json(read_file(folder() / "config.json"), "config.json");
  EXPECT_EQ(about["format"], "contexture-model");
  EXPECT_EQ(about["step"], 4);
  EXPECT_EQ(about["model"]["width"], trained_.model.width);
  EXPECT_EQ(about["data"]["query"], trained_.data.query);
  EXPECT_EQ(read_file(folder() / "tokenizer.model"),
            read_file(fs::path(trained_.run.dir) / "tokenizer.model"));
  fs::remove_all(trained_.run.dir);
  RunConfig config = next("next", folder());
  config.data.tokenizer_text = "there is no such text";  // the model's tokenizer is taken
  config.train.stop_at = 1;
  Trainer(config, false).run();
  fs::remove_all(folder());  // and a run that has started needs the folder no more
  config.train.stop_at = 2;
  EXPECT_EQ(Trainer(config, true).run().steps, 2);
}

TEST_F(StartFrom, WhatDoesNotFitIsNamed) {
  RunConfig wide = next("wide", folder());
  wide.model.ffn_width = 28;
  std::string said = refusal(wide);
  EXPECT_NE(said.find("encoder.layer.0.mlp.in has shape"), std::string::npos) << said;
  EXPECT_NE(said.find("decoder.layer.1.mlp.out has shape"), std::string::npos) << said;
  EXPECT_EQ(said.find("embed.token"), std::string::npos) << said;
  RunConfig deep = next("deep", folder());
  deep.model.decoder_layers += 1;
  said = refusal(deep);
  EXPECT_NE(said.find(concat("decoder.layer.", deep.model.decoder_layers - 1,
                             ".mlp.in is missing there")),
            std::string::npos)
      << said;
  RunConfig shallow = next("shallow", folder());
  shallow.model.encoder_layers = 1;
  said = refusal(shallow);
  EXPECT_NE(said.find("encoder.layer.1.mlp.in is no parameter here"), std::string::npos) << said;
  // The null document belongs to an objective: it may be new.
  RunConfig realm = next("realm", folder());
  realm.retriever.objectives = {{"realm", 1.0}};
  EXPECT_EQ(refusal(realm), "no error");

  RunConfig other = next("other", folder());
  other.data.tokenizer = "other.model";
  data::TokenizerTrainOptions options = trained_.data.tokenizer_options;
  write_file_atomic(fs::path(world_.path()) / "other.txt",
                    read_file(fs::path(world_.path()) / "tokenizer.txt") + "Zebras gallop.\n");
  data::Tokenizer::train_from_file(fs::path(world_.path()) / "other.txt",
                                   fs::path(world_.path()) / "other.model", options);
  said = refusal(other);
  EXPECT_NE(said.find("another tokenizer"), std::string::npos) << said;
  said = refusal(next("nothing", fs::path(world_.path()) / "nothing"));
  EXPECT_NE(said.find("is no model: config.json is missing"), std::string::npos) << said;
  write_file_atomic(folder() / "config.json",
                    "{\"format\":\"contexture-model\",\"version\":2,"
                    "\"model\":{}}");
  said = refusal(next("newer", folder()));
  EXPECT_NE(said.find("newer than this program"), std::string::npos) << said;
  EXPECT_THROW(export_model(trained_.run.dir, folder()), UsageError);  // it exists
}

}  // namespace
}  // namespace contexture::train
