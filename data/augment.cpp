#include "data/augment.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <opencv2/imgproc.hpp>
#include <string>

#include "core/error.h"
#include "data/internal/opencv.h"

namespace contexture::data {
namespace {

constexpr double kPi = std::numbers::pi;

// A change's two draws: whether it happens, and how far it goes (-1..1).
struct Draw {
  bool on = false;
  double amount = 0.0;
};
Draw draw(double probability, Stream& stream) {
  const bool on = stream.uniform() < probability;
  return {on, 2.0 * stream.uniform() - 1.0};
}

uint8_t to_byte(double value) {
  return static_cast<uint8_t>(std::clamp(std::lround(value), 0L, 255L));
}

// The surround is the corners' most common colour: what a shift or a turn uncovers must not look
// like an edge.
cv::Scalar surround(const cv::Mat& rgb) {
  const cv::Vec3b corners[] = {rgb.at<cv::Vec3b>(0, 0), rgb.at<cv::Vec3b>(0, rgb.cols - 1),
                               rgb.at<cv::Vec3b>(rgb.rows - 1, 0),
                               rgb.at<cv::Vec3b>(rgb.rows - 1, rgb.cols - 1)};
  int best = 0, best_count = 0;
  for (int i = 0; i < 4; ++i) {
    const int count =
        static_cast<int>(std::count(std::begin(corners), std::end(corners), corners[i]));
    if (count > best_count) best = i, best_count = count;
  }
  return {static_cast<double>(corners[best][0]), static_cast<double>(corners[best][1]),
          static_cast<double>(corners[best][2])};
}

struct Geometry {
  Draw shift_x, shift_y, zoom, rotate, shear;
};

void warp(cv::Mat& rgb, const AugmentConfig& config, const Geometry& g) {
  if (!g.shift_x.on && !g.zoom.on && !g.rotate.on && !g.shear.on) return;
  const double side = std::min(rgb.rows, rgb.cols);
  const double scale = g.zoom.on ? std::pow(1.0 + config.zoom, g.zoom.amount) : 1.0;
  const double angle = g.rotate.on ? g.rotate.amount * config.rotate_degrees * kPi / 180.0 : 0.0;
  const double slant = g.shear.on ? g.shear.amount * config.shear : 0.0;
  // About the centre: slant, then scale and turn, then move.
  const double c = scale * std::cos(angle), s = scale * std::sin(angle);
  const double a00 = c, a01 = c * slant - s, a10 = s, a11 = s * slant + c;
  const double cx = 0.5 * (rgb.cols - 1), cy = 0.5 * (rgb.rows - 1);
  const double dx = g.shift_x.on ? g.shift_x.amount * config.shift * side : 0.0;
  const double dy = g.shift_x.on ? g.shift_y.amount * config.shift * side : 0.0;
  const cv::Matx23d matrix(a00, a01, cx - a00 * cx - a01 * cy + dx, a10, a11,
                           cy - a10 * cx - a11 * cy + dy);
  cv::Mat warped;
  cv::warpAffine(rgb, warped, matrix, rgb.size(), cv::INTER_LINEAR, cv::BORDER_CONSTANT,
                 surround(rgb));
  rgb = warped;
}

// As a flag in the wind: columns move up and down along a sine, and darken where the cloth turns
// away.
void wave(cv::Mat& rgb, double amount, double phase, double periods) {
  const double height = amount * rgb.rows;
  cv::Mat map_x(rgb.size(), CV_32F), map_y(rgb.size(), CV_32F);
  for (int x = 0; x < rgb.cols; ++x) {
    const double t = 2.0 * kPi * (periods * x / rgb.cols + phase);
    for (int y = 0; y < rgb.rows; ++y) {
      map_x.at<float>(y, x) = static_cast<float>(x);
      map_y.at<float>(y, x) = static_cast<float>(y + height * std::sin(t));
    }
  }
  cv::Mat waved;
  const cv::Scalar around = surround(rgb);
  cv::remap(rgb, waved, map_x, map_y, cv::INTER_LINEAR, cv::BORDER_CONSTANT, around);
  for (int x = 0; x < rgb.cols; ++x) {
    const double shade =
        1.0 + 2.0 * amount * std::cos(2.0 * kPi * (periods * x / rgb.cols + phase));
    for (int y = 0; y < rgb.rows; ++y) {
      auto& pixel = waved.at<cv::Vec3b>(y, x);
      const bool empty = std::abs(pixel[0] - around[0]) + std::abs(pixel[1] - around[1]) +
                             std::abs(pixel[2] - around[2]) <
                         12;
      if (empty) continue;
      for (int c = 0; c < 3; ++c) pixel[c] = to_byte(pixel[c] * shade);
    }
  }
  rgb = waved;
}

// Where something is drawn: the box of pixels that differ from the surround.
cv::Rect drawn_box(const cv::Mat& rgb) {
  const cv::Scalar around = surround(rgb);
  const cv::Scalar low = around - cv::Scalar::all(8), high = around + cv::Scalar::all(8);
  cv::Mat same;
  cv::inRange(rgb, low, high, same);
  const cv::Rect box = cv::boundingRect(255 - same);
  return box.area() > 0 ? box : cv::Rect(0, 0, rgb.cols, rgb.rows);
}

void outline(cv::Mat& rgb, double share, bool rounded) {
  const cv::Rect box = drawn_box(rgb);
  const int thickness =
      std::max(1, static_cast<int>(std::lround(share * std::min(rgb.rows, rgb.cols))));
  const int radius = rounded ? 2 * thickness : 0;
  const cv::Scalar around = surround(rgb);
  for (int y = box.y; y < box.y + box.height; ++y) {
    for (int x = box.x; x < box.x + box.width; ++x) {
      const int inset_x = std::min(x - box.x, box.x + box.width - 1 - x);
      const int inset_y = std::min(y - box.y, box.y + box.height - 1 - y);
      double depth = std::min(inset_x, inset_y);
      if (inset_x < radius && inset_y < radius) {
        depth = radius - std::hypot(radius - inset_x,
                                    radius - inset_y);  // negative outside the rounded corner
      }
      auto& pixel = rgb.at<cv::Vec3b>(y, x);
      if (depth < 0) {
        for (int c = 0; c < 3; ++c) pixel[c] = to_byte(around[c]);
      } else if (depth < thickness) {
        pixel = cv::Vec3b(20, 20, 20);
      }
    }
  }
}

void turn_hue(cv::Mat& rgb, double degrees) {
  cv::Mat hsv;
  cv::cvtColor(rgb, hsv, cv::COLOR_RGB2HSV_FULL);
  const int turn = static_cast<int>(std::lround(degrees / 360.0 * 256.0));
  for (int y = 0; y < hsv.rows; ++y) {
    for (int x = 0; x < hsv.cols; ++x) {
      auto& hue = hsv.at<cv::Vec3b>(y, x)[0];
      hue = static_cast<uint8_t>(hue + turn);  // a full circle is 256: it wraps by itself
    }
  }
  cv::cvtColor(hsv, rgb, cv::COLOR_HSV2RGB_FULL);
}

// value * gain + offset, about mid-gray.
void levels(cv::Mat& rgb, const AugmentConfig& config, const Draw& brightness,
            const Draw& contrast) {
  if (!brightness.on && !contrast.on) return;
  const double gain = contrast.on ? 1.0 + contrast.amount * config.contrast : 1.0;
  const double offset = brightness.on ? 255.0 * brightness.amount * config.brightness : 0.0;
  rgb.convertTo(rgb, CV_8U, gain, 127.5 * (1.0 - gain) + offset);
}

void add_noise(cv::Mat& rgb, double deviation, Stream noise) {
  for (int y = 0; y < rgb.rows; ++y) {
    auto* row = rgb.ptr<uint8_t>(y);
    for (int i = 0; i < 3 * rgb.cols; ++i)
      row[i] = to_byte(row[i] + 255.0 * deviation * noise.normal());
  }
}

}  // namespace

void AugmentConfig::validate() const {
  AugmentConfig copy = *this;
  copy.for_each([](const std::string& key, double& value, const char*) {
    const bool probability = key.size() > 2 && key.substr(key.size() - 2) == "_p";
    CONTEXTURE_USAGE_REQUIRE(
        std::isfinite(value) && value >= 0.0 && (!probability || value <= 1.0), key, "=", value,
        probability ? " is no probability (0..1)." : " must be a number of at least 0.");
  });
}

Image augment(const Image& image, const AugmentConfig& config, Stream& stream) {
  internal::use_one_thread();
  // All draws come first and always, so that switching one change off leaves the others as they
  // were.
  Geometry geometry;
  geometry.shift_x = draw(config.shift_p, stream);
  geometry.shift_y = draw(config.shift_p, stream);
  geometry.zoom = draw(config.zoom_p, stream);
  geometry.rotate = draw(config.rotate_p, stream);
  geometry.shear = draw(config.shear_p, stream);
  const Draw flip = draw(config.flip_p, stream), bright = draw(config.brightness_p, stream);
  const Draw contrast = draw(config.contrast_p, stream), hue = draw(config.hue_p, stream);
  const Draw noise = draw(config.noise_p, stream), blur = draw(config.blur_p, stream);
  const Draw waving = draw(config.wave_p, stream), outlined = draw(config.outline_p, stream);
  const double phase = stream.uniform(), periods = 0.6 + 0.8 * stream.uniform();
  const Stream noise_stream(stream.next_u64(), "augment noise");
  if (image.rgb.empty()) return image;
  cv::Mat rgb = internal::view(image).clone();
  if (flip.on) cv::flip(rgb, rgb, 1);
  if (outlined.on) outline(rgb, std::abs(outlined.amount) * config.outline, outlined.amount > 0.0);
  if (waving.on) wave(rgb, std::abs(waving.amount) * config.wave, phase, periods);
  warp(rgb, config, geometry);
  levels(rgb, config, bright, contrast);
  if (hue.on) turn_hue(rgb, hue.amount * config.hue_degrees);
  if (blur.on) {
    const double sigma = std::abs(blur.amount) * config.blur * std::min(rgb.rows, rgb.cols) / 64.0;
    if (sigma > 0.05) cv::GaussianBlur(rgb, rgb, cv::Size(), sigma, sigma, cv::BORDER_REPLICATE);
  }
  if (noise.on) add_noise(rgb, std::abs(noise.amount) * config.noise, noise_stream);
  return internal::from_mat(rgb);
}

Identity random_identity(Stream& stream) {
  Identity identity;
  identity.channels = static_cast<uint8_t>(stream.below(6));
  identity.invert = stream.below(2) == 1;
  identity.flip_horizontal = stream.below(2) == 1;
  identity.flip_vertical = stream.below(2) == 1;
  return identity;
}

Image apply_identity(const Image& image, const Identity& identity) {
  static constexpr uint8_t kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                            {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  CONTEXTURE_INVARIANT(identity.channels < 6, "channel order ",
                       static_cast<int>(identity.channels));
  const uint8_t* order = kOrders[identity.channels];
  Image changed = internal::empty_image(image.height, image.width);
  const auto width = static_cast<size_t>(image.width);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      const int from_y = identity.flip_vertical ? image.height - 1 - y : y;
      const int from_x = identity.flip_horizontal ? image.width - 1 - x : x;
      const uint8_t* from =
          &image.rgb[(static_cast<size_t>(from_y) * width + static_cast<size_t>(from_x)) * 3];
      uint8_t* to = &changed.rgb[(static_cast<size_t>(y) * width + static_cast<size_t>(x)) * 3];
      for (int c = 0; c < 3; ++c) {
        to[c] = identity.invert ? static_cast<uint8_t>(255 - from[order[c]]) : from[order[c]];
      }
    }
  }
  return changed;
}

