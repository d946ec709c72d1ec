// Every foreign format, in its exact layout, through convert and back through our own reader.
#include "data/formats.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"
#include "data/convert.h"
#include "data/inspect.h"

namespace contexture::data {
namespace {

using Strings = std::vector<std::string>;

class Formats : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) {
    const auto path = dir_.path() / name;
    make_folders(path.parent_path());
    write_file_atomic(path, content);
    return path.string();
  }
  ConvertOptions options(const std::string& from) {
    ConvertOptions options;
    options.from = from;
    options.output = (dir_.path() / "out").string();
    return options;
  }
  Corpus corpus() {
    BadRecords bad;
    return read_corpus((dir_.path() / "out/corpus.jsonl").string(), bad);
  }
  std::vector<Example> examples(const std::string& name) {
    BadRecords bad;
    return read_examples((dir_.path() / "out" / (name + ".jsonl")).string(), bad).examples;
  }
  // Whether `data check` finds nothing wrong with what was written.
  void expect_clean(const Strings& names, bool with_corpus = true) {
    InspectInputs inputs;
    if (with_corpus) inputs.corpus = (dir_.path() / "out/corpus.jsonl").string();
    for (const std::string& name : names)
      inputs.examples.push_back((dir_.path() / "out" / (name + ".jsonl")).string());
    inputs.decode_images = false;
    const CheckReport report = check_data(inputs);
    EXPECT_EQ(report.bad.count, 0) << report.to_text();
  }
  TempDir dir_;
};

TEST_F(Formats, BeirFoldersGiveTheirCorpusAndEverySplit) {
  file("b/corpus.jsonl",
       "{\"_id\":\"d1\",\"title\":\"T\",\"text\":\"one\",\"metadata\":{\"url\":\"u\"}}\n{\"_id\":"
       "\"d2\",\"title\":\"\",\"text\":\"two\"}\n");
  file("b/queries.jsonl",
       "{\"_id\":\"q1\",\"text\":\"first?\"}\n{\"_id\":\"q2\",\"text\":\"second?\",\"metadata\":{}}"
       "\n{\"_id\":\"q3\",\"text\":\"in no split\"}\n");
  file("b/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n");
  file("b/qrels/dev.tsv", "query-id\tcorpus-id\tscore\nq2\td2\t1\n");
  ConvertOptions beir = options("beir");
  beir.folder = (dir_.path() / "b").string();
  const ConvertReport report = convert(beir);
  EXPECT_EQ(report.documents, 2);
  EXPECT_EQ(report.examples, 2);
  EXPECT_EQ(corpus().documents[0].meta["metadata"]["url"], "u");
  const Example test = examples("test")[0];
  EXPECT_EQ(test.id, "q1");
  EXPECT_EQ(test.documents, Strings{"d1"});
  EXPECT_EQ(test.meta["relevance"]["d1"], 2);
  EXPECT_EQ(examples("dev")[0].question, "second?");
  expect_clean({"dev", "test"});
}

TEST_F(Formats, DprPassagesAndQuestionsKeepQuotesAndLists) {
  ConvertOptions dpr = options("dpr");
  dpr.corpus = {file("psgs_w100.tsv",
                     "id\ttext\ttitle\n1\t\"The \"\"Big\"\" city is Paris.\"\tFrance\n2\tplain "
                     "\"text\"\t\"A \"\"T\"\"\"\n")};
  dpr.examples = {
      file("nq-test.qa.csv", "who said it?\t['Paris', \"it's\"]\nwhat?\t['caf\\u00e9']\n")};
  convert(dpr);
  EXPECT_EQ(corpus().documents[0].text, "The \"Big\" city is Paris.");
  EXPECT_EQ(corpus().documents[1].title, "A \"T\"");
  const auto read = examples("nq-test.qa");
  EXPECT_EQ(read[0].answers, (Strings{"Paris", "it's"}));
  EXPECT_EQ(read[1].answers, Strings{"caf\u00e9"});
  EXPECT_EQ(read[1].id, "nq-test.qa:2");
  expect_clean({"nq-test.qa"});
}

