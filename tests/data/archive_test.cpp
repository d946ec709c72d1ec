#include "data/archive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/files.h"
#include "data/image.h"

namespace contexture::data {
namespace {

// A tar built block by block, in the dialects that other programs write.
class RawTar {
 public:
  void member(const std::string& name, const std::string& body, char type = '0',
              const std::string& prefix = "") {
    std::string header(512, '\0');
    header.replace(0, std::min<size_t>(name.size(), 100), name.substr(0, 100));
    header.replace(100, 8, std::string("0000644\0", 8));
    char size[13];
    std::snprintf(size, sizeof(size), "%011zo", body.size());
    header.replace(124, 11, size);
    header.replace(136, 11, "00000000000");
    header.replace(148, 8, "        ");
    header[156] = type;
    header.replace(257, 8,
                   std::string("ustar\0"
                               "00",
                               8));
    header.replace(345, prefix.size(), prefix);
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    char checksum[8];
    std::snprintf(checksum, sizeof(checksum), "%06o", sum);
    header.replace(148, 7, std::string(checksum) + '\0');
    bytes += header + body + std::string((512 - body.size() % 512) % 512, '\0');
  }
  void long_link(const std::string& name, const std::string& body) {
    member("././@LongLink", name + '\0', 'L');
    member(name.substr(0, 100), body);
  }
  void pax(const std::string& name, const std::string& body) {
    const std::string record = " path=" + name + "\n";
    size_t length = record.size();
    while (std::to_string(length).size() + record.size() != length)
      length = std::to_string(length).size() + record.size();
    member("PaxHeader", std::to_string(length) + record, 'x');
    member("short", body);
  }
  std::string finished() const { return bytes + std::string(1024, '\0'); }
  std::string bytes;
};

struct Listing {
  std::vector<std::string> keys;
  std::vector<TarSample> samples;
  std::vector<std::string> odd;
  BadRecords bad{BadRecords::Policy::kSkip};
};

Listing list(const std::string& content, const std::string& name = "s.tar") {
  const TempDir folder;
  const auto path = folder.path() / name;
  write_file_atomic(path, content);
  Listing listing;
  TarReader reader(path.string(), listing.bad);
  while (auto sample = reader.next()) {
    listing.keys.push_back(sample->key);
    listing.samples.push_back(std::move(*sample));
  }
  listing.odd = reader.odd_names();
  return listing;
}

TEST(ExpandBraces, CountsAndMultiplies) {
  EXPECT_EQ(expand_braces("plain.tar"), (std::vector<std::string>{"plain.tar"}));
  EXPECT_EQ(expand_braces("s-{08..11}.tar"),
            (std::vector<std::string>{"s-08.tar", "s-09.tar", "s-10.tar", "s-11.tar"}));
  EXPECT_EQ(expand_braces("{a,b}/{0..1}"), (std::vector<std::string>{"a/0", "a/1", "b/0", "b/1"}));
  EXPECT_EQ(expand_braces("s-{000000..000123}.tar").size(), 124U);
  for (const std::string wrong :
       {"s-{3..1}", "s-{0..", "s-{a..b}", "s-{0..99999999}", "s-{0..9999}{0..9999}"}) {
    EXPECT_THROW(expand_braces(wrong), UserError) << wrong;
  }
}

// Case 1: dots inside names.
TEST(TarReader, SplitsAtTheFirstDotOfTheBaseName) {
  using Split = std::pair<std::string, std::string>;
  EXPECT_EQ(split_member_name("train.v1/0001.jpg"), (Split{"train.v1/0001", "jpg"}));
  EXPECT_EQ(split_member_name("a/7.Left.PNG"), (Split{"a/7", "left.png"}));
  EXPECT_EQ(split_member_name("a.b/none"), (Split{"a.b/none", ""}));
  RawTar tar;
  tar.member("a/v1.2/clip 2.0 final.jpg", "A");
  tar.member("a/v1.2/clip 2.0 final.txt", "B");
  tar.member("a/v1.2/clip 2.1 other.txt", "C");
  tar.member("train.v1/0001.jpg", "D");
  const Listing listing = list(tar.finished());
  ASSERT_EQ(listing.samples.size(), 3U);  // 2.0 and 2.1 are never merged
  EXPECT_EQ(listing.keys,
            (std::vector<std::string>{"a/v1.2/clip 2", "a/v1.2/clip 2", "train.v1/0001"}));
  EXPECT_EQ(listing.samples[0].fields.size(), 2U);
  EXPECT_TRUE(listing.samples[2].fields.contains("jpg"));
  EXPECT_EQ(listing.odd.size(), 3U);
  EXPECT_EQ(listing.odd[0], "a/v1.2/clip 2.0 final.jpg");
}

// Case 3: a truncated shard.
TEST(TarReader, DeliversWhatIsWholeOfATruncatedShard) {
  RawTar tar;
  size_t cut = 0;
  for (int i = 1; i <= 10; ++i) {
    if (i == 7) cut = tar.bytes.size() + 512 + 100;
    tar.member(std::to_string(i) + ".txt", std::string(700, 'x'));
  }
  const Listing listing = list(tar.finished().substr(0, cut));
  EXPECT_EQ(listing.keys, (std::vector<std::string>{"1", "2", "3", "4", "5", "6"}));
  EXPECT_EQ(listing.bad.count, 1);
  EXPECT_NE(listing.bad.first[0].find("damaged shard"), std::string::npos);
  EXPECT_NE(listing.bad.first[0].find("at byte 9216"), std::string::npos)
      << listing.bad.first[0];  // 6 * 1536
  const TempDir folder;
  write_file_atomic(folder.path() / "s.tar", tar.finished().substr(0, cut));
  BadRecords strict(BadRecords::Policy::kFail);
  TarReader reader((folder.path() / "s.tar").string(), strict);
  EXPECT_THROW(while (reader.next()){}, DataError);
}

TEST(TarReader, AcceptsAShardWithoutItsEndBlocks) {
  RawTar tar;
  for (int i = 0; i < 3; ++i) tar.member(std::to_string(i) + ".txt", "x");
  const Listing listing = list(tar.bytes);
  EXPECT_EQ(listing.keys.size(), 3U);
  EXPECT_EQ(listing.bad.count, 0);
}

TEST(TarReader, ReportsWhatIsNoTar) {
  for (const std::string& content :
       {std::string(4000, 'x'), std::string("version https://git-lfs.github.com/spec/v1\n")}) {
    const Listing listing = list(content);
    EXPECT_TRUE(listing.keys.empty());
    EXPECT_EQ(listing.bad.count, 1);
  }
  EXPECT_TRUE(list("").keys.empty());
  BadRecords bad;
  EXPECT_THROW(TarReader("/nonexistent.tar", bad), DataError);
}

// Case 5: upper-case extensions.
TEST(TarReader, MatchesFieldsWhateverTheirCase) {
  RawTar tar;
  tar.member("7.JPG", "A");
  tar.member("7.Txt", "B");
  const Listing listing = list(tar.finished());
  ASSERT_EQ(listing.samples.size(), 1U);
  EXPECT_EQ(listing.samples[0].fields.at("jpg").name, "7.JPG");
  EXPECT_EQ(listing.samples[0].fields.at("txt").name, "7.Txt");
}

// Case 6: three ways to store a long name.
TEST(TarReader, ReadsLongNamesInEveryDialect) {
  std::string folder;
  while (folder.size() < 120) folder += "pictures-of-flags/";
  folder.pop_back();
  const std::string plain = folder + "/" + std::string(50, 'n') + ".txt";
  RawTar ustar, gnu, pax;
  ustar.member(std::string(50, 'n') + ".txt", "body", '0', folder);
  gnu.long_link(plain, "body");
  pax.member("global", "19 comment=nothing\n", 'g');
  pax.pax(plain, "body");
  for (RawTar* tar : {&ustar, &gnu, &pax}) {
    tar->member("dir/", "", '5');
    tar->member("link.txt", "", '2');
    tar->member("hard.txt", "", '1');
    tar->member("device.txt", "", '3');
    tar->member("__meta__.json", "{}");
    const Listing listing = list(tar->finished());
    EXPECT_EQ(listing.keys, (std::vector<std::string>{folder + "/" + std::string(50, 'n')}));
    EXPECT_EQ(listing.bad.count, 0) << listing.bad.summary();
    EXPECT_EQ(listing.samples.at(0).fields.at("txt").bytes.size(), 4U);
  }
}

TEST(TarReader, KeepsUtf8NamesOfMoreThanAHundredBytes) {
  std::string name;
  while (name.size() < 176) name += "日本";
  name += ".txt";
  RawTar gnu, pax;
  gnu.long_link(name, "body");
  pax.pax(name, "body");
  for (const RawTar& tar : {gnu, pax}) {
    const Listing listing = list(tar.finished());
    ASSERT_EQ(listing.samples.size(), 1U);
    EXPECT_EQ(listing.samples[0].fields.at("txt").name, name);
  }
}

TEST(TarReader, RefusesAMemberThatClaimsTooMuch) {
  RawTar tar;
  tar.member("1.txt", "x");
  // The size field of the second header claims 8 GiB - 1; one could only die trying to allocate
  // that.
  RawTar second;
  second.member("2.txt", "");
  std::string header = second.bytes;
  header.replace(124, 11, "77777777777");
  header.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char checksum[8];
  std::snprintf(checksum, sizeof(checksum), "%06o", sum);
  header.replace(148, 7, std::string(checksum) + '\0');
  const Listing listing = list(tar.bytes + header);
  EXPECT_EQ(listing.keys, (std::vector<std::string>{"1"}));
  EXPECT_GE(listing.bad.count, 1);
}

TEST(TarReader, ReportsASecondMemberForOneField) {
  RawTar tar;
  tar.member("1.txt", "first");
  tar.member("1.TXT", "second");
  const Listing listing = list(tar.finished());
  EXPECT_EQ(listing.bad.count, 1);
  EXPECT_EQ(listing.samples.at(0).fields.at("txt").bytes.size(), 5U);
}

TEST(TarWriterTest, IsReadBackAndIsReproducible) {
  const TempDir folder;
  std::vector<std::string> contents;
  for (const std::string name : {"a.tar", "b.tar"}) {
    TarWriter writer((folder.path() / name).string());
    writer.add("00000000.json", as_bytes(R"({"id":"x","text":"t"})"));
    writer.add("00000000.png", encode_png(Image{1, 1, {1, 2, 3}}));
    writer.commit();
    contents.push_back(read_file(folder.path() / name));
  }
  EXPECT_EQ(contents[0], contents[1]);
  const Listing listing = list(contents[0]);
  ASSERT_EQ(listing.samples.size(), 1U);
  EXPECT_EQ(listing.samples[0].fields.size(), 2U);
}

TEST(TarWriterTest, LeavesNothingWithoutCommit) {
  const TempDir folder;
  { TarWriter((folder.path() / "a.tar").string()).add("1.txt", as_bytes("x")); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ReadCorpus, ReadsShardsAndFindsTheirPicturesAgain) {
  const Image red{2, 2, {255, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0}};
  const auto png = encode_png(red);
  const std::string picture(reinterpret_cast<const char*>(png.data()), png.size());
  const TempDir folder;
  for (int shard = 0; shard < 2; ++shard) {
    RawTar tar;
    const std::string key = std::to_string(shard);
    tar.pax("pictures/" + key + ".PNG",
            picture);  // a PAX header before the body: its offset must still be right
    tar.member("pictures/" + key + ".json", R"({"title":"T)" + key + R"("})");
    tar.member("pictures/" + key + ".txt", "caption " + key);
    write_file_atomic(folder.path() / ("s-" + key + ".tar"), tar.finished());
  }
  BadRecords bad(BadRecords::Policy::kSkip);
  const Corpus corpus = read_corpus((folder.path() / "s-{0..1}.tar").string(), bad);
  EXPECT_EQ(bad.count, 0) << bad.summary();
  ASSERT_EQ(corpus.documents.size(), 2U);
  EXPECT_EQ(corpus.at("pictures/1").text, "caption 1");
  EXPECT_EQ(corpus.at("pictures/1").title, "T1");
  for (const Document& d : corpus.documents)
    EXPECT_EQ(decode_image(corpus.images->read(d.image)), red);
}

TEST(ReadCorpus, ReadsCompressedShards) {
  const auto png = encode_png(Image{1, 1, {9, 9, 9}});
  RawTar tar;
  tar.member("1.png", std::string(reinterpret_cast<const char*>(png.data()), png.size()));
  tar.member("1.txt", "text");
  const TempDir folder;
  write_file_atomic(folder.path() / "s.tar", tar.finished());
  const std::string path = (folder.path() / "s.tar").string();
  ASSERT_EQ(std::system(("gzip " + path).c_str()), 0);
  BadRecords bad(BadRecords::Policy::kSkip);
  const Corpus corpus = read_corpus(path + ".gz", bad);
  EXPECT_EQ(corpus.documents.at(0).id, "1");
  EXPECT_EQ(corpus.images->read(corpus.documents[0].image), png);
}

}  // namespace
}  // namespace contexture::data
