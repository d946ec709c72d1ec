// Loads report pages in headless Chromium: the charts must be drawn, nothing may reach the console,
// and the buttons must work. Skips, visibly, where there is no Chromium.
#include <gtest/gtest.h>

#include <filesystem>

#include "chromium.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "eval/report.h"
#include "fake_run.h"

namespace contexture::eval {
namespace {

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t i = text.find(what); i != std::string::npos; i = text.find(what, i + 1)) ++count;
  return count;
}

class ReportInABrowser : public testing::Test {
 protected:
  void SetUp() override {
    chromium_ = find_chromium();
    if (chromium_.empty()) GTEST_SKIP() << "no chromium on the path: the page is not loaded";
  }
  TempDir dir_;
  std::string chromium_;
};

TEST_F(ReportInABrowser, DrawsEveryChartAndLogsNothing) {
  const std::string run = dir_.path() / "run";
  make_fake_run(run);
  write_report(run);
  const Loaded loaded = load(chromium_, dir_.path(), run + "/report.html");
  EXPECT_EQ(loaded.console, "");
  EXPECT_NE(loaded.dom.find("data-charts=\"8\""), std::string::npos);
  EXPECT_GE(count_of(loaded.dom, "class=\"series\" stroke"), 12u);  // raw and smoothed lines
  EXPECT_EQ(count_of(loaded.dom, "d=\"M0 0\""), 0u);                // none of them empty
  EXPECT_EQ(count_of(loaded.dom, "class=\"card sample\""), 6u);
  EXPECT_NE(loaded.dom.find("<mark>N'Djamena</mark>"), std::string::npos);
  for (const char* utility :
       {"1.27 nats", "1.02 – 1.53", "-0.40 nats", "-0.60 – -0.20", "3.81 nats", "-0.38 nats"})
    EXPECT_NE(loaded.dom.find(utility), std::string::npos) << utility;
  EXPECT_NE(loaded.dom.find("<title>run · Contexture</title>"), std::string::npos);
  // Hostile text arrived as text: its tags are escaped in the serialised page.
  EXPECT_GE(count_of(loaded.dom, "&lt;img src=x onerror="), 3u);
  EXPECT_EQ(count_of(loaded.dom, "<img src=\"x\""), 0u);
}

TEST_F(ReportInABrowser, ADeadRunAndAnEmptyFolderLoadToo) {
  const std::string dead = dir_.path() / "dead", empty = dir_.path() / "empty";
  make_fake_run(dead, {.steps = 40, .finished = false});
  std::filesystem::create_directories(empty);
  write_report(dead);
  write_report(empty);
  const Loaded shown = load(chromium_, dir_.path(), dead + "/report.html");
  EXPECT_EQ(shown.console, "");
  EXPECT_NE(shown.dom.find("Not finished: the log ends at step 40"), std::string::npos);
  EXPECT_NE(shown.dom.find("data-charts=\"6\""), std::string::npos);
  const Loaded nothing = load(chromium_, dir_.path(), empty + "/report.html");
  EXPECT_EQ(nothing.console, "");
  EXPECT_NE(nothing.dom.find("This run has not logged anything yet."), std::string::npos);
}

// Presses the buttons as a reader would and writes down what changed.
constexpr char kReader[] = R"js(<script>{
const seen = {}, all = (q) => [...document.querySelectorAll(q)];
const button = (name) => all("button").find((b) => b.firstChild.textContent === name);
const shown = () => all(".sample").length;
for (const name of ["Wrong", "Right passage, wrong answer", "No evidence retrieved", "All"]) {
  button(name).click();
  seen[name] = shown();
}
const loss = charts.find((c) => c.spec.title === "Loss");
const line = () => loss.canvas.querySelector("path.series:not([stroke-opacity='0.2'])").getAttribute("d");
const linear = line();
loss.logButton.click();
seen.log = line() !== linear;
loss.logButton.click();
seen.back = line() === linear;
button("time").click();
seen.time = [...loss.canvas.querySelectorAll("text.axis")].some((t) => t.textContent.includes("min"));
const area = loss.canvas.getBoundingClientRect();
loss.canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: area.left + area.width / 2, clientY: area.top + 50}));
seen.tip = loss.tip.hidden ? "" : loss.tip.textContent;
const box = loss.tip.getBoundingClientRect(), frame = loss.node.getBoundingClientRect();
seen.inside = box.width > 0 && box.left > area.left && box.right < frame.right && box.top > area.top && box.bottom < frame.bottom
  && loss.overlay.querySelectorAll("circle").length >= 1;
loss.canvas.dispatchEvent(new PointerEvent("pointerleave"));
seen.hidden = loss.tip.hidden;
const more = all(".doc .more")[0], text = more.parentElement;
more.click();
seen.whole = text.textContent.endsWith("-logia.");
const tip = /training loss \(raw\)/.test(seen.tip) && seen.tip.startsWith("5 min");
document.documentElement.setAttribute("data-seen", [seen["Wrong"], seen["Right passage, wrong answer"],
  seen["No evidence retrieved"], seen["All"], seen.log, seen.back, seen.time, tip, seen.inside, seen.hidden, seen.whole].join(" "));
}</script>)js";

TEST_F(ReportInABrowser, FiltersAxesAndHoverWork) {
  const std::string run = dir_.path() / "run";
  make_fake_run(run);
  std::string page = report_page(report_data(run));
  page.insert(page.find("</body>"), kReader);
  write_file_atomic(run + "/pressed.html", std::string_view(page));
  const Loaded loaded = load(chromium_, dir_.path(), run + "/pressed.html");
  EXPECT_EQ(loaded.console, "");
  EXPECT_NE(loaded.dom.find("data-seen=\"3 2 1 6 true true true true true true true\""),
            std::string::npos)
      << loaded.dom.substr(0, 400);
}

}  // namespace
}  // namespace contexture::eval
