#include "core/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace contexture {
namespace {

struct Recorder {
  std::string text;
  double now_s = 0.0;
  ProgressOptions options(bool terminal) {
    ProgressOptions options;
    options.unit = "images";
    options.terminal = terminal;
    options.write = [this](std::string_view part) { text += part; };
    options.clock_s = [this] { return now_s; };
    return options;
  }
};

TEST(Progress, PrintsAPlainLineEveryTenSecondsWithoutATerminal) {
  Recorder recorder;
  {
    Progress progress("encode", 200, recorder.options(false));
    for (int second = 1; second <= 25; ++second) {
      recorder.now_s = second;
      progress.advance(4);
    }
    progress.update(150, "loss 1.23");
    EXPECT_FALSE(progress_bar_visible());
  }
  EXPECT_EQ(recorder.text,
            "encode: 40/200 images (20%), 4.0 images/s, 00:10, 00:40 left\n"
            "encode: 80/200 images (40%), 4.0 images/s, 00:20, 00:30 left\n"
            "encode: 150/200 images (75%), 6.0 images/s, 00:25, 00:08 left, loss 1.23\n");
}

TEST(Progress, DrawsABarOnATerminal) {
  Recorder recorder;
  {
    Progress progress("train", 4, recorder.options(true));
    EXPECT_TRUE(progress_bar_visible());
    recorder.now_s = 1;
    progress.advance(2);
    progress.advance(1);  // within a tenth of a second: not drawn
    recorder.now_s = 2;
    progress.advance(1);
    progress.finish();
    EXPECT_FALSE(progress_bar_visible());
  }
  EXPECT_EQ(
      recorder.text,
      "\rtrain: [============            ] 2/4 images (50%), 2.0 images/s, 00:01, 00:01 left\x1b[K"
      "\rtrain: [========================] 4/4 images (100%), 2.0 images/s, 00:02\x1b[K"
      "\rtrain: [========================] 4/4 images (100%), 2.0 images/s, 00:02\x1b[K\n");
}

TEST(Progress, AResumedJobCountsOnlyItsOwnWorkForTheRate) {
  Recorder recorder;
  Progress progress("train", 100, recorder.options(false));
  progress.start_at(50);
  recorder.now_s = 10;
  progress.update(60);
  EXPECT_EQ(recorder.text, "train: 60/100 images (60%), 1.0 images/s, 00:10, 00:40 left\n");
}

TEST(Progress, AnUnknownTotalHasNoTimeLeft) {
  Recorder recorder;
  {
    Progress progress("read", 0, recorder.options(false));
    recorder.now_s = 2;
    progress.update(5);
  }
  EXPECT_EQ(recorder.text, "read: 5 images, 2.5 images/s, 00:02\n");
}

TEST(Progress, MoreThanTheTotalDoesNotOverflowTheBar) {
  Recorder recorder;
  Progress progress("read", 2, recorder.options(true));
  recorder.now_s = 1;
  progress.update(5);
  EXPECT_NE(recorder.text.find("[========================] 5/2 images (100%)"), std::string::npos);
}

TEST(DurationText, CountsHoursOnlyWhenThereAreSome) {
  EXPECT_EQ(duration_text(0), "00:00");
  EXPECT_EQ(duration_text(59.6), "01:00");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(-1), "00:00");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(duration_text(std::nan("")), "?");
}

}  // namespace
}  // namespace contexture
