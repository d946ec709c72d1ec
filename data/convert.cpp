#include "data/convert.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/files.h"

namespace contexture::data {
namespace fs = std::filesystem;
namespace {

// Remembers ids by 64-bit hashes, in open addressing at most 3/4 full: among 21 million ids the
// odds that two share one, and a good record is taken for a duplicate, are 1 to 80,000.
class IdSet {
 public:
  // False when it was there.
  bool insert(const std::string& id) {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow();
    const uint64_t hash =
        std::max<uint64_t>(std::hash<std::string>{}(id), 1);  // 0 marks a free slot
    if (!place(hash)) return false;
    ++size_;
    return true;
  }

 private:
  bool place(uint64_t hash) {
    size_t at = hash & (slots_.size() - 1);
    for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == hash) return false;
    }
    slots_[at] = hash;
    return true;
  }

  void grow() {
    std::vector<uint64_t> old(slots_.size() * 2, 0);
    old.swap(slots_);
    for (const uint64_t hash : old) {
      if (hash != 0) place(hash);
    }
  }

  std::vector<uint64_t> slots_ = std::vector<uint64_t>(1024, 0);
  size_t size_ = 0;
};

// A file of JSON lines, written in large pieces; it appears on commit.
class LinesFile {
 public:
  explicit LinesFile(const fs::path& path) : path_(path.string()) {
    CONTEXTURE_REQUIRE(!fs::exists(path), path.string(),
                       " exists. Remove it, or give another --output.");
    file_.emplace(path);
  }

  void write(const Json& record) {
    buffer_ += record.dump();
    buffer_ += '\n';
    if (buffer_.size() >= kPiece) flush();
  }

  const std::string& commit() {
    flush();
    file_->commit();
    return path_;
  }

 private:
  static constexpr size_t kPiece = size_t{1} << 20;
  void flush() {
    file_->write(buffer_);
    buffer_.clear();
  }

  std::string path_, buffer_;
  std::optional<AtomicFile> file_;
};

struct ExampleFile {
  std::string path, qrels, name;  // name: of the file to write, without .jsonl
};

