#include "data/tokenizer.h"

#include <iostream>
#include <sstream>

#include "cli/command.h"
#include "core/config.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/json.h"

namespace contexture::cli {
namespace {

using data::Tokenizer;

// The texts given as arguments, or else the lines of stdin.
std::vector<std::string> given_or_stdin(const std::vector<std::string>& given) {
  if (!given.empty()) return given;
  std::vector<std::string> lines;
  for (std::string line; std::getline(std::cin, line);) lines.push_back(line);
  return lines;
}

Command train_tokenizer_command(CLI::App& group) {
  struct Options {
    std::string text, model;
    std::vector<std::string> sets;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand("train", "Train a tokenizer on the lines of a text");
  app->add_option("text", options->text, "UTF-8 text, one sentence or document a line")->required();
  app->add_option("model", options->model, ".model file to write")->required();
  app->add_option("--set", options->sets, "one setting, such as vocab_size=8000; may be repeated")
      ->allow_extra_args(false);
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  app->footer(
      [] { return "Settings (--set name=value):\n" + help_text(data::TokenizerTrainOptions()); });
  return {app, [options] {
            data::TokenizerTrainOptions training;
            for (const std::string& set : options->sets) apply_set(training, set);
            const data::TokenizerTrainReport report =
                Tokenizer::train_from_file(options->text, options->model, training);
            if (options->json) {
              print_json({{"model", options->model},
                          {"vocab_size", report.vocab_size},
                          {"lines_used", report.lines_used},
                          {"lines_empty", report.lines_empty},
                          {"lines_too_long", report.lines_too_long},
                          {"lines_with_nul", report.lines_with_nul},
                          {"lines_not_utf8", report.lines_not_utf8}});
              return 0;
            }
            std::cout << options->model << ": " << report.vocab_size << " pieces from "
                      << report.lines_used << " lines (" << report.lines_empty << " empty, "
                      << report.lines_too_long << " too long, " << report.lines_with_nul
                      << " with a NUL byte and " << report.lines_not_utf8
                      << " not UTF-8 were left out)\n";
            return 0;
          }};
}

Command encode_command(CLI::App& group) {
  struct Options {
    std::string model;
    std::vector<std::string> texts;
    bool pieces = false, json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand("encode", "Text to ids, one line a text");
  app->add_option("model", options->model, ".model file")->required();
  app->add_option("text", options->texts, "texts; default: the lines of stdin");
  app->add_flag("--pieces", options->pieces, "print the pieces instead of their ids");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            const Tokenizer tokenizer(options->model);
            Json texts = Json::array();
            for (const std::string& text : given_or_stdin(options->texts)) {
              const std::vector<int32_t> ids = tokenizer.encode(text);
              std::vector<std::string> pieces;
              for (const int32_t id : ids) pieces.push_back(tokenizer.piece(id));
              texts.push_back({{"text", text}, {"ids", ids}, {"pieces", pieces}});
              if (options->json) continue;
              for (size_t i = 0; i < ids.size(); ++i) {
                std::cout << (i > 0 ? " " : "");
                if (options->pieces) {
                  std::cout << pieces[i];
                } else {
                  std::cout << ids[i];
                }
              }
              std::cout << "\n";
            }
            if (options->json) print_json({{"texts", texts}});
            return 0;
          }};
}

Command decode_command(CLI::App& group) {
  struct Options {
    std::string model;
    std::vector<std::string> ids;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand("decode", "Ids to text");
  app->add_option("model", options->model, ".model file")->required();
  app->add_option("ids", options->ids,
                  "ids of one text; default: the lines of stdin, one text a line");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            const Tokenizer tokenizer(options->model);
            std::vector<std::string> lines;
            if (options->ids.empty()) {
              lines = given_or_stdin({});
            } else {
              std::string line;
              for (const std::string& id : options->ids) line += id + " ";
              lines.push_back(line);
            }
            Json texts = Json::array();
            for (const std::string& line : lines) {
              std::istringstream words(line);
              std::vector<int32_t> ids;
              for (std::string word; words >> word;) {
                int32_t id = 0;
                std::istringstream number(word);
                CONTEXTURE_USAGE_REQUIRE(number >> id && number.eof(), "'", word,
                                         "' is no piece's id (a whole number)");
                ids.push_back(id);
              }
              texts.push_back(tokenizer.decode(ids));
              if (!options->json) std::cout << texts.back().get<std::string>() << "\n";
            }
            if (options->json) print_json({{"texts", texts}});
            return 0;
          }};
}

Command tokenizer_info_command(CLI::App& group) {
  struct Options {
    std::string model;
    bool pieces = false, json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand("info", "What a tokenizer is");
  app->add_option("model", options->model, ".model file")->required();
  app->add_flag("--pieces", options->pieces, "list every piece");
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            const Tokenizer tokenizer(options->model);
            Json info{{"model", options->model},
                      {"vocab_size", tokenizer.vocab_size()},
                      {"control_pieces", static_cast<int>(Tokenizer::kNumControl)},
                      {"bytes", tokenizer.model_bytes().size()},
                      {"sha256", sha256_hex(tokenizer.model_bytes())}};
            if (options->pieces) {
              info["pieces"] = Json::array();
              for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
                info["pieces"].push_back(tokenizer.piece(id));
            }
            if (options->json) {
              print_json(info);
              return 0;
            }
            std::cout << options->model << ": " << tokenizer.vocab_size() << " pieces, of them "
                      << info["control_pieces"] << " control and 256 byte pieces\nsha256 "
                      << info["sha256"].get<std::string>() << "\n";
            for (size_t id = 0; options->pieces && id < info["pieces"].size(); ++id) {
              std::cout << id << "\t" << info["pieces"][id].get<std::string>() << "\n";
            }
            return 0;
          }};
}

}  // namespace

Command tokenizer_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("tokenizer", "Train and use tokenizers");
  return command_group(app, {train_tokenizer_command(*app), encode_command(*app),
                             decode_command(*app), tokenizer_info_command(*app)});
}

}  // namespace contexture::cli
