// contexture eval retrieval|qa|vqa|caption on files, as a user runs them.
#include <gtest/gtest.h>

#include "program.h"

namespace contexture::cli {
namespace {

// Sums of a few quotients.
constexpr double kRounding = 1e-9;

class Scores : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) {
    const std::string path = dir_.path() / name;
    write_file_atomic(path, content);
    return path;
  }
  // Fails unless the program ended with `code` and its message holds every part.
  static void expect_error(const Result& result, int code, const std::vector<std::string>& parts) {
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    for (const std::string& part : parts) {
      EXPECT_NE(result.err.find(part), std::string::npos) << part << " is not in: " << result.err;
    }
  }
  TempDir dir_;
};

class Retrieval : public Scores {
 protected:
  std::string qrels_ =
      file("q.tsv", "query-id\tcorpus-id\tscore\n1\ta\t1\n1\tb\t1\n2\tc\t1\n3\td\t1\n");
  std::string run_ =
      file("r.run", "1 Q0 a 1 2.0 x\n1 Q0 z 2 1.0 x\n2 Q0 z 1 2.0 x\n2 Q0 c 2 1.0 x\n");
};

TEST_F(Retrieval, PrintsTrecEvalsFiguresAndLeavesMissingQueriesOut) {
  const Result result =
      run_program({"eval", "retrieval", "--qrels", qrels_, "--run", run_, "-k", "1,2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = result.json();
  EXPECT_EQ(json["n"], 2);
  EXPECT_EQ(json["missing_queries"], 1);
  EXPECT_NEAR(json["measures"]["mrr"]["mean"].get<double>(), 0.75, kRounding);
  EXPECT_NEAR(json["measures"]["recall@2"]["mean"].get<double>(), 0.75, kRounding);
  EXPECT_FALSE(json["measures"].contains("recall@5"));
  EXPECT_NE(result.err.find("1 of 3 judged queries have no result"), std::string::npos)
      << result.err;
  const Json zero = run_program({"eval", "retrieval", "--qrels", qrels_, "--run", run_, "--missing",
                                 "zero", "--json"})
                        .json();
  EXPECT_NEAR(zero["measures"]["mrr"]["mean"].get<double>(), 0.5, kRounding);
}

TEST_F(Retrieval, WritesEveryQueryAndComparesTwoRuns) {
  const std::string other = file("o.run", "1 Q0 z 1 2.0 x\n2 Q0 c 1 1.0 x\n"),
                    each = dir_.path() / "each.jsonl";
  const Result result = run_program({"eval", "retrieval", "--qrels", qrels_, "--run", run_,
                                     "--compare", other, "--per-query", each, "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json mrr = result.json()["compared"]["measures"]["mrr"];
  EXPECT_NEAR(mrr["difference"].get<double>(), 0.25, kRounding);
  EXPECT_EQ(mrr["better"], 1);
  EXPECT_EQ(mrr["worse"], 1);
  EXPECT_EQ(mrr["p"], 1.0) << "1.0 and -0.5: every pattern is as far from 0";
  const std::string lines = read_file(each);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  EXPECT_NE(lines.find("\"id\":\"2\",\"map\":0.5"), std::string::npos) << lines;
  const Result text =
      run_program({"eval", "retrieval", "--qrels", qrels_, "--run", run_, "--compare", other});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("better/worse/same"), std::string::npos) << text.out;
}

TEST_F(Retrieval, BadFilesAreRefusedWithTheirPlace) {
  const auto score = [&](const std::string& qrels, const std::string& run,
                         const Arguments& more = {}) {
    Arguments all{"eval", "retrieval", "--qrels", qrels, "--run", run, "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  };
  expect_error(score(qrels_, file("nan.run", "1 Q0 a 1 nan x\n")), 3,
               {"nan.run:1", "'nan' is no finite number"});
  expect_error(score(qrels_, file("twice.run", "1 Q0 a 1 1 x\n1 Q0 a 2 1 x\n")), 3,
               {"twice.run:2", "document twice"});
  expect_error(score(qrels_, file("empty.run", "")), 3, {"empty.run", "not one result"});
  expect_error(score(file("empty.tsv", ""), run_), 3, {"empty.tsv", "not one judgment"});
  expect_error(score(qrels_, file("ids.run", "q1 Q0 a 1 1 x\n")), 3,
               {"'1'", "'q1'", "no query of the run is judged"});
  expect_error(score(qrels_, run_, {"--compare", file("few.run", "1 Q0 a 1 1 x\n")}), 3,
               {"2 (first only)"});
  expect_error(score(qrels_, run_, {"--missing", "drop"}), 2, {"neither skip nor zero"});
  expect_error(score(qrels_, run_, {"-k", "0"}), 1, {"cut-off"});
  expect_error(score(qrels_, (dir_.path() / "absent").string()), 1, {"absent"});
  const Result skipped =
      score(qrels_, file("half.run", "1 Q0 a 1 1 x\n1 Q0 b 2 nan x\n"), {"--bad-records", "skip"});
  ASSERT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_EQ(skipped.json()["bad_records"], 1);
}

class Qa : public Scores {
 protected:
  std::string references_ =
      file("dev.jsonl",
           "{\"id\":\"1\",\"question\":\"q\",\"answers\":[\"Paris\"],\"documents\":[\"d1\"]}\n"
           "{\"id\":\"2\",\"question\":\"q\",\"answers\":[\"the "
           "cat\",\"cats\"],\"documents\":[\"d9\"]}\n");
  std::string predictions_ =
      file("p.jsonl",
           "{\"id\":\"2\",\"prediction\":\"a cat "
           "sat\",\"ctxs\":[{\"id\":\"d1\",\"title\":\"\",\"text\":\"no\"},"
           "{\"id\":\"d9\",\"text\":\"See the "
           "cat!\",\"score\":\"0.5\"}]}\n{\"id\":\"1\",\"answer\":\"paris.\",\"documents\":[]}\n");
};

TEST_F(Qa, ScoresAnswersAndThePassagesTheyWereReadFrom) {
  const Result result = run_program({"eval", "qa", "--predictions", predictions_, "--references",
                                     references_, "-k", "1,2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json measures = result.json()["measures"];
  EXPECT_NEAR(measures["em"]["mean"].get<double>(), 50.0, kRounding);
  EXPECT_NEAR(measures["f1"]["mean"].get<double>(), 100.0 * (1.0 + 2.0 / 3) / 2, 1e-6);
  EXPECT_NEAR(measures["acc"]["mean"].get<double>(), 100.0, kRounding);
  EXPECT_NEAR(measures["has_answer@1"]["mean"].get<double>(), 0.0, kRounding);
  EXPECT_NEAR(measures["has_answer@2"]["mean"].get<double>(), 50.0, kRounding);
  EXPECT_NEAR(measures["gold@2"]["mean"].get<double>(), 50.0, kRounding);
  const std::string object = file("squad.json", "{\"1\":\"Paris\",\"2\":\"dog\"}");
  const Result compared = run_program(
      {"eval", "qa", "--predictions", object, "--references", references_, "--compare",
       file("other.json", "[{\"id\":1,\"answer\":\"Rome\"},{\"id\":2,\"answer\":\"dog\"}]"),
       "--json"});
  ASSERT_EQ(compared.code, 0) << compared.err;
  EXPECT_EQ(compared.json()["compared"]["measures"]["em"]["better"], 1);
  EXPECT_EQ(compared.json()["compared"]["measures"]["em"]["same"], 1);
}

TEST_F(Qa, DprOutputIsScoredAgainstItselfByItsPassages) {
  const std::string output =
      file("dpr.json",
           R"([{"question":"q","answers":["Paris"],"ctxs":[{"id":"1","title":"Paris","text":"no"},
               {"id":"2","title":"","text":"It is paris!","score":"80.5","has_answer":true}]}])");
  const Result result = run_program({"eval", "qa", "--from", "dpr", "--predictions", output,
                                     "--references", output, "-k", "1,2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json measures = result.json()["measures"];
  EXPECT_NEAR(measures["has_answer@1"]["mean"].get<double>(), 0.0, kRounding)
      << "titles are not searched";
  EXPECT_NEAR(measures["has_answer@2"]["mean"].get<double>(), 100.0, kRounding);
  EXPECT_FALSE(measures.contains("em")) << "nothing was answered";
}

TEST_F(Qa, ATrecRunBecomesDprsOutputWithPassagesAndAnswersFound) {
  const std::string corpus =
                        file("psgs.tsv",
                             "id\ttext\ttitle\n1\tno\tParis\n2\tIt is paris!\t\n3\tunasked\t\n"),
                    questions = file("qa.csv", "who?\t['Paris']\nwhere?\t['Rome']\n"),
                    run =
                        file("r.run", "qa:1 Q0 2 1 1.5 x\nqa:1 Q0 1 2 2.5 x\nqa:2 Q0 1 1 0.5 x\n"),
                    out = dir_.path() / "out.json";
  const Arguments command{"data",     "dpr",    "--run", run,        "--examples",
                          questions,  "--from", "dpr",   "--corpus", corpus,
                          "--output", out,      "--json"};
  const Result written = run_program(command);
  ASSERT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(written.json(),
            (Json{{"output", out}, {"questions", 2}, {"passages", 2}, {"bad_records", 0}}));
  const Json json = parse_json(read_file(out), "out.json");
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["question"], "who?");
  EXPECT_EQ(json[0]["answers"], Json({"Paris"}));
  ASSERT_EQ(json[0]["ctxs"].size(), 2U);
  EXPECT_EQ(
      json[0]["ctxs"][0],
      Json(
          {{"id", "1"}, {"title", "Paris"}, {"text", "no"}, {"score", 2.5}, {"has_answer", false}}))
      << "scores rank, and titles are not searched";
  EXPECT_EQ(json[0]["ctxs"][1]["has_answer"], true);
  const Json scored = run_program({"eval", "qa", "--from", "dpr", "--predictions", out,
                                   "--references", out, "-k", "1,2", "--json"})
                          .json()["measures"];
  EXPECT_NEAR(scored["has_answer@1"]["mean"].get<double>(), 0.0, kRounding);
  EXPECT_NEAR(scored["has_answer@2"]["mean"].get<double>(), 50.0, kRounding);
  file("r.run", "qa:1 Q0 9 1 1.5 x\n");
  expect_error(run_program(command), 3, {"'9'", "psgs.tsv does not have"});
  file("r.run", "qa:1 Q0 1 1 1.5 x\n");
  expect_error(run_program(command), 3, {"does not rank: qa:2"});
}

TEST_F(Qa, IdsThatDoNotMatchAreNamed) {
  const auto score = [&](const std::string& predictions, const Arguments& more = {}) {
    Arguments all{"eval",         "qa",        "--predictions", predictions,
                  "--references", references_, "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  };
  const std::string one = file("one.json", "{\"1\":\"Paris\"}");
  expect_error(score(one), 3, {"one.json", "no prediction for 1 of 2", ": 2."});
  EXPECT_NEAR(score(one, {"--missing", "zero"}).json()["measures"]["em"]["mean"].get<double>(),
              50.0, kRounding);
  expect_error(score(file("more.json", "{\"1\":\"x\",\"2\":\"x\",\"3\":\"x\"}")), 3,
               {"prediction for no reference: 3"});
  expect_error(
      score(file("twice.jsonl", "{\"id\":1,\"answer\":\"x\"}\n{\"id\":1,\"answer\":\"y\"}\n")), 3,
      {"twice.jsonl:2", "duplicate id"});
  expect_error(score(file("empty.jsonl", "")), 3, {"empty.jsonl", "not one good prediction"});
  expect_error(score(file("odd.jsonl", "{\"id\":1,\"said\":\"x\"}\n")), 3,
               {"odd.jsonl:1", "no field 'prediction'"});
  expect_error(score(one, {"--from", "klit"}), 2, {"klit"});
  expect_error(run_program({"eval", "qa", "--predictions", one, "--references",
                            file("none.jsonl", "{\"id\":\"1\",\"question\":\"q\"}\n")}),
               3, {"'1' has no answer"});
}

TEST_F(Qa, KiltGuessesAreScoredWithTheirEvidence) {
  const std::string gold = file("gold.jsonl",
                                "{\"id\":\"k\",\"input\":\"?\",\"output\":[{\"answer\":\"Paris\","
                                "\"provenance\":[{\"wikipedia_id\":\"7\"}]}]}\n");
  const std::string guess = file("guess.jsonl",
                                 "{\"id\":\"k\",\"output\":[{\"answer\":\"paris\",\"provenance\":[{"
                                 "\"wikipedia_id\":\"8\"},{\"wikipedia_id\":\"7\"}]}]}\n");
  const Result result = run_program({"eval", "qa", "--from", "kilt", "--predictions", guess,
                                     "--references", gold, "-k", "1,5", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json measures = result.json()["measures"];
  EXPECT_EQ(measures["em"]["mean"], 1.0);
  EXPECT_EQ(measures["kilt-em"]["mean"], 0.0);
  EXPECT_EQ(measures["recall@5"]["mean"], 1.0);
  EXPECT_EQ(measures["recall@1"]["mean"], 0.0);
}

TEST_F(Qa, RunsAndQrelsAreWrittenFromAnswersAndExamples) {
  const std::string run = dir_.path() / "r.run", qrels = dir_.path() / "q.qrels";
  ASSERT_EQ(
      run_program({"data", "trec", "--predictions", predictions_, "--output", run, "--tag", "me"})
          .code,
      0);
  EXPECT_EQ(read_file(run), "2 Q0 d9 1 0.5 me\n2 Q0 d1 2 -1 me\n");
  const Result judged =
      run_program({"data", "trec", "--examples", references_, "--output", qrels, "--json"});
  ASSERT_EQ(judged.code, 0) << judged.err;
  EXPECT_EQ(judged.json(),
            (Json{{"output", qrels}, {"queries", 2}, {"lines", 2}, {"bad_records", 0}}));
  EXPECT_EQ(read_file(qrels), "1 0 d1 1\n2 0 d9 1\n");
  EXPECT_EQ(run_program({"eval", "retrieval", "--qrels", qrels, "--run", run}).code, 0);
  EXPECT_EQ(run_program({"data", "trec", "--output", run}).code, 2);
}

TEST_F(Scores, VqaFollowsEachBenchmarksRule) {
  const std::string annotations =
      file("a.json",
           "{\"annotations\":[{\"question_id\":1,\"answer_type\":\"yes/"
           "no\",\"answers\":[{\"answer\":\"yes\"},"
           "{\"answer\":\"yes\"},{\"answer\":\"no\"},{\"answer\":\"no\"}]}]}");
  const std::string said = file("s.json", "[{\"question_id\":1,\"answer\":\"Yes.\"}]");
  const Result vqa =
      run_program({"eval", "vqa", "--predictions", said, "--references", annotations, "--json"});
  ASSERT_EQ(vqa.code, 0) << vqa.err;
  // Leaving out a "yes" one match of three is left, else two.
  EXPECT_NEAR(vqa.json()["measures"]["accuracy"]["mean"].get<double>(), 50.0, kRounding);
  EXPECT_NEAR(vqa.json()["totals"]["accuracy-yes/no"].get<double>(), 50.0, kRounding);
  const std::string infoseek =
      file("i.jsonl",
           "{\"data_id\":\"n\",\"image_id\":\"x\",\"question\":\"q\",\"answer\":[\"10\"],\"answer_"
           "eval\":[{\"wikidata\":10,\"range\":[9,11]}],"
           "\"data_split\":\"val_unseen_question\"}\n{\"data_id\":\"s\",\"image_id\":\"x\","
           "\"question\":\"q\",\"answer\":[\"Oak\"],"
           "\"answer_eval\":[\"oak\"],\"data_split\":\"val_unseen_entity\"}\n");
  const std::string both = file("b.jsonl",
                                "{\"data_id\":\"n\",\"prediction\":\"about "
                                "10.5\"}\n{\"data_id\":\"s\",\"prediction\":\"an oak\"}\n");
  const Result seen = run_program({"eval", "vqa", "--from", "infoseek", "--predictions", both,
                                   "--references", infoseek, "--json"});
  ASSERT_EQ(seen.code, 0) << seen.err;
  EXPECT_NEAR(seen.json()["totals"]["score"].get<double>(), 100.0, kRounding);
  const std::string kinds =
      file("k.jsonl", "{\"data_id\":\"n\",\"question_type\":\"Numerical\"}\n");
  expect_error(run_program({"eval", "vqa", "--from", "infoseek", "--predictions", both,
                            "--references", infoseek, "--question-types", kinds}),
               3, {"no question 's'"});
  const std::string evqa =
      file("e.csv", "question,answer,question_type\nq,red&&blue,multi_answer\n");
  const Result list =
      run_program({"eval", "vqa", "--from", "evqa", "--predictions",
                   file("e.json", "{\"e:1\":\"blue, red\"}"), "--references", evqa, "--json"});
  ASSERT_EQ(list.code, 0) << list.err;
  EXPECT_NEAR(list.json()["measures"]["em"]["mean"].get<double>(), 100.0, kRounding);
}

TEST_F(Scores, AOkvqaAsksForTheVerySameText) {
  const std::string questions = file(
      "aokvqa.json",
      R"([{"split":"val","image_id":7,"question_id":"a","question":"q","choices":["x","y"],"correct_choice_idx":0,
           "direct_answers":["oak","oak","tree","Oak"],"difficult_direct_answer":false},
          {"split":"val","image_id":8,"question_id":"b","question":"q","choices":["x","y"],"correct_choice_idx":1,
           "direct_answers":["red","red","red","red"],"difficult_direct_answer":false}])");
  for (const char* said :
       {R"({"a":"oak","b":"red"})",
        R"({"a":{"multiple_choice":"x","direct_answer":"oak"},"b":{"direct_answer":"red"}})"}) {
    const Result result =
        run_program({"eval", "vqa", "--from", "aokvqa", "--predictions", file("said.json", said),
                     "--references", questions, "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NEAR(result.json()["measures"]["accuracy"]["mean"].get<double>(),
                100 * (2.0 / 3 + 1) / 2, kRounding);
  }
  const std::string out = dir_.path() / "out";
  ASSERT_EQ(run_program({"data", "convert", "--from", "aokvqa", "--examples", questions, "--output",
                         out, "--json"})
                .code,
            0);
  const std::string converted = read_file(out + "/aokvqa.jsonl");
  const Json first = parse_json(converted.substr(0, converted.find('\n')), "first");
  EXPECT_EQ(first["image"], "000000000007.jpg");
  EXPECT_EQ(first["answers"], Json({"oak", "tree", "Oak"}));
  EXPECT_EQ(first["annotator_answers"].size(), 4U);
}

TEST_F(Scores, CaptionsAreTokenisedAndScored) {
  const std::string references =
      file("c.json",
           "{\"images\":[{\"id\":1,\"file_name\":\"a.jpg\"},{\"id\":2,\"file_name\":\"b.jpg\"}],"
           "\"annotations\":["
           "{\"image_id\":1,\"id\":1,\"caption\":\"A cat sits on the "
           "mat.\"},{\"image_id\":2,\"id\":2,\"caption\":\"Two dogs run.\"}]}");
  const std::string said = file("s.json",
                                "[{\"image_id\":1,\"caption\":\"a cat sits on the "
                                "mat\"},{\"image_id\":2,\"caption\":\"two dogs run!\"}]");
  const Result result =
      run_program({"eval", "caption", "--predictions", said, "--references", references, "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NEAR(result.json()["measures"]["rougel"]["mean"].get<double>(), 1.0, kRounding);
  EXPECT_NEAR(result.json()["totals"]["bleu-1"].get<double>(), 1.0, 1e-6)
      << "the reference's guards against 0 / 0";
  const Result raw = run_program({"eval", "caption", "--tokenized", "--predictions", said,
                                  "--references", references, "--json"});
  EXPECT_LT(raw.json()["measures"]["rougel"]["mean"].get<double>(), 1.0)
      << "'mat.' is another word";
}

TEST_F(Scores, AConvertedDataSetPassesTheCheck) {
  file("psgs.tsv", "id\ttext\ttitle\n1\t\"It is \"\"Paris\"\".\"\tFrance\n");
  const std::string train = file("train.json",
                                 "[{\"question\":\"q\",\"answers\":[\"Paris\"],\"positive_ctxs\":[{"
                                 "\"title\":\"France\",\"text\":\"x\",\"passage_id\":\"1\"}]}]");
  const std::string out = dir_.path() / "out";
  const Result converted =
      run_program({"data", "convert", "--from", "dpr", "--corpus", dir_.path() / "psgs.tsv",
                   "--examples", train, "--output", out, "--json"});
  ASSERT_EQ(converted.code, 0) << converted.err;
  EXPECT_EQ(converted.json()["documents"], 1);
  const Result checked = run_program({"data", "check", "--corpus", out + "/corpus.jsonl",
                                      "--examples", out + "/train.jsonl", "--json"});
  EXPECT_EQ(checked.code, 0) << checked.out;
  EXPECT_EQ(checked.json()["warnings"].size(), 0U) << "the gold document holds the answer";
  expect_error(run_program({"data", "convert", "--from", "dpr", "--corpus",
                            dir_.path() / "psgs.tsv", "--output", out}),
               1, {"exists"});
  expect_error(run_program({"data", "convert", "--from", "drp", "--corpus", "x", "--output", out}),
               2, {"Did you mean 'dpr'?"});
}

TEST(EvalNames, AMistypedCommandAndAMissingRunAreUsageErrors) {
  const Result typo = run_program({"eval", "retreival"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_NE(typo.err.find("Did you mean 'retrieval'?"), std::string::npos) << typo.err;
  EXPECT_EQ(run_program({"eval", "retrieval"}).code, 2) << "--qrels and --run are required";
}

}  // namespace
}  // namespace contexture::cli
