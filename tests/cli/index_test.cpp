// Indexing corpora and vectors from the command line: formats, resuming, adding, cutting and
// joining, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/npy.h"
#include "program.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;

const std::string kTiny = std::string(CONTEXTURE_SOURCE_DIR) + "/tests/golden/tiny_bert";

class IndexCommands : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return dir_.path() / name; }
  std::string write(const std::string& name, const std::string& text) const {
    write_file_atomic(at(name), std::string_view(text));
    return at(name);
  }
  // Vectors that differ in direction, as .npy; NaN where asked.
  std::string write_vectors(const std::string& name, int64_t rows, int64_t dim,
                            int64_t nan_row = -1) const {
    std::vector<float> numbers;
    for (int64_t i = 0; i < rows * dim; ++i)
      numbers.push_back(static_cast<float>((i * 7919) % 1009) - 504.5f);
    if (nan_row >= 0) numbers[static_cast<size_t>(nan_row * dim)] = std::nanf("");
    NpyWriter writer(at(name), DType::F32, rows, dim);
    writer.write(numbers);
    writer.commit();
    return at(name);
  }
  // Expects exit code and words on stderr.
  static void expect_refused(const Arguments& arguments, int code, const std::string& words) {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  }
  std::vector<std::string> ids_of(const Result& search) const {
    std::vector<std::string> ids;
    const Json found = search.json();
    for (const Json& hit : found["hits"]) ids.push_back(hit["id"]);
    return ids;
  }
  Json build(const Arguments& more) const {
    Arguments arguments{"index", "build", "--threads", "1", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result built = run_program(arguments);
    EXPECT_EQ(built.code, 0) << built.err;
    return built.code == 0 ? built.json() : Json::object();
  }

  TempDir dir_;
};

TEST_F(IndexCommands, ACorpusOfEachFormatGivesTheSameVectors) {
  const std::string own =
      write("own.jsonl", R"({"id":"a","title":"the capital","text":"of france is paris"})"
                         "\n"
                         R"({"id":"b","title":"","text":"abc 123"})"
                         "\n");
  const std::string beir =
      write("beir.jsonl", R"({"_id":"a","title":"the capital","text":"of france is paris"})"
                          "\n"
                          R"({"_id":"b","title":"","text":"abc 123"})"
                          "\n");
  const std::string dpr =
      write("psgs.tsv", "id\ttext\ttitle\na\tof france is paris\tthe capital\nb\tabc 123\t\n");
  std::vector<std::string> vectors;
  for (const auto& [format, corpus] :
       {std::pair{"contexture", own}, std::pair{"beir", beir}, std::pair{"dpr", dpr}}) {
    const std::string out = at(std::string(format) + ".npy");
    const Json built = build({"--encoder", kTiny, "--corpus", corpus, "--from", format, "--output",
                              at("x.faiss"), "--precision", "fp32", "--save-vectors", out});
    EXPECT_EQ(built["documents"], 2);
    EXPECT_EQ(built["dim"], 24);
    EXPECT_EQ(built["metric"], "cosine");
    vectors.push_back(read_file(out));
    EXPECT_FALSE(fs::exists(at("x.faiss.parts"))) << "finished chunks are removed";
  }
  EXPECT_EQ(vectors[0], vectors[1]);
  EXPECT_EQ(vectors[0], vectors[2]);
  const Result found =
      run_program({"index", "search", at("x.faiss"), "--encoder", kTiny, "--question",
                   "the capital of france is paris", "--precision", "fp32", "-k", "5", "--json"});
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_EQ(ids_of(found), (std::vector<std::string>{"a", "b"}));
  EXPECT_NEAR(found.json()["hits"][0]["score"].get<double>(), 1.0, 1e-6) << "the same text";
}

