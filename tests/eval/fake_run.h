// A run folder as training and evaluation leave it, with made-up figures and drawn flags, and with
// text that tries to break out of the page.
#pragma once

#include <string>

namespace contexture::eval {

// Shown in a document's text, a title and a question: must appear as text and never run.
inline constexpr char kHostileText[] =
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<!-- \xe2\x80\xa8 {{data}} &amp;";

struct FakeRun {
  int steps = 3000;
  bool finished = true;  // false: no summary, no samples, the last metrics line is cut short
};

void make_fake_run(const std::string& dir, const FakeRun& options = {});

}  // namespace contexture::eval
