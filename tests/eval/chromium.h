// Pages in headless Chromium.
#pragma once
#include <filesystem>
#include <string>

namespace contexture::eval {

// The program: CONTEXTURE_CHROMIUM, or the one on the path; empty when there is none.
std::string find_chromium();

struct Loaded {
  std::string dom;      // after the scripts have run
  std::string console;  // what the page logged
};

// Loads a page from disk. dir: for the browser's own files. Fails the test when the browser does.
Loaded load(const std::string& chromium, const std::filesystem::path& dir,
            const std::filesystem::path& page);

}  // namespace contexture::eval
