#include "core/config.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "expect_error.h"

namespace contexture {
namespace {

struct Source {
  std::string path;
  double weight = 1.0;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("path", path, "where the records are");
    visit("weight", weight, "share of the mixture");
  }
};

struct TrainConfig {
  int64_t steps = 1000;
  double lr = 3e-4;
  bool compile = false;
  std::vector<int64_t> shape = {2, 3};
  std::vector<double> betas = {0.9, 0.95};
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("steps", steps, "optimizer steps");
    visit("lr", lr, "peak learning rate");
    visit("compile", compile, "compile the model");
    visit("shape", shape, "some sizes");
    visit("betas", betas, "AdamW");
  }
};

struct RunConfig {
  std::string name = "run";
  TrainConfig train;
  std::vector<Source> sources;
  std::map<std::string, double> weights = {{"lm", 1.0}};
  std::vector<std::string> tags;
  int threads = 2;
  uint64_t seed = 1;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("name", name, "name of the run");
    visit("train", train, "the loop");
    visit("sources", sources, "data sets");
    visit("weights", weights, "loss weights");
    visit("tags", tags, "free words");
    visit("threads", threads, "worker threads");
    visit("seed", seed, "of every random stream");
  }
};

std::string refusal(std::string_view text) {
  RunConfig config;
  return message_of<UsageError>([&] { apply_json(config, text, "run.json"); });
}

std::string set_refusal(std::string_view assignment) {
  RunConfig config;
  return message_of<UsageError>([&] { apply_set(config, assignment); });
}

TEST(ApplyJson, SetsWhatItNamesAndKeepsTheRest) {
  RunConfig config;
  apply_json(config, R"({"train":{"steps":5,"lr":1,"betas":[0.5]},"weights":{"mlm":2},
      "sources":[{"path":"a"},{"path":"b","weight":3}],"tags":["x"],"seed":18446744073709551615})",
             "f");
  EXPECT_EQ(config.train.steps, 5);
  EXPECT_EQ(config.train.lr, 1.0);
  EXPECT_EQ(config.train.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(config.train.betas, std::vector<double>{0.5});
  EXPECT_EQ(config.weights, (std::map<std::string, double>{{"mlm", 2.0}}));
  ASSERT_EQ(config.sources.size(), 2u);
  EXPECT_EQ(config.sources[0].weight, 1.0);
  EXPECT_EQ(config.sources[1].weight, 3.0);
  EXPECT_EQ(config.seed, UINT64_MAX);
  EXPECT_EQ(config.threads, 2);
}

TEST(ApplyJson, AnArrayOfStructsReplacesTheFormerOne) {
  RunConfig config;
  apply_json(config, R"({"sources":[{"path":"a","weight":9},{"path":"b"}]})", "f");
  apply_json(config, R"({"sources":[{"path":"c"}]})", "f");
  ASSERT_EQ(config.sources.size(), 1u);
  EXPECT_EQ(config.sources[0].path, "c");
  EXPECT_EQ(config.sources[0].weight, 1.0);
}

TEST(ApplyJson, RefusesAnUnknownKeyWithPlaceAndNearestName) {
  EXPECT_EQ(refusal("{\n  \"train\": {\n    \"stpes\": 5}}"),
            "run.json:3:5: unknown key 'train.stpes'. Did you mean 'train.steps'?");
  EXPECT_EQ(refusal("{\"sources\":[{},\n{\"wieght\":1}]}"),
            "run.json:2:2: unknown key 'sources.1.wieght'. Did you mean 'sources.1.weight'?");
  EXPECT_EQ(refusal("{\"sources\":[{\"qqqqqq\":1}]}"),
            "run.json:1:14: unknown key 'sources.0.qqqqqq'. Known here: path weight");
}

TEST(ApplyJson, RefusesAWrongTypeWithPlaceExpectedTypeAndValue) {
  EXPECT_EQ(refusal("{\"train\":\n {\"steps\": \"many\"}}"),
            "run.json:2:12: train.steps must be a whole number from -9223372036854775808 to "
            "9223372036854775807, found \"many\"");
  EXPECT_EQ(refusal(R"({"train":{"compile":1}})"),
            "run.json:1:21: train.compile must be true or false, found 1");
  EXPECT_EQ(refusal(R"({"train":5})"), "run.json:1:10: train must be an object, found 5");
  EXPECT_EQ(refusal(R"({"sources":{}})"),
            "run.json:1:12: sources must be a list of objects, found {}");
  EXPECT_EQ(refusal(R"({"sources":[1]})"), "run.json:1:13: sources.0 must be an object, found 1");
  EXPECT_EQ(refusal(R"([])"), "run.json:1:1: the configuration must be an object, found []");
  for (const char* text :
       {R"({"threads":2147483648})", R"({"threads":1.0})", R"({"seed":-1})",
        R"({"train":{"shape":[1,2.5]}})", R"({"train":{"lr":"1"}})", R"({"name":3})",
        R"({"weights":{"lm":"x"}})", R"({"tags":"x"})", R"({"train":{"steps":null}})"}) {
    EXPECT_TRUE(refusal(text).starts_with("run.json:1:")) << text << " gave " << refusal(text);
  }
}

