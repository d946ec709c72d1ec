// The pictures of a report, each embedded once as a data: URI however often it is shown.
// Made and used on one thread.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace contexture::eval {

// Standard base64 with padding.
std::string base64(std::span<const std::byte> bytes);

class PictureTable {
 public:
  // Relative names are looked for below root only.
  explicit PictureTable(std::string root) : root_(std::move(root)) {}

  // The number of a picture: a data: URI of a PNG, JPEG, WebP or GIF, or a file of such a kind
  // below root. Large files are embedded smaller. -1 for an empty name, and for a picture that
  // cannot be shown (a missing file, a path that leads out of root, a network address), which is
  // counted.
  int add(const std::string& name);

  const std::vector<std::string>& uris() const { return uris_; }
  int num_refused() const { return num_refused_; }
  const std::string& first_refusal() const { return first_refusal_; }  // name and reason

 private:
  std::string uri_of(const std::string& name) const;  // throws UserError

  std::string root_;
  std::vector<std::string> uris_;
  std::map<std::string, int, std::less<>> by_name_;
  std::map<std::string, int, std::less<>> by_uri_;
  int num_refused_ = 0;
  std::string first_refusal_;
};

}  // namespace contexture::eval