TEST_F(IndexCommands, ManyQueriesMakeARunThatEvalReads) {
  const std::string corpus = write("c.jsonl", R"({"_id":"a","title":"","text":"paris france"})"
                                              "\n"
                                              R"({"_id":"b","title":"","text":"123 456"})"
                                              "\n");
  const std::string queries = write("q.jsonl", R"({"_id":"q1","text":"paris france"})"
                                               "\n"
                                               R"({"_id":"q2","text":"123 456"})"
                                               "\n");
  const std::string qrels = write("test.tsv", "query-id\tcorpus-id\tscore\nq1\ta\t1\nq2\tb\t1\n");
  build({"--encoder", kTiny, "--corpus", corpus, "--from", "beir", "--output", at("c.faiss")});
  const Result searched = run_program({"index", "search", at("c.faiss"), "--encoder", kTiny,
                                       "--queries", queries, "--output", at("out.run"), "-k", "2"});
  ASSERT_EQ(searched.code, 0) << searched.err;
  const Result scored =
      run_program({"eval", "retrieval", "--qrels", qrels, "--run", at("out.run"), "--json"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  EXPECT_EQ(scored.json()["measures"]["mrr"]["mean"], 1.0);
}

TEST_F(IndexCommands, AnInterruptedBuildGoesOnAndGivesTheSameIndex) {
  std::string corpus;
  for (int i = 0; i < 32'000; ++i)
    corpus += "{\"id\":\"" + std::to_string(i) + "\",\"title\":\"t\",\"text\":\"text number " +
              std::to_string(i) + " of many\"}\n";
  const std::string file = write("many.jsonl", corpus);
  const Arguments command{"index",    "build",          "--encoder", kTiny, "--corpus", file,
                          "--output", at("many.faiss"), "--threads", "1",   "--json"};
  {
    Process process(command);
    ASSERT_TRUE(
        process.wait_until([&] { return fs::exists(at("many.faiss.parts/chunk-000001.npy")); }));
    process.send(SIGKILL);
    ASSERT_EQ(process.wait().signal, SIGKILL);
  }
  ASSERT_FALSE(fs::exists(at("many.faiss")));
  {
    Process process(command);
    ASSERT_TRUE(
        process.wait_until([&] { return fs::exists(at("many.faiss.parts/chunk-000003.npy")); }));
    process.send(SIGTERM);
    EXPECT_EQ(process.wait().code, 75);
  }
  expect_refused({"index", "build", "--encoder", kTiny, "--corpus", file, "--output",
                  at("many.faiss"), "--max-tokens", "9"},
                 1, "encoder_hash");
  const Result finished = run_program(command);
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_GE(finished.json()["embedding"]["resumed"], 3 * 4096);
  const std::string resumed = read_file(at("many.faiss"));
  ASSERT_EQ(run_program(command).code, 0);
  EXPECT_EQ(read_file(at("many.faiss")), resumed);
}

TEST_F(IndexCommands, VectorsComeInAndGoOutAsNpy) {
  const std::string vectors = write_vectors("v.npy", 50, 8);
  const Json built =
      build({"--vectors", vectors, "--output", at("v.faiss"), "--metric", "inner_product",
             "--save-vectors", at("half.npy"), "--vectors-type", "float16"});
  EXPECT_EQ(built["documents"], 50);
  EXPECT_EQ(built["encoder"], "");
  EXPECT_EQ(NpyMatrix(at("half.npy")).dtype(), DType::F16);
  const Json half =
      build({"--vectors", at("half.npy"), "--output", at("h.faiss"), "--metric", "inner_product"});
  EXPECT_EQ(half["documents"], 50);
  const Result like = run_program(
      {"index", "search", at("h.faiss"), "--like", "7", "-k", "1", "--mapped", "--json"});
  ASSERT_EQ(like.code, 0) << like.err;
  const Result bench = run_program({"index", "bench", at("v.faiss"), "--exact", vectors,
                                    "--seconds", "0.01", "--batch", "1,4", "--json"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(bench.json()["recall_of_exact"], 1.0);
  EXPECT_EQ(bench.json()["batches"].size(), 2u);
}

TEST_F(IndexCommands, AddMergeAndCutKeepEveryDocument) {
  build({"--vectors", write_vectors("a.npy", 40, 8), "--output", at("a.faiss")});
  std::string names;
  for (int i = 0; i < 25; ++i) names += "\"b-" + std::to_string(i) + "\"\n";
  const std::string ids = write("ids.jsonl", names), more = write_vectors("b.npy", 25, 8);
  const Result added = run_program({"index", "add", at("a.faiss"), "--vectors", more, "--ids", ids,
                                    "--output", at("ab.faiss"), "--json"});
  ASSERT_EQ(added.code, 0) << added.err;
  EXPECT_EQ(added.json()["documents"], 65);
  EXPECT_EQ(added.json()["added"], 25);
  const Result cut = run_program({"index", "merge", at("ab.faiss"), "--shards", "3", "--output",
                                  at("ab.shards.json"), "--json"});
  ASSERT_EQ(cut.code, 0) << cut.err;
  EXPECT_EQ(cut.json()["shards"], 3);
  const auto search = [&](const std::string& index) {
    return run_program({"index", "search", index, "--like", "b-3", "-k", "65", "--json"});
  };
  const Result whole = search(at("ab.faiss"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(search(at("ab.shards.json")).json(), whole.json());
  const Result joined =
      run_program({"index", "merge", at("ab.shards.json"), "--output", at("back.faiss"), "--json"});
  ASSERT_EQ(joined.code, 0) << joined.err;
  EXPECT_EQ(search(at("back.faiss")).json(), whole.json());
  const Json direct =
      build({"--vectors", at("a.npy"), "--shards", "4", "--output", at("a.shards.json")});
  EXPECT_EQ(direct["shards"], 4);
  EXPECT_EQ(direct["overlap_with_exact"], 1.0);
}

TEST_F(IndexCommands, RanksSearchAListOfShardsAsOneProcessDoes) {
  const std::string vectors = write_vectors("v.npy", 60, 8), queries = write_vectors("q.npy", 9, 8);
  build({"--vectors", vectors, "--shards", "3", "--output", at("v.shards.json")});
  const auto command = [&](const std::string& ranks, const Arguments& more) {
    Arguments out{"index", "search", at("v.shards.json"), "-k", "7"};
    if (ranks != "1") out.insert(out.begin(), {"launch", "--nproc", ranks, "--"});
    out.insert(out.end(), more.begin(), more.end());
    return out;
  };
  const Result like = run_program(command("1", {"--like", "41", "--json"}));
  ASSERT_EQ(like.code, 0) << like.err;
  ASSERT_EQ(run_program(command("1", {"--query-vectors", queries, "--output", at("1.run")})).code,
            0);
  for (const char* ranks : {"2", "3", "4"}) {
    const Result together = run_program(command(ranks, {"--like", "41", "--json"}));
    ASSERT_EQ(together.code, 0) << together.err;
    EXPECT_EQ(together.json(), like.json()) << ranks;
    EXPECT_EQ(together.err.find("nothing to search") != std::string::npos, ranks[0] == '4')
        << together.err;
    const std::string run = at(std::string(ranks) + ".run");
    const Result many =
        run_program(command(ranks, {"--query-vectors", queries, "--output", run, "--mapped"}));
    ASSERT_EQ(many.code, 0) << many.err;
    EXPECT_EQ(read_file(run), read_file(at("1.run"))) << ranks;
  }
  expect_refused(command("2", {"--like", "nobody"}), 3, "has no document 'nobody'");
  expect_refused(command("2", {}), 2, "ask with one of");
  fs::remove(at("v.00002-of-00003.faiss"));
  expect_refused(command("3", {"--like", "41"}), 3, "there is no such index");
}

TEST_F(IndexCommands, MemoryAndRecallChooseTheIndexAndSayWhy) {
  const Json built = build(
      {"--vectors", write_vectors("v.npy", 60, 8), "--memory", "1M", "--output", at("v.faiss")});
  EXPECT_EQ(built["factory"], "Flat");
  EXPECT_NE(built["choice"].get<std::string>().find("chosen"), std::string::npos);
  expect_refused(
      {"index", "build", "--vectors", at("v.npy"), "--memory", "1k", "--output", at("w.faiss")}, 1,
      "Nothing fits");
  expect_refused({"index", "build", "--vectors", at("v.npy"), "--memory", "1G", "--factory", "Flat",
                  "--output", at("w.faiss")},
                 2, "--factory");
}

TEST_F(IndexCommands, WhatDoesNotFitIsRefusedBeforeAnythingIsWritten) {
  const std::string vectors = write_vectors("v.npy", 20, 8), other = write_vectors("w.npy", 20, 6),
                    nan = write_vectors("nan.npy", 20, 8, 13);
  build({"--vectors", vectors, "--output", at("v.faiss")});
  const std::string before = read_file(at("v.faiss"));
  expect_refused({"index", "add", at("v.faiss"), "--vectors", vectors}, 3,
                 "already has the id '0'");
  expect_refused({"index", "add", at("v.faiss"), "--vectors", other}, 1, "6");
  expect_refused({"index", "add", at("v.faiss"), "--vectors", vectors, "--metric", "l2"}, 1,
                 "cosine");
  expect_refused({"index", "add", at("v.faiss"), "--encoder", kTiny, "--corpus",
                  write("c.jsonl", R"({"id":"a","title":"t","text":"x"})")},
                 1, "24");
  expect_refused({"index", "build", "--vectors", nan, "--output", at("x.faiss")}, 3, "'13'");
  expect_refused({"index", "build", "--vectors", vectors, "--ids", write("few", "a\nb\n"),
                  "--output", at("x.faiss")},
                 3, "2 ids");
  std::string repeated;
  for (int i = 0; i < 20; ++i) repeated += "same\n";
  expect_refused({"index", "build", "--vectors", vectors, "--ids", write("same", repeated),
                  "--output", at("x.faiss")},
                 3, "'same'");
  const std::string bytes = read_file(vectors);
  expect_refused({"index", "build", "--vectors",
                  write("cut.npy", bytes.substr(0, bytes.size() - 3)), "--output", at("x.faiss")},
                 3, "cut short");
  expect_refused({"index", "build", "--vectors", vectors, "--encoder", kTiny, "--corpus", vectors,
                  "--output", at("x.faiss")},
                 2, "not both");
  expect_refused({"index", "build", "--encoder", kTiny, "--output", at("x.faiss")}, 2, "--corpus");
  expect_refused({"index", "build", "--encoder", at("nowhere"), "--corpus", at("c.jsonl"),
                  "--output", at("x.faiss")},
                 3, "config.json");
  EXPECT_FALSE(fs::exists(at("x.faiss")));
  EXPECT_EQ(read_file(at("v.faiss")), before);
}

TEST_F(IndexCommands, QueriesOfAnotherEncoderAreRefused) {
  const std::string corpus = write("c.jsonl", R"({"id":"a","title":"t","text":"x"})");
  build({"--encoder", kTiny, "--corpus", corpus, "--output", at("c.faiss")});
  expect_refused({"index", "search", at("c.faiss"), "--encoder", kTiny, "--max-tokens", "9",
                  "--question", "x"},
                 1, "do not compare");
  fs::copy(kTiny, at("other"), fs::copy_options::recursive);
  std::string weights = read_file(at("other/model.safetensors"));
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write("other/model.safetensors", weights);
  expect_refused({"index", "search", at("c.faiss"), "--encoder", at("other"), "--question", "x"}, 1,
                 "do not compare");
  expect_refused({"index", "add", at("c.faiss"), "--encoder", at("other"), "--corpus", corpus}, 1,
                 "do not compare");
}

TEST_F(IndexCommands, ADocumentThatIsThereTwiceIsCountedAndIndexedOnce) {
  const std::string corpus = write("c.jsonl", R"({"id":"a","title":"t","text":"x"})"
                                              "\n"
                                              R"({"id":"a","title":"t","text":"y"})"
                                              "\n"
                                              "not json\n"
                                              R"({"id":"b","title":"t","text":"z"})"
                                              "\n");
  const Json built = build({"--encoder", kTiny, "--corpus", corpus, "--output", at("c.faiss")});
  EXPECT_EQ(built["documents"], 2);
  EXPECT_EQ(built["bad_records"], 2);
}

}  // namespace
}  // namespace contexture::cli
