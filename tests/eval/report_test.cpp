#include "eval/report.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "data/image.h"
#include "eval/internal/picture_table.h"
#include "eval/internal/run_records.h"
#include "fake_run.h"

namespace contexture::eval {
namespace {

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t i = text.find(what); i != std::string::npos; i = text.find(what, i + 1)) ++count;
  return count;
}

TEST(Report, HoldsTheFiguresOfTheRun) {
  const TempDir dir;
  const std::string run = dir.path() / "my-run";
  make_fake_run(run);
  const Json data = report_data(run);
  EXPECT_EQ(data["name"], "my-run");
  EXPECT_EQ(data["verdict"],
            "Of 525 held-out questions, 76 % are answered exactly with retrieved documents, 9 % "
            "without any. A right document comes first for 88 %. When a fact in the index is "
            "edited, 85 % of the answers follow.");
  EXPECT_EQ(data["train"]["step"].size(), 3000u);
  EXPECT_TRUE(data["train"]["loss"][1233].is_null());  // that step's loss was not finite
  EXPECT_EQ(data["evals"]["recall_at.1"].size(), 12u);
  EXPECT_EQ(data["refreshes"].size(), 6u);
  EXPECT_EQ(data["refreshes"][0]["step"], 500);
  EXPECT_EQ(data["extra_series"], Json::array({"refresh_wait_s"}));
  EXPECT_EQ(data["samples"].size(), 6u);
  const Json expected_diff = {{{"key", "retriever.refresh_every"}, {"value", 500}, {"default", 0}},
                              {{"key", "train.lr"}, {"value", 1e-3}, {"default", 3e-4}},
                              {{"key", "train.steps"}, {"value", 3000}, {"default", 1000}}};
  EXPECT_EQ(data["config_diff"], expected_diff);
}

TEST(Report, AVerdictInTheSummaryIsUsedAsItIs) {
  const TempDir dir;
  write_file_atomic(dir.path() / "summary.json", std::string_view(R"({"verdict":"It works."})"));
  EXPECT_EQ(report_data(dir.path())["verdict"], "It works.");
}

TEST(Report, EachPictureIsEmbeddedOnce) {
  const TempDir dir;
  make_fake_run(dir.path());
  const Json data = report_data(dir.path());
  EXPECT_EQ(data["images"].size(), 10u);  // two styles of six flags, of which two look the same
  const Json& samples = data["samples"];
  EXPECT_EQ(samples[0]["documents"][1]["image"], samples[5]["documents"][0]["image"]);
}

TEST(Report, PicturesFromOutsideTheRunAndForeignContentAreRefused) {
  const TempDir dir;
  make_fake_run(dir.path());
  const Json data = report_data(dir.path());
  EXPECT_EQ(data["samples"][4]["documents"][1]["image"], -1);  // data:text/html
  EXPECT_EQ(data["samples"][4]["documents"][2]["image"], -1);  // ../../
  ASSERT_EQ(data["problems"].size(), 1u);
  EXPECT_NE(data["problems"][0].get<std::string>().find("2 picture(s) left out"),
            std::string::npos);
}

TEST(Report, TextOfTheRunCannotLeaveTheDataElement) {
  const TempDir dir;
  make_fake_run(dir.path());
  write_report(dir.path());
  const std::string page = read_file(dir.path() / "report.html");
  EXPECT_EQ(count_of(page, "</script>"), 3u);
  EXPECT_EQ(count_of(page, "owned'</script>"), 0u);
  EXPECT_EQ(count_of(page, "onerror=\""), 0u);
  EXPECT_EQ(count_of(page, "{{data}} \\u0026amp;"), 3u);  // kept, not substituted
  EXPECT_EQ(count_of(page, "\xe2\x80\xa8"), 0u);          // U+2028 only in escaped form
}

