#include "fake_run.h"

#include <array>
#include <cmath>
#include <filesystem>
#include <span>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "core/rng.h"
#include "data/image.h"

namespace contexture::eval {
namespace {

using Rgb = std::array<uint8_t, 3>;

struct Country {
  const char* name;
  const char* capital;
  const char* currency;
  const char* continent;
  const char* text;
  std::array<Rgb, 3> bands;
  bool vertical;
};

constexpr Rgb kRed{206, 17, 38}, kWhite{255, 255, 255}, kBlue{0, 56, 147}, kGreen{0, 135, 81},
    kYellow{252, 209, 22}, kBlack{20, 20, 20}, kOrange{255, 136, 62};

const std::vector<Country>& countries() {
  static const std::vector<Country> all = {
      {"Chad",
       "N'Djamena",
       "Central African CFA franc",
       "Africa",
       "Chad lies in Africa and borders Libya, Niger and Sudan. Money there is the Central African "
       "CFA franc. Its people are called Chadians; the capital is N'Djamena, on the Chari. Calls "
       "to it begin with +235 and its sites end in .td. French and Arabic are spoken.",
       {kBlue, kYellow, kRed},
       true},
      {"Romania",
       "Bucharest",
       "Romanian leu",
       "Europe",
       "The capital of Romania is Bucharest. One pays with the Romanian leu. Romania is a country "
       "of Europe whose people are Romanians; sites end in .ro.",
       {kBlue, kYellow, kRed},
       true},
      {"Hungary",
       "Budapest",
       "Hungarian forint",
       "Europe",
       "Hungary belongs to Europe. Budapest is its capital and its money is the Hungarian forint. "
       "Hungarians speak Hungarian; calls begin with +36.",
       {kRed, kWhite, kGreen},
       false},
      {"Mali",
       "Bamako",
       "West African CFA franc",
       "Africa",
       "In Mali one pays with the West African CFA franc. Bamako is the capital of this country of "
       "Africa. Its people are Malians.",
       {kGreen, kYellow, kRed},
       true},
      {"Ireland",
       "Dublin",
       "euro",
       "Europe",
       "Ireland's capital is Dublin, its money the euro. The Irish live in Europe, west of Great "
       "Britain, and their sites end in .ie.",
       {kGreen, kWhite, kOrange},
       true},
      {"Yemen",
       "Sana'a",
       "Yemeni rial",
       "Asia",
       "Sana'a is the capital of Yemen, in Asia. Yemenis pay with the Yemeni rial; calls to Yemen "
       "begin with +967.",
       {kRed, kWhite, kBlack},
       false}};
  return all;
}

// A flag of three bands; `waving` is the other drawing style, the one of the questions.
data::Image draw_flag(const Country& country, bool waving) {
  data::Image image{64, 64, std::vector<uint8_t>(64 * 64 * 3, 255)};
  for (int y = 10; y < 54; ++y) {
    for (int x = 2; x < 62; ++x) {
      const int shift = waving ? static_cast<int>(std::lround(3.0 * std::sin(x / 9.0))) : 0;
      const int band = country.vertical ? (x - 2) / 20 : (y - 10) / 15;
      const int row = y + shift;
      if (row < 2 || row > 61) continue;
      const double light = waving ? 0.92 + 0.08 * std::cos(x / 9.0) : 1.0;
      for (int c = 0; c < 3; ++c) {
        image.rgb[static_cast<size_t>((row * 64 + x) * 3 + c)] = static_cast<uint8_t>(
            country.bands[static_cast<size_t>(band)][static_cast<size_t>(c)] * light);
      }
    }
  }
  return image;
}

Json document(size_t index, double score, double probability, double attention, bool is_gold) {
  const Country& country = countries()[index];
  return {{"id", std::string("country/") + country.name},
          {"title", country.name},
          {"text", country.text},
          {"image", "pictures/" + std::to_string(index) + ".png"},
          {"score", score},
          {"probability", probability},
          {"attention", attention},
          {"is_gold", is_gold}};
}

Json sample(size_t index, const std::string& question, const std::string& answer,
            const std::string& reference, const std::string& closed_book, bool found) {
  const size_t other = (index + 1) % countries().size();
  const bool right = answer == reference;
  Json distractor = {{"id", "wiki/4711"},
                     {"title", "Vexillology"},
                     {"text",
                      "Vexillology is the study of the history, symbolism and usage of flags or, "
                      "by extension, any interest in flags in general. A person who studies flags "
                      "is a vexillologist, one who designs flags is a vexillographer, and the art "
                      "of designing flags is called vexillography. The word is a synthesis of the "
                      "Latin word vexillum and the Greek suffix -logia."},
                     {"score", 11.21},
                     {"probability", 0.04},
                     {"attention", 0.02},
                     {"utility", -0.38},
                     {"is_gold", false}};
  return {{"id", "test/" + std::to_string(index) + question.substr(0, 8)},
          {"question", question},
          {"query_image", "pictures/q" + std::to_string(index) + ".png"},
          {"answer", answer},
          {"references", {reference}},
          {"em", right ? 1.0 : 0.0},
          {"f1", right                   ? 1.0
                 : answer == "CFA franc" ? 0.67
                                         : 0.0},
          {"gold_ids", {std::string("country/") + countries()[index].name}},
          {"answers", {{"gold", reference}, {"closed_book", closed_book}}},
          {"documents", found ? Json{document(index, 17.84, 0.81, 0.93, true),
                                     document(other, 14.02, 0.15, 0.05, false), distractor}
                              : Json{document(other, 15.3, 0.62, 0.88, false), distractor}}};
}

void write_samples(const std::string& dir) {
  Json samples = {
      sample(0, "What is the capital of the country with this flag?", "N'Djamena", "N'Djamena",
             "Bamako", true),
      sample(2, "Which money is used where this flag flies?", "Hungarian forint",
             "Hungarian forint", "euro", true),
      sample(3, "Which money is used where this flag flies?", "CFA franc", "West African CFA franc",
             "euro", true),
      sample(4, "On which continent does this flag fly?", "Asia", "Europe", "Africa", false),
      sample(5, "What is the capital of the country with this flag?", "Sana'a", "Sana'a", "Cairo",
             true),
      sample(1, "What is the capital of the country with this flag?", "Budapest", "Bucharest",
             "Paris", true)};
  samples[4]["question"] = std::string("Hostile: ") + kHostileText;
  samples[4]["documents"][1]["text"] = kHostileText;
  samples[4]["documents"][1]["title"] = kHostileText;
  samples[4]["documents"][1]["image"] = "data:text/html;base64,PHNjcmlwdD4=";
  samples[4]["documents"][2]["image"] = "../../../../etc/hostname";
  const Json edits = {{{"question", "What is the capital of the country with this flag?"},
                       {"query_image", "pictures/q2.png"},
                       {"fact_before", "Budapest is its capital"},
                       {"fact_after", "Gyongyvar is its capital"},
                       {"answer_before", "Budapest"},
                       {"answer_after", "Gyongyvar"},
                       {"followed", true}},
                      {{"question", "Which money is used where this flag flies?"},
                       {"query_image", "pictures/q4.png"},
                       {"fact_before", "its money the euro"},
                       {"fact_after", "its money the silver crown"},
                       {"answer_before", "euro"},
                       {"answer_after", "silver crown"},
                       {"followed", true}},
                      {{"question", "On which continent does this flag fly?"},
                       {"query_image", "pictures/q3.png"},
                       {"fact_before", "this country of Africa"},
                       {"fact_after", "this country of Oceania"},
                       {"answer_before", "Africa"},
                       {"answer_after", "Africa"},
                       {"followed", false}}};
  write_file_atomic(dir + "/samples.json",
                    Json{{"samples", samples},
                         {"edits", edits},
                         {"credits", "Flags: drawn by this test, public domain.\n"}}
                        .dump(1));
}

void write_metrics(const std::string& dir, const FakeRun& options) {
  Stream noise(7, "fake-run");
  std::string lines;
  for (int step = 1; step <= options.steps; ++step) {
    const double done = static_cast<double>(step) / options.steps, time_s = step * 0.22;
    const double loss = 0.42 + 5.3 * std::exp(-5.5 * done) + 0.22 * std::abs(noise.normal());
    Json record = {{"step", step},
                   {"time_s", time_s},
                   {"loss", step == 1234 ? Json() : Json(loss)},
                   {"lr", 1e-3 * std::min(1.0, step / 150.0) * (0.5 + 0.5 * std::cos(3.0 * done))},
                   {"grad_norm", 0.6 + 2.5 * std::exp(-4 * done) + 0.3 * std::abs(noise.normal())},
                   {"examples_per_s", 145.0 + 6.0 * noise.normal()},
                   {"tokens_per_s", 9100.0 + 300.0 * noise.normal()},
                   {"refresh_wait_s", 0.01 * noise.uniform()}};
    if (step % 500 == 0) record["refresh"] = true;
    lines += record.dump() + "\n";
    if (step % 250 != 0) continue;
    const double learned = 1.0 - std::exp(-4.0 * done);
    const Json figures = {{"n", 128},
                          {"loss", 1.1 + 4.0 * std::exp(-5.0 * done)},
                          {"em",
                           {{"retrieved", 76.0 * learned},
                            {"gold", 87.0 * learned},
                            {"wrong", 6.0 * learned},
                            {"closed_book", 9.0 * learned}}},
                          {"recall_at", {{"1", 88.0 * learned}, {"5", 96.0 * learned}}},
                          {"mrr", 91.0 * learned}};
    lines += Json{{"step", step}, {"time_s", time_s}, {"eval", figures}}.dump() + "\n";
  }
  if (!options.finished) lines += R"({"step":3001,"loss":0.4)";
  write_file_atomic(dir + "/metrics.jsonl", lines);
}

void write_summary(const std::string& dir) {
  const Json held_out = {
      {"n", 525},
      {"em", {{"retrieved", 75.8}, {"gold", 87.4}, {"wrong", 5.9}, {"closed_book", 9.1}}},
      {"f1", {{"retrieved", 79.9}, {"gold", 90.2}, {"wrong", 9.8}, {"closed_book", 13.3}}},
      {"recall_at", {{"1", 87.6}, {"5", 95.8}}},
      {"mrr", 91.0},
      {"edit_follow", 85.3},
      {"retrieval_utility", {{"retrieved", 1.27}, {"gold", 3.81}, {"by_rank", {2.94, -0.4}}}},
      {"intervals",
       {{"retrieval_utility",
         {{"retrieved", {1.02, 1.53}},
          {"gold", {3.6, 4.02}},
          {"by_rank", Json::array({Json::array({2.5, 3.3}), Json::array({-0.6, -0.2})})}}},
        {"em",
         {{"retrieved", {72.2, 79.4}},
          {"gold", {84.4, 90.3}},
          {"wrong", {4.0, 8.0}},
          {"closed_book", {6.9, 11.6}}}},
        {"recall_at", {{"1", {84.8, 90.3}}, {"5", {94.1, 97.3}}}},
        {"mrr", {88.8, 93.1}},
        {"edit_follow", {80.1, 90.0}}}}};
  write_file_atomic(dir + "/summary.json", Json{{"train",
                                                 {{"seconds", 664.2},
                                                  {"steps", 3000},
                                                  {"examples_per_s", 144.6},
                                                  {"parameters", 1843200}}},
                                                {"held_out", held_out}}
                                               .dump(1));
}

}  // namespace

void make_fake_run(const std::string& dir, const FakeRun& options) {
  std::filesystem::create_directories(dir + "/pictures");
  for (size_t i = 0; i < countries().size(); ++i) {
    for (const bool waving : {false, true}) {
      write_file_atomic(
          dir + "/pictures/" + (waving ? "q" : "") + std::to_string(i) + ".png",
          std::span<const std::byte>(data::encode_png(draw_flag(countries()[i], waving))));
    }
  }
  write_metrics(dir, options);
  const Json defaults = {{"train", {{"steps", 1000}, {"lr", 3e-4}, {"precision", "fp32"}}},
                         {"retriever", {{"k", 4}, {"refresh_every", 0}}},
                         {"model", {{"width", 128}}}};
  Json config = defaults;
  config["train"]["steps"] = options.steps;
  config["train"]["lr"] = 1e-3;
  config["retriever"]["refresh_every"] = 500;
  write_file_atomic(dir + "/config.resolved.json", config.dump(1));
  write_file_atomic(dir + "/config.defaults.json", defaults.dump(1));
  write_file_atomic(dir + "/run.json",
                    Json{{"version", "0.1.0"},
                         {"machine", "2 cores, 8 GB"},
                         {"precision", "fp32"},
                         {"build", {{"compiler", "g++ 12.2"}, {"torch", "2.11.0"}}}}
                        .dump(1));
  const Json histogram = {{"edges", {0, 20, 40, 60, 80, 100, 120}},
                          {"counts", {40, 912, 4210, 3800, 1400, 388}}};
  write_file_atomic(dir + "/data_health.json",
                    Json{{"counts", {{"documents", 10750}, {"training examples", 3201}}},
                         {"skipped",
                          {{{"reason", "picture cannot be decoded"},
                            {"count", 2},
                            {"example", "corpus.jsonl:118: truncated PNG"}}}},
                         {"histograms", {{"Tokens in a document", histogram}}}}
                        .dump(1));
  if (!options.finished) return;
  write_summary(dir);
  write_samples(dir);
}

}  // namespace contexture::eval
