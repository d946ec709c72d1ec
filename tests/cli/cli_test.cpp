// The command line as a user meets it before anything is trained: help, names, exit codes, stdout,
// small commands.
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "program.h"

namespace contexture::cli {
namespace {

const std::string kSource = CONTEXTURE_SOURCE_DIR;
const std::string kFlags = kSource + "/tests/fixtures/flags/";

const std::vector<Arguments> kCommands{{"demo"},
                                       {"train"},
                                       {"eval"},
                                       {"eval", "retrieval"},
                                       {"eval", "qa"},
                                       {"eval", "vqa"},
                                       {"eval", "caption"},
                                       {"generate"},
                                       {"ask"},
                                       {"report"},
                                       {"trace"},
                                       {"plan"},
                                       {"tune"},
                                       {"tune", "microbatches"},
                                       {"env"},
                                       {"launch"},
                                       {"bench"},
                                       {"bench", "train"},
                                       {"bench", "loader"},
                                       {"bench", "search"},
                                       {"bench", "index"},
                                       {"bench", "encode"},
                                       {"bench", "parallel"},
                                       {"bench", "links"},
                                       {"bench", "storage"},
                                       {"data"},
                                       {"data", "check"},
                                       {"data", "stats"},
                                       {"data", "pack"},
                                       {"data", "convert"},
                                       {"data", "trec"},
                                       {"data", "dpr"},
                                       {"tokenizer"},
                                       {"tokenizer", "train"},
                                       {"tokenizer", "encode"},
                                       {"tokenizer", "decode"},
                                       {"tokenizer", "info"},
                                       {"index"},
                                       {"index", "build"},
                                       {"index", "add"},
                                       {"index", "merge"},
                                       {"index", "search"},
                                       {"index", "info"},
                                       {"index", "bench"},
                                       {"checkpoint"},
                                       {"checkpoint", "inspect"},
                                       {"checkpoint", "verify"},
                                       {"checkpoint", "diff"},
                                       {"checkpoint", "reshard"},
                                       {"checkpoint", "export-encoder"}};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Help, EveryCommandHasIt) {
  const Result all = run_program({"--help"});
  EXPECT_EQ(all.code, 0);
  for (Arguments command : kCommands) {
    if (command.size() == 1) {
      EXPECT_TRUE(contains(all.out, "\n  " + command[0] + " ")) << all.out;
    }
    command.push_back("--help");
    const Result help = run_program(command);
    EXPECT_EQ(help.code, 0) << command[0];
    EXPECT_TRUE(contains(help.out, "Usage:")) << help.out;
    EXPECT_EQ(help.err, "");
  }
}

TEST(Help, OfTrainListsEverySettingWithItsDefault) {
  const Result help = run_program({"train", "--help"});
  EXPECT_TRUE(contains(help.out, "retriever.refresh_lag")) << help.out;
  EXPECT_TRUE(contains(help.out, "train.steps")) << help.out;
}

TEST(Names, AnUnknownCommandIsRefusedWithTheNearestOne) {
  const Result result = run_program({"trian"});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(contains(result.err, "'trian'") && contains(result.err, "Did you mean 'train'?"))
      << result.err;
  const Result nested = run_program({"data", "chekc"});
  EXPECT_EQ(nested.code, 2);
  EXPECT_TRUE(contains(nested.err, "contexture data has no command 'chekc'. Did you mean 'check'?"))
      << nested.err;
}

TEST(Names, AnUnknownOptionIsRefusedWithTheNearestOne) {
  const Result result = run_program({"train", "--confg", "x.json"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "'--confg'") && contains(result.err, "Did you mean '--config'?"))
      << result.err;
  const Result value = run_program({"trace", "--set=train.steps=3", "--jsno"});
  EXPECT_EQ(value.code, 2);
  EXPECT_TRUE(contains(value.err, "Did you mean '--json'?")) << value.err;
}

TEST(Names, AnUnknownSettingIsRefusedWithItsPlaceAndTheNearestOne) {
  const TempDir dir;
  const std::string file = dir.path() / "config.json";
  write_file_atomic(file, "{\n  \"train\": {\"setps\": 3}\n}\n");
  const Result in_file = run_program({"train", "--config", file});
  EXPECT_EQ(in_file.code, 2);
  EXPECT_TRUE(contains(in_file.err, file + ":2:") && contains(in_file.err, "steps")) << in_file.err;
  const Result in_set = run_program({"train", "--set", "train.setps=3"});
  EXPECT_EQ(in_set.code, 2);
  EXPECT_TRUE(contains(in_set.err, "train.setps") && contains(in_set.err, "steps")) << in_set.err;
}

TEST(ExitCodes, SayWhatKindOfFailureItWas) {
  EXPECT_EQ(run_program({}).code, 2) << "no command";
  EXPECT_EQ(run_program({"eval"}).code, 2) << "an argument is missing";
  EXPECT_EQ(run_program({"ask", "run", "question", "surplus"}).code, 2) << "an argument too many";
  EXPECT_EQ(run_program({"train", "--set", "model.kv_heads=3"}).code, 2)
      << "a setting that cannot work";
  EXPECT_EQ(run_program({"train", "--set", "run.device=tpu"}).code, 2)
      << "a device that nobody knows";
  EXPECT_EQ(run_program({"train", "--config", "/nonexistent.json"}).code, 1)
      << "a file that is not there";
  EXPECT_EQ(run_program({"eval", kFlags}).code, 3) << "a folder that is no run";
  EXPECT_EQ(run_program({"index", "info", kFlags + "corpus.jsonl"}).code, 3)
      << "a file that is no index";
  EXPECT_EQ(run_program({"tokenizer", "info", kFlags + "corpus.jsonl"}).code, 3)
      << "a file that is no tokenizer";
}

TEST(Options, MayFollowTheCommand) {
  const Result result = run_program(
      {"trace", "--config", kSource + "/configs/tiny.json", "--log-level", "error", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(run_program({"trace", "--log-level", "lots"}).code, 2);
}

TEST(Env, SaysWhatTheProgramFinds) {
  const Result result = run_program({"env", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json env = result.json();
  EXPECT_FALSE(env["libtorch"]["version"].get<std::string>().empty());
  EXPECT_TRUE(std::filesystem::exists(env["libtorch"]["file"].get<std::string>()));
  EXPECT_FALSE(env["faiss"].get<std::string>().empty());
  EXPECT_GE(env["cpu"]["threads"].get<int>(), 1);
  EXPECT_TRUE(env["cuda"].is_boolean());
  EXPECT_EQ(env["gpus"].empty(), !env["cuda"].get<bool>());
  EXPECT_FALSE(env["auto"]["device"].get<std::string>().empty());
  EXPECT_TRUE(env["auto"]["precision"] == "bf16" || env["auto"]["precision"] == "fp32");
  EXPECT_EQ(run_program({"env"}).code, 0);
}

TEST(Trace, CountsEveryParameterOnceAndNamesTheReadersOfEveryWire) {
  const Result result =
      run_program({"trace", "--config", kSource + "/configs/tiny.json", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json trace = result.json();
  int64_t own = 0, bytes = 0;
  for (const Json& block : trace["blocks"]) {
    own += block["own_parameters"].get<int64_t>();
    bytes += block["bytes"].get<int64_t>();
    EXPECT_LE(block["own_parameters"], block["parameters"]);
  }
  EXPECT_EQ(own, trace["parameters"].get<int64_t>());
  EXPECT_EQ(bytes, trace["bytes"]["weights"].get<int64_t>());
  bool found = false;
  for (const Json& wire : trace["wires"]) {
    if (wire["name"] != "doc.states") continue;
    found = true;
    EXPECT_EQ(wire["producer"], "doc.norm");
    const auto readers = wire["readers"].get<std::vector<std::string>>();
    EXPECT_NE(std::find(readers.begin(), readers.end(), "dec.layer.0"), readers.end());
  }
  EXPECT_TRUE(found);
}

TEST(Trace, CutsTheModelIntoStagesThatCoverItOnce) {
  const TempDir dir;
  const std::string file = (dir.path() / "trace.json").string();
  for (const char* partitioner :
       {"exact", "blind", "linear", "tree", "pipedream", "parameters", "uniform"}) {
    const Result result =
        run_program({"trace", "--config", kSource + "/configs/vlm-17b.json", "--stages", "4",
                     "--partitioner", partitioner, "--output", file, "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    const Json plan = result.json()["plan"];
    std::set<std::string> seen;
    size_t listed = 0;
    for (const Json& stage : plan["stages"]) {
      for (const Json& block : stage["blocks"]) seen.insert(block.get<std::string>());
      listed += stage["blocks"].size();
    }
    EXPECT_EQ(seen.size(), result.json()["blocks"].size()) << partitioner;
    EXPECT_EQ(listed, seen.size()) << partitioner;
  }
  EXPECT_EQ(read_json_file(file)["format"], "contexture-trace");
  EXPECT_EQ(run_program({"trace", "--config", kSource + "/configs/tiny.json", "--stages", "3",
                         "--partitioner", "clever"})
                .code,
            2);
}

// No number of stages nor memory has to be guessed.
TEST(Trace, SaysWhatWouldFitWhereNothingDoes) {
  const Arguments base{"trace", "--config", kSource + "/configs/vlm-17b.json", "--stages", "4"};
  Arguments tight = base;
  tight.insert(tight.end(), {"--set", "parallel.memory_gb=60"});
  const Result refused = run_program(tight);
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("no cut into 4 stages keeps 60.00 GB a device."), std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find(" stages would."), std::string::npos) << refused.err;
  const size_t needs = refused.err.find("With 4 stages a device needs ");
  ASSERT_NE(needs, std::string::npos) << refused.err;
  const double gb = std::stod(refused.err.substr(needs + 29));
  Arguments enough = base;
  enough.insert(enough.end(), {"--set", concat("parallel.memory_gb=", gb + 0.01), "--json"});
  const Result fits = run_program(enough);
  ASSERT_EQ(fits.code, 0) << fits.err;
  const Json capped = fits.json();
  for (const Json& bytes : capped["plan"]["device_memory_bytes"])
    EXPECT_LE(bytes.get<double>(), 1e9 * (gb + 0.01));
  Arguments small = base;
  small.insert(small.end(), {"--set", "parallel.optimize=memory", "--json"});
  double largest = 0.0;
  const Json balanced = run_program(small).json();
  for (const Json& bytes : balanced["plan"]["device_memory_bytes"])
    largest = std::max(largest, bytes.get<double>());
  EXPECT_NEAR(largest / 1e9, gb, 0.01);
}

TEST(Trace, TimesABlockAtATime) {
  const TempDir cache;
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  const Arguments timed{"trace", "--config", kSource + "/configs/tiny.json", "--timed", "--json"};
  const Result result = run_program(timed), again = run_program(timed);
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(result.err.find("were measured before"), std::string::npos) << result.err;
  EXPECT_NE(again.err.find("were measured before"), std::string::npos) << again.err;
  EXPECT_EQ(again.json()["work"], result.json()["work"]);
  ASSERT_EQ(result.code, 0) << result.err;
  const Json work = result.json()["work"];
  EXPECT_TRUE(work["timed"].get<bool>());
  for (const Json& block : work["blocks"]) {
    EXPECT_GT(block["forward_s"].get<double>(), 0.0) << block["path"];
    EXPECT_GE(block["activation_bytes"].get<int64_t>(), 0) << block["path"];
    EXPECT_GE(block["peak_bytes"], block["activation_bytes"]) << block["path"];
  }
}

TEST(Trace, TheLargeConfigurationsHaveTheSizesOfTheirNames) {
  for (const auto& [name, billions] : {std::pair("3b", 3.0), std::pair("17b", 17.0)}) {
    const auto start = std::chrono::steady_clock::now();
    const Result result =
        run_program({"trace", "--config", kSource + "/configs/vlm-" + name + ".json", "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    // 3 %: what a name that rounds to whole billions may be off.
    EXPECT_NEAR(result.json()["parameters"].get<double>() / (1e9 * billions), 1.0, 0.03);
    // Drawing 17 billion weights takes minutes; counting them, the start of the process.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
}

TEST(Data, CheckPassesTheFixtureAndStatsMeasureIt) {
  const Arguments config{"--config", kSource + "/configs/tiny.json", "--set", "data.root=" + kFlags,
                         "--json"};
  Arguments check{"data", "check"}, stats{"data", "stats"};
  check.insert(check.end(), config.begin(), config.end());
  stats.insert(stats.end(), config.begin(), config.end());
  const Result checked = run_program(check);
  EXPECT_EQ(checked.code, 0) << checked.err << checked.out;
  EXPECT_EQ(checked.json()["documents"], 12);
  EXPECT_EQ(checked.json()["examples"], 72);
  const Result measured = run_program(stats);
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_EQ(measured.json()["examples"].size(), 3u);
  EXPECT_EQ(run_program({"data", "check"}).code, 2) << "nothing to read";
}

TEST(Data, CheckNamesABadRecordAndExitsWithThree) {
  const TempDir dir;
  const std::string file = dir.path() / "bad.jsonl";
  write_file_atomic(file, "{\"id\": \"a\", \"text\": \"good\"}\n{\"id\": \"b\", \"text\": 7}\n");
  const Result result = run_program({"data", "check", "--corpus", file});
  EXPECT_EQ(result.code, 3);
  EXPECT_TRUE(contains(result.out, "bad.jsonl:2")) << result.out;
}

TEST(Data, APackedSetReadsBackTheSame) {
  const TempDir dir;
  const std::string out = dir.path() / "packed";
  const Result packed = run_program({"data", "pack", kFlags + "corpus.jsonl", out, "--json"});
  ASSERT_EQ(packed.code, 0) << packed.err;
  EXPECT_EQ(packed.json()["samples"], 12);
  const std::string shard = packed.json()["shards"][0].get<std::string>();
  const Result checked = run_program({"data", "check", "--corpus", shard, "--json"});
  EXPECT_EQ(checked.code, 0) << checked.out;
  EXPECT_EQ(checked.json()["images"], 12);
  EXPECT_EQ(run_program({"data", "pack", kFlags + "corpus.jsonl", out}).code, 1)
      << "the folder holds shards";
}

TEST(TokenizerCommand, TrainsEncodesAndDecodes) {
  const TempDir dir;
  const std::string model = dir.path() / "t.model";
  const Result trained = run_program(
      {"tokenizer", "train", kFlags + "tokenizer.txt", model, "--set", "vocab_size=340", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(trained.json()["vocab_size"], 340);
  const Result encoded =
      run_program({"tokenizer", "encode", model, "The capital city is Paris.", "--json"});
  ASSERT_EQ(encoded.code, 0) << encoded.err;
  const Json ids = encoded.json()["texts"][0]["ids"];
  Arguments decode{"tokenizer", "decode", model};
  for (const Json& id : ids) decode.push_back(id.dump());
  const Result decoded = run_program(decode);
  EXPECT_EQ(decoded.out, "The capital city is Paris.\n") << decoded.err;
  EXPECT_EQ(run_program({"tokenizer", "info", model, "--json"}).json()["vocab_size"], 340);
  EXPECT_EQ(run_program({"tokenizer", "decode", model, "x1"}).code, 2);
  const Result unknown = run_program(
      {"tokenizer", "train", kFlags + "tokenizer.txt", model, "--set", "vocab_sise=340"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_TRUE(contains(unknown.err, "vocab_size")) << unknown.err;
}

TEST(Bench, EachPartPrintsItsFiguresAsOneObject) {
  const Result train = run_program({"bench", "train", "--precision", "fp32,bf16", "--fusion", "fid",
                                    "--warmup", "1", "--steps", "2", "--threads", "1", "--json"});
  ASSERT_EQ(train.code, 0) << train.err;
  ASSERT_EQ(train.json()["runs"].size(), 2u);
  EXPECT_EQ(train.json()["runs"][1]["contexture"]["config"]["precision"], "bf16");
  EXPECT_GT(train.json()["runs"][1]["contexture"]["examples_per_s"], 0.0);
  const Result search = run_program({"bench", "search", "--shape", "3x200x20,1x50x7", "--seconds",
                                     "0.01", "--threads", "1", "--json"});
  ASSERT_EQ(search.code, 0) << search.err;
  EXPECT_EQ(search.json()["runs"][1]["dim"], 7);
  EXPECT_GT(search.json()["runs"][1]["contexture"]["ms"], 0.0);
  const Result loader = run_program({"bench", "loader", "--images", "70", "--size", "40", "--side",
                                     "16", "--passes", "1", "--json"});
  ASSERT_EQ(loader.code, 0) << loader.err;
  EXPECT_GT(loader.json()["contexture"]["images_per_s"], 0.0);
  EXPECT_EQ(run_program({"bench", "search", "--shape", "3x200"}).code, 2);
  EXPECT_EQ(run_program({"bench", "train", "--shape", "large"}).code, 2);
}

}  // namespace
}  // namespace contexture::cli