TEST(Report, ThePageAsksTheNetworkForNothing) {
  const TempDir dir;
  write_report(dir.path());
  const std::string page = read_file(dir.path() / "report.html");
  EXPECT_EQ(count_of(page, "http://"), 1u);  // the name of the SVG namespace
  EXPECT_EQ(count_of(page, "https://"), 0u);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
}

TEST(Report, ADeadRunShowsWhatItGotTo) {
  const TempDir dir;
  make_fake_run(dir.path(), {.steps = 300, .finished = false});
  const Json data = report_data(dir.path());
  const auto verdict = data["verdict"].get<std::string>();
  EXPECT_TRUE(verdict.starts_with("Not finished: the log ends at step 300, loss ")) << verdict;
  EXPECT_NE(verdict.find("step 250"), std::string::npos) << verdict;
  EXPECT_EQ(data["problems"], Json::array({"metrics.jsonl: 1 unreadable line(s) left out"}));
}

TEST(Report, AnEmptyFolderGivesAPage) {
  const TempDir dir;
  write_report(dir.path());
  EXPECT_EQ(report_data(dir.path())["verdict"], "This run has not logged a step yet.");
}

TEST(Report, DamagedFilesAreNamedAndTheRestIsShown) {
  const TempDir dir;
  make_fake_run(dir.path(), {.steps = 20});
  write_file_atomic(dir.path() / "summary.json", std::string_view("{\"held_out\":"));
  write_file_atomic(dir.path() / "samples.json",
                    std::string_view(R"({"samples":[7,{"question":3,"documents":{}}],"edits":1})"));
  const Json data = report_data(dir.path());
  ASSERT_EQ(data["problems"].size(), 1u);
  EXPECT_TRUE(data["problems"][0].get<std::string>().starts_with("summary.json"));
  ASSERT_EQ(data["samples"].size(), 1u);
  EXPECT_EQ(data["samples"][0]["question"], "3");
  EXPECT_EQ(data["train"]["loss"].size(), 20u);
}

TEST(Report, AFolderThatIsNotThereIsAnError) {
  EXPECT_THROW(write_report("/nowhere/at/all"), UserError);
}

TEST(RunCurves, LongRunsAreThinnedToMeans) {
  std::string lines;
  for (int step = 1; step <= 10; ++step) {
    lines += Json{{"step", step}, {"loss", step == 3 ? Json() : Json(step)}}.dump() + "\n";
  }
  const Json curves = run_curves(lines, /*max_points=*/4);
  EXPECT_EQ(curves["thinned"], 3);
  EXPECT_EQ(curves["train"]["step"], Json({3.0, 6.0, 9.0, 10.0}));
  EXPECT_EQ(curves["train"]["loss"], Json({1.5, 5.0, 8.0, 10.0}));
}

TEST(PictureTable, LargePicturesAreEmbeddedSmaller) {
  const TempDir dir;
  data::Image image{600, 800, std::vector<uint8_t>(600 * 800 * 3)};
  uint32_t noise = 1;
  for (auto& v : image.rgb)
    v = static_cast<uint8_t>((noise = noise * 1664525u + 1013904223u) >> 24);
  write_file_atomic(dir.path() / "big.png", std::span<const std::byte>(data::encode_png(image)));
  PictureTable table(dir.path());
  EXPECT_EQ(table.add("big.png"), 0);
  EXPECT_EQ(table.num_refused(), 0) << table.first_refusal();
  EXPECT_TRUE(table.uris()[0].starts_with("data:image/jpeg;base64,"));
  EXPECT_LT(table.uris()[0].size(), 200'000u);
}

TEST(PictureTable, Base64PadsAsTheStandardSays) {
  EXPECT_EQ(base64(as_bytes("")), "");
  EXPECT_EQ(base64(as_bytes("f")), "Zg==");
  EXPECT_EQ(base64(as_bytes("fo")), "Zm8=");
  EXPECT_EQ(base64(as_bytes("foobar")), "Zm9vYmFy");
}

}  // namespace
}  // namespace contexture::eval