TEST(ApplyJson, RefusesBadJsonAsAUsageError) {
  EXPECT_TRUE(refusal("{\"name\": }").starts_with("run.json:1:10: not valid JSON"))
      << refusal("{\"name\": }");
  EXPECT_NE(refusal(R"({"name":"a","name":"b"})").find("occurs twice"), std::string::npos);
}

TEST(ApplySet, SetsEveryTypeOfMember) {
  RunConfig config;
  for (const char* assignment :
       {"name=a=b, c", "train.steps=7", "train.lr=1e-3", "train.compile=true", "train.shape=4,5,6",
        "train.betas=[0.1]", "tags=x,y", "threads=-1", "seed=9", "weights.lm=0.5", "weights.a.b=2",
        "sources.0.path=p", "sources.1.weight=4"}) {
    apply_set(config, assignment);
  }
  EXPECT_EQ(config.name, "a=b, c");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.train.lr, 1e-3);
  EXPECT_TRUE(config.train.compile);
  EXPECT_EQ(config.train.shape, (std::vector<int64_t>{4, 5, 6}));
  EXPECT_EQ(config.train.betas, std::vector<double>{0.1});
  EXPECT_EQ(config.tags, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(config.threads, -1);
  EXPECT_EQ(config.seed, 9u);
  EXPECT_EQ(config.weights, (std::map<std::string, double>{{"lm", 0.5}, {"a.b", 2.0}}));
  ASSERT_EQ(config.sources.size(), 2u);
  EXPECT_EQ(config.sources[0].path, "p");
  EXPECT_EQ(config.sources[1].weight, 4.0);
}

TEST(ApplySet, TakesJsonForStructsListsAndMaps) {
  RunConfig config;
  apply_set(config, R"(train={"steps":3})");
  apply_set(config, R"(sources=[{"path":"q"}])");
  apply_set(config, R"(weights={"c":1})");
  apply_set(config, R"(tags=["a,b"])");
  apply_set(config, "train.shape=");
  EXPECT_EQ(config.train.steps, 3);
  EXPECT_EQ(config.train.lr, 3e-4);
  EXPECT_EQ(config.sources.at(0).path, "q");
  EXPECT_EQ(config.weights.at("c"), 1.0);
  EXPECT_EQ(config.tags, std::vector<std::string>{"a,b"});
  EXPECT_TRUE(config.train.shape.empty());
}

TEST(ApplySet, ASingleTextThatLooksLikeANumberStaysAString) {
  RunConfig config;
  apply_set(config, "name=007");
  EXPECT_EQ(config.name, "007");
  apply_set(config, "tags=1,2");
  EXPECT_EQ(config.tags, (std::vector<std::string>{"1", "2"}));
  apply_set(config, "name=");
  EXPECT_EQ(config.name, "");
}

TEST(ApplySet, RefusesWithTheAssignmentAndASuggestion) {
  EXPECT_EQ(set_refusal("train.stpes=5"),
            "--set train.stpes=5: unknown key 'train.stpes'. Did you mean 'train.steps'?");
  EXPECT_EQ(set_refusal("steps=5"),
            "--set steps=5: unknown key 'steps'. Did you mean 'train.steps'?");
  EXPECT_EQ(set_refusal("threads=two"),
            "--set threads=two: threads must be a whole number from -2147483648 to 2147483647, "
            "found \"two\"");
  EXPECT_EQ(set_refusal("train.lr.x=1"),
            "--set train.lr.x=1: 'train.lr' is a single setting; nothing is below it");
  for (const char* assignment :
       {"train", "=5", "", "train=5", "train.compile=yes", "train.lr=nan", "train.lr=1e999",
        "train.lr=", "train.shape=1,,2", "train.shape=1,", "sources.1.path=a", "sources.x.path=a",
        "sources.0=a", "sources.-1.path=a", "weights.lm=x", "weights=3", "train..steps=1", ".=1",
        "name=\xff"}) {
    EXPECT_TRUE(set_refusal(assignment).starts_with("--set"))
        << assignment << ": " << set_refusal(assignment);
  }
}

TEST(ToJson, RoundTripsThroughApplyJson) {
  RunConfig config;
  apply_set(config, "train.lr=0.1");
  apply_set(config, "sources.0.path=a");
  apply_set(config, "name=\"é\n");
  const Json dump = to_json(config);
  RunConfig again;
  apply_json(again, dump.dump(2), "dump");
  EXPECT_EQ(to_json(again), dump);
  EXPECT_EQ(again.train.lr, 0.1);
  EXPECT_EQ(dump["sources"][0]["path"], "a");
}

TEST(HelpText, ShowsNameTypeDefaultAndHelpOfEverySetting) {
  const std::string help = help_text(RunConfig());
  EXPECT_NE(help.find("  train.steps       int         optimizer steps [1000]\n"),
            std::string::npos)
      << help;
  EXPECT_NE(help.find("train: the loop\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  sources.N.weight  float       share of the mixture [1.0]\n"),
            std::string::npos)
      << help;
  EXPECT_LT(help.find("  seed "), help.find("train: the loop"));
}

TEST(HelpText, OfAFreshStructIgnoresWhatWasParsed) {
  RunConfig parsed;
  apply_set(parsed, "train.steps=77");
  EXPECT_EQ(help_text(RunConfig()).find("77"), std::string::npos);
}

}  // namespace
}  // namespace contexture