TEST_F(Formats, DprTrainingListsBringTheirPassagesAlong) {
  ConvertOptions dpr = options("dpr");
  dpr.examples = {file("train.json", R"([
 {"dataset":"nq","question":"q one","answers":["a"],
  "positive_ctxs":[{"title":"T","text":"holds a","score":1000,"passage_id":"17"}],
  "negative_ctxs":[],"hard_negative_ctxs":[{"title":"H","text":"hard","passage_id":18}]},
 {"question":"q two","answers":[],"positive_ctxs":[{"title":"T","text":"holds a","passage_id":"17"},{"title":"N","text":"no id"}],
  "negative_ctxs":[],"hard_negative_ctxs":[]}])")};
  const ConvertReport report = convert(dpr);
  EXPECT_EQ(report.documents, 3) << "each passage once";
  const auto read = examples("train");
  EXPECT_EQ(read[0].documents, Strings{"17"});
  EXPECT_EQ(read[0].meta["hard_negative_ctxs"], Json({"18"}));
  EXPECT_EQ(read[1].documents.size(), 2U);
  EXPECT_EQ(read[1].documents[1].rfind("passage-", 0), 0U);
  expect_clean({"train"});
}

TEST_F(Formats, DprOutputAndFidMarkThePassagesThatHoldTheAnswer) {
  for (const char* format : {"dpr", "atlas"}) {
    SCOPED_TRACE(format);
    ConvertOptions output = options(format);
    output.output = (dir_.path() / "out").string();
    output.examples = {file("r.json", R"([{"question":"q","answers":["a"],"ctxs":[
      {"id":"1","title":"t","text":"x","score":"81.2","has_answer":false},{"id":"2","title":"t","text":"a","score":80.1,"has_answer":true}]}])")};
    convert(output);
    EXPECT_EQ(examples("r")[0].documents, Strings{"2"});
    EXPECT_EQ(examples("r")[0].meta["retrieved"], Json({"1", "2"}));
    expect_clean({"r"});
    std::filesystem::remove_all(dir_.path() / "out");
  }
}

TEST_F(Formats, AtlasPassagesAndQuestions) {
  ConvertOptions atlas = options("atlas");
  atlas.corpus = {file("wiki.jsonl",
                       "{\"id\":\"0\",\"title\":\"Paris\",\"section\":\"History\",\"text\":\"old\"}"
                       "\n{\"title\":\"Rome\",\"text\":\"older\"}\n")};
  atlas.examples = {file("nq.jsonl",
                         "{\"question\":\"q\",\"answers\":[\"a\"]}\n{\"question\":\"r\",\"target\":"
                         "\"b\",\"answers\":[]}\n{\"question\":\"s\"}\n")};
  convert(atlas);
  EXPECT_EQ(corpus().documents[0].title, "Paris: History");
  EXPECT_EQ(corpus().documents[1].id, "wiki:2");
  EXPECT_EQ(examples("nq")[1].answers, Strings{"b"});
  EXPECT_TRUE(examples("nq")[2].answers.empty());
  expect_clean({"nq"});
}

TEST_F(Formats, FlashRagSplitsTheTitleFromTheContents) {
  ConvertOptions flash = options("flashrag");
  flash.corpus = {file("c.jsonl",
                       "{\"id\":\"0\",\"contents\":\"\\\"Paris\\\"\\ntext of "
                       "it\"}\n{\"id\":1,\"contents\":\"no title\"}\n")};
  flash.examples = {file("dev.jsonl",
                         "{\"id\":\"dev_0\",\"question\":\"q\",\"golden_answers\":[\"a\",\"b\"],"
                         "\"metadata\":{\"type\":\"x\"}}\n")};
  convert(flash);
  EXPECT_EQ(corpus().documents[0].title, "Paris");
  EXPECT_EQ(corpus().documents[0].text, "text of it");
  EXPECT_EQ(corpus().documents[1].text, "no title");
  EXPECT_EQ(examples("dev")[0].answers, (Strings{"a", "b"}));
  EXPECT_EQ(examples("dev")[0].meta["metadata"]["type"], "x");
  expect_clean({"dev"});
}