bool Seam::holds(double u, double v) const {
  switch (kind) {
    case Kind::kHalf:
      return x * u + y * v > a;
    case Kind::kBox:
      return std::abs(u - x) < a && std::abs(v - y) < b;
    case Kind::kDisc:
      return (u - x) * (u - x) + (v - y) * (v - y) < a * a;
  }
  return false;
}

Seam random_seam(Stream& stream) {
  const auto between = [&](double low, double high) {
    return low + (high - low) * stream.uniform();
  };
  const uint64_t kind = stream.below(3);
  if (kind == 0) {
    const double angle = static_cast<double>(stream.below(8)) * kPi / 4;
    return {Seam::Kind::kHalf, std::cos(angle), std::sin(angle), between(-0.5, 0.5), 0.0};
  }
  if (kind == 1) {
    const double x = static_cast<double>(stream.below(3)) - 1.0,
                 y = static_cast<double>(stream.below(3)) - 1.0;
    const double a = between(0.45, 0.9);
    return {Seam::Kind::kBox, x, y, a, between(0.45, 0.9)};
  }
  const double x = between(-0.3, 0.3), y = between(-0.3, 0.3);
  return {Seam::Kind::kDisc, x, y, between(0.3, 0.7), 0.0};
}

Image join(const Image& ground, const Image& part, const Seam& seam) {
  CONTEXTURE_INVARIANT(ground.height == part.height && ground.width == part.width,
                       "joining pictures of ", ground.height, "x", ground.width, " and ",
                       part.height, "x", part.width);
  Image joined = ground;
  for (int y = 0; y < ground.height; ++y) {
    for (int x = 0; x < ground.width; ++x) {
      if (!seam.holds((2.0 * x + 1.0) / ground.width - 1.0, (2.0 * y + 1.0) / ground.height - 1.0))
        continue;
      const size_t at =
          (static_cast<size_t>(y) * static_cast<size_t>(ground.width) + static_cast<size_t>(x)) * 3;
      std::copy_n(part.rgb.begin() + static_cast<std::ptrdiff_t>(at), 3,
                  joined.rgb.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return joined;
}

}  // namespace contexture::data
