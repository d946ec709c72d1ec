#include <algorithm>
#include <chrono>
#include <iostream>

#include "cli/bench.h"
#include "core/error.h"
#include "core/files.h"
#include "core/format.h"
#include "core/rng.h"
#include "data/archive.h"
#include "data/image.h"
#include "data/loader.h"
#include "data/records.h"

namespace contexture::cli {
namespace {

constexpr int64_t kBatch = 64;

struct Options {
  PeerOptions peers;
  int64_t images = 2048, shards = 4, passes = 5;
  int size = 256, side = 64;
};

// Smooth colours under fine noise: compresses about as photographs do.
data::Image picture(uint64_t seed, int size) {
  Stream draws(seed, "bench picture");
  data::Image coarse{8, 8, std::vector<uint8_t>(8 * 8 * 3)};
  for (uint8_t& value : coarse.rgb) value = static_cast<uint8_t>(draws.below(256));
  data::Image out = data::resize(coarse, size, size);
  uint32_t word = 0;
  for (size_t i = 0; i < out.rgb.size();
       ++i, word >>= 8) {  // one draw is the noise of four values, -12 to 12
    if (i % 4 == 0) word = draws.next_u32();
    const int noise = static_cast<int>((word & 255) * 25 / 256) - 12;
    out.rgb[i] = static_cast<uint8_t>(std::clamp(out.rgb[i] + noise, 0, 255));
  }
  return out;
}

std::vector<std::string> write_shards(const Options& options, const std::filesystem::path& folder) {
  std::vector<std::string> paths;
  for (int64_t s = 0; s < options.shards; ++s) {
    paths.push_back((folder / format("shard-{}.tar", s)).string());
    data::TarWriter tar(paths.back());
    for (int64_t i = s; i < options.images; i += options.shards) {
      const std::string id = std::to_string(i);
      tar.add(id + ".json", as_bytes(Json{{"id", id}, {"text", "picture " + id}}.dump()));
      tar.add(id + ".jpg", data::encode_jpeg(picture(static_cast<uint64_t>(i), options.size)));
    }
    tar.commit();
  }
  return paths;
}

// One pass as training reads a set: the records of the shards, then batches decoded ahead on
// threads. Returns the pictures.
int64_t pass(const Options& options, const std::string& shards) {
  data::BadRecords bad;
  const data::Corpus corpus = data::read_corpus(shards, bad);
  const int64_t count = static_cast<int64_t>(corpus.documents.size()), side = options.side;
  data::ImageOptions decode;
  decode.shrunk_to = options.side;
  const auto make = [&](int64_t step) {
    std::vector<uint8_t> batch;
    for (int64_t i = step * kBatch; i < std::min(count, (step + 1) * kBatch); ++i) {
      const std::string& name = corpus.documents[i].image;
      const data::Image image = data::resize(
          data::decode_image(corpus.images->read(name), decode, name), options.side, options.side);
      batch.insert(batch.end(), image.rgb.begin(), image.rgb.end());
    }
    return batch;
  };
  data::LoaderOptions order;
  order.end_step = (count + kBatch - 1) / kBatch;
  order.threads = static_cast<int>(options.peers.threads);
  data::Loader<std::vector<uint8_t>> loader(make, order);
  int64_t seen = 0;
  while (const auto batch = loader.next())
    seen += static_cast<int64_t>(batch->size()) / (side * side * 3);
  return seen;
}

Json run(const Options& options) {
  const TempDir folder;
  const std::vector<std::string> shards = write_shards(options, folder.path());
  const std::string list =
      (folder.path() / format("shard-{{0..{}}}.tar", options.shards - 1)).string();
  std::vector<double> seconds;
  for (int64_t p = 0; p <= options.passes; ++p) {  // the first fills the page cache
    const auto start = std::chrono::steady_clock::now();
    const int64_t seen = pass(options, list);
    CONTEXTURE_INVARIANT(seen == options.images, "a pass read ", seen, " of ", options.images,
                         " pictures");
    if (p > 0)
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  Json out{{"images", options.images},
           {"size", options.size},
           {"side", options.side},
           {"threads", options.peers.threads}};
  out["contexture"]["images_per_s"] =
      static_cast<double>(options.images) / seconds[seconds.size() / 2];
  if (!options.peers.scripts.empty()) {
    std::string command = format("loader_webdataset.py --workers {} --side {} --steps {}",
                                 options.peers.threads, options.side, options.passes);
    for (const std::string& path : shards) command += " " + path;
    const Json peer = run_peer(options.peers, command);
    CONTEXTURE_REQUIRE(peer["config"]["images"] == options.images, "the peer read ",
                       peer["config"]["images"].dump(), " pictures, not ", options.images);
    out["webdataset"]["images_per_s"] = peer["examples_per_s"];
    out["ratio"]["webdataset"] =
        out["contexture"]["images_per_s"].get<double>() / peer["examples_per_s"].get<double>();
  }
  return out;
}

}  // namespace

Command bench_loader_command(CLI::App& group) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      group.add_subcommand("loader", "Read pictures from tar shards: decode, shrink, batch");
  app->add_option("--images", options->images, "JPEG pictures, written to a temporary folder first")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app->add_option("--shards", options->shards, "tar files they are in")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app->add_option("--size", options->size, "pixels a side of the stored pictures")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app->add_option("--side", options->side, "pixels a side of the pictures in a batch")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app->add_option("--passes", options->passes,
                  "timed passes, after one that is not; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  options->peers.add_to(*app);
  return {
      app, [options] {
        const Json result = run(*options);
        if (options->peers.json) {
          print_json(result);
          return 0;
        }
        std::cout << format("{} JPEG pictures of {} x {} to {} x {}, {} threads: {:.0f} images/s\n",
                            options->images, options->size, options->size, options->side,
                            options->side, options->peers.threads,
                            result["contexture"]["images_per_s"].get<double>());
        if (result.contains("webdataset")) {
          std::cout << format("webdataset: {:.0f} images/s, contexture is {:.2f} times as fast\n",
                              result["webdataset"]["images_per_s"].get<double>(),
                              result["ratio"]["webdataset"].get<double>());
        }
        return 0;
      }};
}

}  // namespace contexture::cli