TEST_F(Formats, KiltPagesAndTasksKeepTheirEvidence) {
  ConvertOptions kilt = options("kilt");
  kilt.corpus = {file("ks.json",
                      "{\"wikipedia_id\":\"290\",\"wikipedia_title\":\"A\",\"text\":[\"A\\n\",\"A "
                      "is a letter.\\n\",\"Section::::History.\\n\"],\"anchors\":[]}\n")};
  kilt.examples = {file("fever-dev.jsonl",
                        "{\"id\":\"k1\",\"input\":\"claim\",\"output\":[{\"answer\":\"SUPPORTS\","
                        "\"provenance\":[{\"wikipedia_id\":290,\"title\":\"A\"}]},"
                        "{\"answer\":\"SUPPORTS\"}],\"meta\":{\"m\":1}}\n{\"id\":\"k2\",\"input\":"
                        "\"no answers in test files\",\"output\":[]}\n")};
  convert(kilt);
  EXPECT_EQ(corpus().documents[0].text, "A is a letter.\nSection::::History.");
  const auto read = examples("fever-dev");
  EXPECT_EQ(read[0].answers, Strings{"SUPPORTS"});
  EXPECT_EQ(read[0].documents, Strings{"290"});
  EXPECT_EQ(read[0].meta["output"][0]["provenance"][0]["title"], "A");
  EXPECT_TRUE(read[1].answers.empty());
  expect_clean({"fever-dev"});
}

TEST_F(Formats, VqaQuestionsMeetTheirAnnotations) {
  ConvertOptions vqa = options("vqa");
  vqa.examples = {file(
      "questions.json",
      R"({"info":{},"questions":[{"image_id":9,"question":"what?","question_id":9001},{"image_id":9,"question":"why?","question_id":9002}]})")};
  vqa.foreign.annotations = file("a.json", R"({"annotations":[
   {"question_id":9001,"image_id":9,"answer_type":"other","answers":[{"answer":"a","answer_id":1},{"answer":"b","answer_id":2},{"answer":"b","answer_id":3}]},
   {"question_id":9002,"image_id":9,"answer_type":"yes/no","answers":[{"answer":"no","answer_id":1}]}]})");
  vqa.foreign.image_name = "COCO_val2014_{id:012}.jpg";
  vqa.images = (dir_.path() / "pictures").string();
  file("pictures/COCO_val2014_000000000009.jpg",
       read_file(CONTEXTURE_SOURCE_DIR "/tests/fixtures/flags/images/FR.png"));
  convert(vqa);
  const auto read = examples("questions");
  EXPECT_EQ(read[0].id, "9001");
  EXPECT_EQ(read[0].image, "images/COCO_val2014_000000000009.jpg");
  EXPECT_EQ(read[0].answers, (Strings{"b", "a"})) << "most frequent first";
  EXPECT_EQ(read[0].meta["annotator_answers"], Json({"a", "b", "b"}));
  EXPECT_EQ(read[1].type, "yes/no");
  expect_clean({"questions"}, false);
}

TEST_F(Formats, InfoSeekQuestionsPointAtTheirEntity) {
  ConvertOptions infoseek = options("infoseek");
  infoseek.corpus = {
      file("Wiki6M.jsonl",
           "{\"wikidata_id\":\"Q1\",\"wikipedia_title\":\"Eiffel "
           "Tower\",\"wikipedia_content\":\"330 m\",\"wikipedia_summary\":\"s\"}\n")};
  infoseek.examples = {file("val.jsonl",
                            "{\"data_id\":\"infoseek_val_0\",\"image_id\":\"oven_1\",\"question\":"
                            "\"how tall?\",\"answer\":[\"330\"],"
                            "\"answer_eval\":[{\"wikidata\":330.0,\"range\":[297.0,363.0]}],\"data_"
                            "split\":\"val_unseen_entity\",\"entity_id\":\"Q1\"}\n")};
  convert(infoseek);
  const Example read = examples("val")[0];
  EXPECT_EQ(read.documents, Strings{"Q1"});
  EXPECT_EQ(read.image, "oven_1.jpg");
  EXPECT_EQ(read.meta["answer_eval"][0]["range"][0], 297.0);
  EXPECT_EQ(corpus().documents[0].title, "Eiffel Tower");
}

