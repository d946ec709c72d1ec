#include "data/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>

#include "core/error.h"

namespace contexture::data {
namespace {

using std::chrono::milliseconds;

TEST(Loader, GivesItemsInStepOrderWhateverTheNumberOfThreads) {
  for (const int threads : {0, 1, 2, 5}) {
    Loader<int64_t> loader(
        [](int64_t step) {
          std::this_thread::sleep_for(milliseconds(step % 3));
          return step * step;
        },
        {.first_step = 7, .end_step = 40, .threads = threads, .depth = 6});
    for (int64_t step = 7; step < 40; ++step) {
      EXPECT_EQ(loader.next_step(), step);
      EXPECT_EQ(loader.next(), step * step);
    }
    EXPECT_EQ(loader.next(), std::nullopt);
    EXPECT_EQ(loader.next(), std::nullopt);
  }
}

TEST(Loader, ThrowsAtTheStepThatFailedAndGoesOn) {
  for (const int threads : {0, 3}) {
    Loader<int64_t> loader(
        [](int64_t step) {
          if (step == 2) throw DataError("step 2 is bad");
          return step;
        },
        {.end_step = 5, .threads = threads});
    EXPECT_EQ(loader.next(), 0);
    EXPECT_EQ(loader.next(), 1);
    EXPECT_THROW(loader.next(), DataError);
    EXPECT_EQ(loader.next(), 3);
    EXPECT_EQ(loader.next(), 4);
    EXPECT_EQ(loader.next(), std::nullopt);
  }
}

TEST(Loader, MakesNoMoreThanItsDepthAhead) {
  std::atomic<int64_t> made{0};
  Loader<int64_t> loader([&](int64_t step) { return ++made, step; }, {.threads = 4, .depth = 3});
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_LE(made.load(), 3);
  loader.next();
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_LE(made.load(), 4);
}

TEST(Loader, StopsWhileItsThreadsAreBusyOrWaiting) {
  for (int i = 0; i < 20; ++i) {
    Loader<std::unique_ptr<int>> loader(
        [](int64_t step) {
          std::this_thread::sleep_for(milliseconds(1));
          return std::make_unique<int>(static_cast<int>(step));
        },
        {.threads = 3, .depth = 4});
    if (i % 2 == 1) {
      EXPECT_EQ(**loader.next(), 0);
    }
  }
}

class MemoryImages : public ImageSource {
 public:
  std::vector<std::byte> read(const std::string& name) const override {
    if (name == "37") return std::vector<std::byte>(20);
    Image image{4, 4, std::vector<uint8_t>(48, static_cast<uint8_t>(std::stoi(name)))};
    return encode_png(image);
  }
};

TEST(ImageCacheTest, KeepsWithinItsLimitAndForgetsTheLeastRecentlyUsed) {
  const int64_t one = 8 * 8 * 3 + static_cast<int64_t>(sizeof(Image));
  const ImageCache cache(std::make_shared<MemoryImages>(),
                         {.height = 8, .width = 8, .limit_bytes = 3 * one});
  for (const std::string name : {"1", "2", "3"}) cache.get(name);
  EXPECT_EQ(cache.bytes(), 3 * one);
  cache.get("1");
  cache.get("4");  // "2" goes
  EXPECT_EQ(cache.bytes(), 3 * one);
  EXPECT_EQ(cache.decoded(), 4);
  EXPECT_EQ(cache.get("1")->rgb[0], 1);
  EXPECT_EQ(cache.decoded(), 4);
  EXPECT_EQ(cache.get("2")->rgb[0], 2);
  EXPECT_EQ(cache.decoded(), 5);
}

TEST(ImageCacheTest, WorksWithoutRoomForASinglePicture) {
  const ImageCache cache(std::make_shared<MemoryImages>(),
                         {.height = 8, .width = 8, .limit_bytes = 0});
  EXPECT_EQ(cache.get("9")->rgb[0], 9);
  EXPECT_EQ(cache.bytes(), 0);
}

TEST(ImageCacheTest, ServesManyThreads) {
  const ImageCache cache(std::make_shared<MemoryImages>(),
                         {.height = 8, .width = 8, .limit_bytes = 2000});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) wrong += cache.get(std::to_string(i % 20))->rgb[5] != i % 20;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

// Case 19: 100 samples, number 37 corrupt: the other 99 stay in step.
TEST(DropUnreadableImages, LosesTheBadExampleAndNoOther) {
  for (const int threads : {1, 4}) {
    ExampleSet set;
    for (int i = 0; i < 100; ++i) {
      Example example;
      example.id = "id" + std::to_string(i);
      example.image = std::to_string(i);
      set.examples.push_back(example);
    }
    const ImageCache cache(std::make_shared<MemoryImages>(), {.height = 4, .width = 4});
    BadRecords bad(BadRecords::Policy::kSkip);
    drop_unreadable_images(set, cache, bad, threads);
    ASSERT_EQ(set.examples.size(), 99U);
    for (const Example& example : set.examples) {
      EXPECT_EQ(example.id, "id" + example.image);
      EXPECT_EQ(std::to_string(cache.get(example.image)->rgb[0]), example.image);
    }
    EXPECT_EQ(bad.count, 1);
    EXPECT_NE(bad.first[0].find("id37"), std::string::npos);
  }
}

}  // namespace
}  // namespace contexture::data
