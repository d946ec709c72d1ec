#include "chromium.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "core/files.h"

namespace contexture::eval {

std::string find_chromium() {
  if (const char* named = std::getenv("CONTEXTURE_CHROMIUM"); named != nullptr) return named;
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      const auto program = std::filesystem::path(folder) / name;
      if (std::filesystem::exists(program)) return program;
    }
  }
  return {};
}

Loaded load(const std::string& chromium, const std::filesystem::path& dir,
            const std::filesystem::path& page) {
  const std::string command =
      concat("timeout 120 '", chromium, "' --headless --no-sandbox --disable-gpu --user-data-dir='",
             (dir / "profile").string(), "' --window-size=1280,2000 --virtual-time-budget=5000 ",
             "--enable-logging=stderr --v=0 --dump-dom 'file://", page.string(), "' 2>'",
             (dir / "log").string(), "'");
  Loaded loaded;
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  char buffer[1 << 16];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) loaded.dom.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  const std::string log = read_file(dir / "log");
  for (size_t i = log.find("CONSOLE"); i != std::string::npos; i = log.find("CONSOLE", i + 1)) {
    loaded.console += log.substr(i, log.find('\n', i) - i) + "\n";
  }
  return loaded;
}

}  // namespace contexture::eval