// The files of a BEIR folder: its corpus, and its queries once for every split.
void find_beir_files(const fs::path& folder, ConvertOptions& options,
                     std::vector<ExampleFile>& examples) {
  options.corpus.push_back((folder / "corpus.jsonl").string());
  CONTEXTURE_REQUIRE(fs::is_directory(folder / "qrels"), folder.string(),
                     " holds no folder qrels/: is it a BEIR data set?");
  for (const auto& entry : fs::directory_iterator(folder / "qrels")) {
    if (entry.path().extension() != ".tsv") continue;
    examples.push_back(
        {(folder / "queries.jsonl").string(), entry.path().string(), entry.path().stem().string()});
  }
  std::sort(examples.begin(), examples.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

class Converter {
 public:
  explicit Converter(ConvertOptions options) : options_(std::move(options)) {
    report_.bad = BadRecords(options_.policy);
  }

  ConvertReport run() {
    const std::vector<ExampleFile> examples = inputs();
    make_folders(options_.output);
    if (!options_.corpus.empty()) open_corpus();
    for (const std::string& path : options_.corpus) {
      read_foreign_documents(options_.from, path, report_.bad,
                             [&](const std::string& where, Document document) {
                               add(where, document, /*may_repeat=*/false);
                             });
    }
    CONTEXTURE_DATA_REQUIRE(options_.corpus.empty() || report_.documents > 0,
                            options_.corpus.front(), ": not one good document; ",
                            report_.bad.summary());
    const bool with_contexts = options_.corpus.empty();
    for (const ExampleFile& file : examples) convert_examples(file, with_contexts);
    if (!options_.images.empty()) link_images();
    if (corpus_.has_value()) report_.files.push_back(corpus_->commit());
    for (auto& file : example_files_) report_.files.push_back(file->commit());
    return std::move(report_);
  }

 private:
  std::vector<ExampleFile> inputs() {
    find_format(options_.from);
    std::vector<ExampleFile> examples;
    if (!options_.folder.empty()) {
      CONTEXTURE_USAGE_REQUIRE(options_.from == "beir", "only beir is read as a folder; give ",
                               options_.from, "'s files with --corpus and --examples.");
      find_beir_files(options_.folder, options_, examples);
    }
    for (const std::string& path : options_.examples) {
      const std::string& qrels = options_.foreign.qrels;
      examples.push_back({path, qrels, fs::path(qrels.empty() ? path : qrels).stem().string()});
    }
    CONTEXTURE_USAGE_REQUIRE(!options_.corpus.empty() || !examples.empty(),
                             "nothing to convert. Give --corpus, --examples, or beir's folder.");
    for (size_t i = 0; i < examples.size(); ++i) {
      CONTEXTURE_USAGE_REQUIRE(examples[i].name != "corpus", examples[i].path,
                               " would become corpus.jsonl, the documents' file: rename it.");
      for (size_t j = 0; j < i; ++j) {
        CONTEXTURE_USAGE_REQUIRE(examples[i].name != examples[j].name, examples[i].path, " and ",
                                 examples[j].path, " would both become ", examples[i].name,
                                 ".jsonl: convert them into two folders.");
      }
    }
    return examples;
  }

  void link_images() {
    const fs::path link = fs::path(options_.output) / "images";
    CONTEXTURE_REQUIRE(fs::is_directory(options_.images), options_.images,
                       " is no folder of pictures.");
    CONTEXTURE_REQUIRE(!fs::exists(fs::symlink_status(link)), link.string(),
                       " exists. Remove it, or give another --output.");
    fs::create_directory_symlink(fs::absolute(options_.images), link);
  }

  void open_corpus() { corpus_.emplace(fs::path(options_.output) / "corpus.jsonl"); }

  void add(const std::string& where, const Document& document, bool may_repeat) {
    if (!document_ids_.insert(document.id)) {
      if (!may_repeat) report_.bad.add(where, "duplicate id", document.id);
      return;
    }
    if (!corpus_.has_value()) open_corpus();
    corpus_->write(to_record(document));
    ++report_.documents;
  }

  void convert_examples(const ExampleFile& source, bool with_contexts) {
    example_files_.push_back(
        std::make_unique<LinesFile>(fs::path(options_.output) / (source.name + ".jsonl")));
    LinesFile& file = *example_files_.back();
    IdSet ids;
    int64_t count = 0;
    ForeignOptions foreign = options_.foreign;
    foreign.qrels = source.qrels;
    const VisitExample visit = [&](const std::string& where, Example example) {
      if (!ids.insert(example.id)) {
        report_.bad.add(where, "duplicate id", example.id);
        return;
      }
      if (!options_.images.empty() && !example.image.empty())
        example.image = "images/" + example.image;
      file.write(to_record(example));
      ++count;
    };
    const VisitDocument context = [&](const std::string& where, Document document) {
      add(where, document, /*may_repeat=*/true);
    };
    read_foreign_examples(options_.from, source.path, foreign, report_.bad, visit,
                          with_contexts ? context : VisitDocument());
    CONTEXTURE_DATA_REQUIRE(count > 0, source.path, ": not one good example; ",
                            report_.bad.summary());
    report_.examples += count;
  }

  ConvertOptions options_;
  ConvertReport report_;
  IdSet document_ids_;
  std::optional<LinesFile> corpus_;
  std::vector<std::unique_ptr<LinesFile>> example_files_;
};

}  // namespace

ConvertReport convert(const ConvertOptions& options) { return Converter(options).run(); }

Json ConvertReport::to_json() const {
  return {{"documents", documents},   {"examples", examples},       {"files", files},
          {"bad_records", bad.count}, {"by_reason", bad.by_reason}, {"first_bad", bad.first}};
}

}  // namespace contexture::data