TEST_F(Formats, EncyclopedicVqaReadsItsCsvAndKnowledgeBase) {
  ConvertOptions evqa = options("evqa");
  evqa.corpus = {file(
      "kb.json",
      R"({"https://en.wikipedia.org/wiki/Oak":{"title":"Oak","section_titles":["Oak","Uses"],"section_texts":["A tree.",""]},
 "https://en.wikipedia.org/wiki/Elm":{"title":"Elm","section_titles":["Elm"],"section_texts":["Another."]}})")};
  evqa.examples = {file("train.csv",
                        "question,question_original,answer,dataset_image_ids,dataset_name,"
                        "wikipedia_url,evidence_section_id,question_type\n"
                        "\"How big, exactly?\",x,20 m|twenty "
                        "metres,11|12,inaturalist,https://en.wikipedia.org/wiki/Oak,0,templated\n"
                        "Uses?,x,fuel&&ships,13,inaturalist,https://en.wikipedia.org/wiki/"
                        "Oak|https://en.wikipedia.org/wiki/Elm,1|0,multi_answer\n")};
  convert(evqa);
  EXPECT_EQ(corpus().documents[0].text, "Oak\nA tree.");
  const auto read = examples("train");
  EXPECT_EQ(read[0].question, "How big, exactly?");
  EXPECT_EQ(read[0].answers, (Strings{"20 m", "twenty metres"}));
  EXPECT_EQ(read[0].image, "11.jpg");
  EXPECT_EQ(read[1].answers, Strings{"fuel, ships"});
  EXPECT_EQ(read[1].documents.size(), 2U);
  EXPECT_EQ(read[1].meta["answer"], "fuel&&ships");
}

TEST_F(Formats, CocoGathersTheCaptionsOfAPicture) {
  ConvertOptions coco = options("coco");
  coco.examples = {file(
      "captions.json",
      R"({"annotations":[{"image_id":7,"id":1,"caption":"a cat"},{"image_id":5,"id":2,"caption":"a dog"},{"image_id":7,"id":3,"caption":"the cat"}],
   "images":[{"id":5,"file_name":"five.jpg"},{"id":7,"file_name":"seven.jpg"}]})")};
  convert(coco);
  const auto read = examples("captions");
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[0].answers, (Strings{"a cat", "the cat"}));
  EXPECT_EQ(read[0].image, "seven.jpg");
  EXPECT_EQ(read[0].question, "Describe the picture.");
}

// One case a reader: what is wrong is named with its place, the rest is read; "fail" stops there
// and writes nothing.
TEST_F(Formats, BadRecordsAreNamedCountedAndSkippedOrFatal) {
  ConvertOptions dpr = options("dpr");
  dpr.corpus = {file("p.tsv", "id\ttext\ttitle\n1\ta\tT\n1\tagain\tT\n2\tno title\n3\tb\tT\n")};
  dpr.examples = {
      file("q.tsv", "good\t['a']\nbad\t__import__('os').system('true')\nthree\t['a']\tcolumns\n")};
  EXPECT_THROW(convert(dpr), DataError);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "out/corpus.jsonl"))
      << "nothing appears after an error";
  dpr.policy = BadRecords::Policy::kSkip;
  const ConvertReport report = convert(dpr);
  EXPECT_EQ(report.documents, 2);
  EXPECT_EQ(report.examples, 1);
  EXPECT_EQ(report.bad.by_reason,
            (std::map<std::string, int64_t>{
                {"duplicate id", 1}, {"not a DPR question", 2}, {"not a passage", 1}}));
  EXPECT_NE(report.bad.first[0].find("p.tsv:3: duplicate id: 1"), std::string::npos)
      << report.bad.first[0];
  EXPECT_NE(report.bad.first[1].find("p.tsv:4: not a passage: 2 columns"), std::string::npos)
      << report.bad.first[1];
  EXPECT_NE(report.bad.first[2].find("q.tsv:2: not a DPR question"), std::string::npos)
      << report.bad.first[2];
}

