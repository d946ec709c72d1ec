#include "core/hash.h"

#include <gtest/gtest.h>

#include "core/files.h"

namespace contexture {
namespace {

// FIPS 180-2 appendix B and the empty message.
TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheTextIsCut) {
  const std::string text(300, 'x');
  const std::string whole = sha256_hex(text);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 hash;
    hash.update(std::string_view(text).substr(0, cut));
    hash.update(std::string_view(text).substr(cut));
    ASSERT_EQ(hash.finish_hex(), whole) << cut;
  }
}

TEST(Sha256, OfAFileIsThatOfItsContent) {
  const TempDir folder;
  write_file_atomic(folder.path() / "f", std::string_view("abc"));
  EXPECT_EQ(sha256_hex_of_file(folder.path() / "f"), sha256_hex("abc"));
}

// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, GivesThePublishedValues) {
  EXPECT_EQ(crc32c(std::string_view("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(std::string_view("")), 0u);
}

TEST(Crc32c, GoesOnFromAFormerResult) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32c(text.substr(cut), crc32c(text.substr(0, cut))), crc32c(text));
  }
}

}  // namespace
}  // namespace contexture
