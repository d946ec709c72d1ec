// Changes to training pictures. Deterministic: the same picture, config and Stream give the same
// result on any machine with the same OpenCV. Thread-safe.
#pragma once
#include <cstdint>

#include "core/rng.h"
#include "data/image.h"

namespace contexture::data {

// A probability of 0 turns a change off; with all of them 0 the picture stays as it is.
struct AugmentConfig {
  double shift_p = 0.0, shift = 0.1;
  double zoom_p = 0.0, zoom = 0.15;
  double rotate_p = 0.0, rotate_degrees = 8.0;
  double shear_p = 0.0, shear = 0.1;
  double flip_p = 0.0;
  double brightness_p = 0.0, brightness = 0.2;
  double contrast_p = 0.0, contrast = 0.2;
  double hue_p = 0.0, hue_degrees = 10.0;
  double noise_p = 0.0, noise = 0.04;
  double blur_p = 0.0, blur = 1.0;
  double wave_p = 0.0, wave = 0.06;
  double outline_p = 0.0, outline = 0.05;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("shift_p", shift_p, "probability of moving the picture");
    visit("shift", shift, "largest move, as a share of the side");
    visit("zoom_p", zoom_p,
          "probability of scaling the picture about its centre (larger is a crop)");
    visit("zoom", zoom, "largest scaling: 0.15 is a factor between 1/1.15 and 1.15");
    visit("rotate_p", rotate_p, "probability of turning the picture");
    visit("rotate_degrees", rotate_degrees, "largest turn, in degrees");
    visit("shear_p", shear_p, "probability of slanting the picture");
    visit("shear", shear, "largest slant, as a share of the side");
    visit("flip_p", flip_p, "probability of mirroring left to right");
    visit("brightness_p", brightness_p, "probability of a brightness change");
    visit("brightness", brightness, "largest brightness change, 0..1 of full scale");
    visit("contrast_p", contrast_p, "probability of a contrast change");
    visit("contrast", contrast, "largest contrast change, as a share");
    visit("hue_p", hue_p, "probability of turning the hue");
    visit("hue_degrees", hue_degrees, "largest hue turn, in degrees");
    visit("noise_p", noise_p, "probability of adding noise");
    visit("noise", noise, "standard deviation of the noise, 0..1 of full scale");
    visit("blur_p", blur_p, "probability of blurring");
    visit("blur", blur, "largest standard deviation of the blur, in pixels of a 64-pixel side");
    visit("wave_p", wave_p, "probability of waving the picture as a flag in the wind");
    visit("wave", wave, "largest height of the wave, as a share of the side");
    visit("outline_p", outline_p,
          "probability of a dark outline with rounded corners around what is drawn");
    visit("outline", outline, "largest thickness of the outline, as a share of the side");
  }
  void validate() const;  // throws UserError naming the key
};

// `stream` is read a fixed number of times whatever the config, so that turning one change off
// leaves the others.
Image augment(const Image& image, const AugmentConfig& config, Stream& stream);

// A made-up identity: one of 6 channel orders, 2 inversions, 2 x 2 mirrorings. Applied to the
// query's picture and to its document's picture alike, it makes a pair that was never seen, with
// the same relation between the two.
struct Identity {
  uint8_t channels = 0;  // 0..5, the order of the channels; 0 = as they are
  bool invert = false;
  bool flip_horizontal = false;
  bool flip_vertical = false;
  bool operator==(const Identity&) const = default;
  bool is_plain() const { return *this == Identity{}; }
};
Identity random_identity(Stream& stream);  // any of the 48, the plain one included
// The whole picture changes, the surround too: what is white in one style is white in the other, so
// both stay alike.
Image apply_identity(const Image& image, const Identity& identity);

// Where a part of one picture lies in another: a half, a box at a corner, an edge or the middle, or
// a disc. Coordinates run from -1 to 1 over the picture. Joining two identities along one seam, in
// the query's and in the document's style alike, makes a pair that was never seen, and two that
// share a ground are look-alikes.
struct Seam {
  enum class Kind : uint8_t { kHalf, kBox, kDisc };
  Kind kind = Kind::kHalf;
  double x = 1.0, y = 0.0;  // kHalf: unit direction in which the part lies; else its centre
  double a = 0.0, b = 0.0;  // kHalf: a, how far along the direction it begins; kBox: half its width
                            // and height; kDisc: a, the radius
  bool holds(double u, double v) const;
};
Seam random_seam(Stream& stream);
// `ground` with the pixels that the seam holds taken from `part`. Both of one size.
Image join(const Image& ground, const Image& part, const Seam& seam);

}  // namespace contexture::data