TEST_F(Formats, EveryReaderNamesARecordWithAFieldMissing) {
  const auto bad_examples = [&](const std::string& format, const std::string& name,
                                const std::string& content, ForeignOptions foreign = {}) {
    BadRecords bad(BadRecords::Policy::kSkip);
    int64_t good = 0;
    read_foreign_examples(format, file(name, content), foreign, bad,
                          [&](const std::string&, Example) { ++good; });
    EXPECT_EQ(good, 0) << format;
    EXPECT_GE(bad.count, 1) << format;
  };
  const auto bad_documents = [&](const std::string& format, const std::string& name,
                                 const std::string& content) {
    BadRecords bad(BadRecords::Policy::kSkip);
    int64_t good = 0;
    read_foreign_documents(format, file(name, content), bad,
                           [&](const std::string&, Document) { ++good; });
    EXPECT_EQ(good, 0) << format;
    EXPECT_EQ(bad.count, 1) << format;
  };
  bad_examples("kilt", "k.jsonl", "{\"id\":\"1\"}\n");
  bad_examples("atlas", "a.jsonl", "{\"answers\":[\"x\"]}\n");
  bad_examples("flashrag", "f.jsonl",
               "{\"id\":\"1\",\"question\":\"q\",\"golden_answers\":[{}]}\n");
  bad_examples("infoseek", "i.jsonl", "{\"data_id\":\"1\",\"question\":\"q\"}\n");
  bad_examples("vqa", "v.json", R"({"questions":[{"question_id":1,"question":"no image"}]})");
  bad_examples("coco", "c.json", R"({"images":[],"annotations":[{"image_id":1,"caption":"x"}]})");
  bad_examples("evqa", "e.csv", "question,answer,question_type\nonly one\n");
  bad_examples("contexture", "o.jsonl", "{\"id\":\"1\"}\n");
  ForeignOptions judged;
  judged.qrels = file("j.tsv", "q\td\t1\n");
  bad_examples("beir", "b.jsonl", "{\"_id\":\"q\"}\n", judged);
  bad_documents("beir", "d1.jsonl", "{\"_id\":\"q\"}\n");
  bad_documents("atlas", "d2.jsonl", "{\"title\":\"q\"}\n");
  bad_documents("flashrag", "d3.jsonl", "{\"contents\":\"q\"}\n");
  bad_documents("kilt", "d4.jsonl", "{\"text\":[\"q\"]}\n");
  bad_documents("infoseek", "d5.jsonl", "{\"wikidata_id\":\"Q1\"}\n");
  bad_documents("evqa", "d6.json", R"({"u":{"section_titles":["a"],"section_texts":[]}})");
  bad_documents("contexture", "d7.jsonl", "{\"id\":\"1\"}\n");
}

TEST_F(Formats, WhatCannotBeDoneIsRefused) {
  EXPECT_THROW(find_format("brei"), UsageError);
  BadRecords bad;
  EXPECT_THROW(read_foreign_documents("coco", "x", bad, [](const std::string&, Document) {}),
               UsageError);
  EXPECT_THROW(convert(options("dpr")), UsageError) << "nothing to read";
  ConvertOptions two = options("atlas");
  two.examples = {file("a/dev.jsonl", "{\"question\":\"q\"}\n"),
                  file("b/dev.jsonl", "{\"question\":\"q\"}\n")};
  EXPECT_THROW(convert(two), UsageError) << "one name";
  two.examples.pop_back();
  convert(two);
  EXPECT_THROW(convert(two), UserError) << "the file is there already";
  EXPECT_THROW(image_name("x.jpg", "1"), UsageError);
  EXPECT_THROW(image_name("{id:12}.jpg", "1"), UsageError);
  EXPECT_EQ(image_name("a/{id:04}.jpg", "12345"), "a/12345.jpg");
  EXPECT_EQ(image_name("{id}", "x"), "x");
}

TEST_F(Formats, ManyDuplicateIdsAreFoundAmongManyDocuments) {
  std::string rows = "id\ttext\ttitle\n";
  for (int i = 0; i < 5000; ++i) rows += std::to_string(i) + "\tx\ty\n";
  rows += "0\tx\ty\n4999\tx\ty\n";
  ConvertOptions dpr = options("dpr");
  dpr.corpus = {file("p.tsv", rows)};
  dpr.policy = BadRecords::Policy::kSkip;
  const ConvertReport report = convert(dpr);
  EXPECT_EQ(report.documents, 5000);
  EXPECT_EQ(report.bad.count, 2);
}

}  // namespace
}  // namespace contexture::data
