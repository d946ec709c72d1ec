// Between Image and cv::Mat. Included by data/'s sources only.
#pragma once
#include <opencv2/core.hpp>

#include "data/image.h"

namespace contexture::data::internal {

// A view of the pixels, RGB order; lives no longer than the image.
inline cv::Mat view(const Image& image) {
  return {image.height, image.width, CV_8UC3, const_cast<uint8_t*>(image.rgb.data())};
}

inline Image empty_image(int height, int width) {
  Image image{height, width, {}};
  image.rgb.resize(static_cast<size_t>(height) * static_cast<size_t>(width) * 3);
  return image;
}

// A copy of a CV_8UC3 matrix that is in RGB order already.
inline Image from_mat(const cv::Mat& rgb) {
  Image image = empty_image(rgb.rows, rgb.cols);
  cv::Mat target = view(image);
  rgb.copyTo(target);
  return image;
}

// We run on threads of our own: OpenCV's pool would only fight with them.
inline void use_one_thread() {
  static const bool done = (cv::setNumThreads(1), true);
  (void)done;
}

}  // namespace contexture::data::internal
