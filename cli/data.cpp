#include "cli/data.h"

#include <iostream>

#include "cli/settings.h"
#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "data/convert.h"
#include "data/inspect.h"
#include "data/predictions.h"

namespace contexture::cli {
namespace {

// What check and stats read: files named on the command line, or everything that a configuration
// names.
struct InspectOptions {
  SettingOptions settings;
  data::InspectInputs inputs;
  bool headers_only = false, json = false;

  void add_to(CLI::App& app) {
    settings.add_to(app);
    app.add_option("--corpus", inputs.corpus,
                   "documents: a .jsonl, a tar, or a brace list of tars");
    app.add_option("--examples", inputs.examples, "examples, the same; may be repeated")
        ->allow_extra_args(false);
    app.add_option("--tokenizer", inputs.tokenizer, "a .model file: counts tokens too");
    app.add_option("--threads", inputs.threads, "threads that read pictures")
        ->capture_default_str();
    app.add_flag("--headers-only", headers_only, "do not decode the pictures, read their headers");
    app.add_flag("--json", json, "print one JSON object on stdout");
  }

  data::InspectInputs resolved() const {
    data::InspectInputs out = inputs;
    out.decode_images = !headers_only;
    if (!settings.file.empty() || !settings.sets.empty()) {
      const train::RunConfig config = run_config(settings);
      const auto below_root = [&](const std::string& path) {
        return train::data_path(config.data, path);
      };
      if (out.corpus.empty()) out.corpus = below_root(config.data.corpus);
      for (const train::TrainingSet& set : config.data.train) {
        if (!set.path.empty()) out.examples.push_back(below_root(set.path));
      }
      for (const std::string& path : {config.data.dev, config.data.test}) {
        if (!path.empty()) out.examples.push_back(below_root(path));
      }
      if (out.tokenizer.empty() && !config.data.tokenizer.empty())
        out.tokenizer = below_root(config.data.tokenizer);
    }
    CONTEXTURE_USAGE_REQUIRE(!out.corpus.empty() || !out.examples.empty(),
                             "nothing to read. Give --config FILE, or --corpus and --examples.");
    return out;
  }
};

Command check_command(CLI::App& group) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* app = group.add_subcommand(
      "check", "Read everything and list every bad record; exit code 3 if there is one");
  options->add_to(*app);
  return {app, [options] {
            const data::CheckReport report = data::check_data(options->resolved());
            if (options->json) {
              print_json(report.to_json());
            } else {
              std::cout << report.to_text();
            }
            return report.exit_code();
          }};
}

Command stats_command(CLI::App& group) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* app = group.add_subcommand(
      "stats", "Lengths, duplicates, picture sizes, answers found in their documents");
  options->add_to(*app);
  return {app, [options] {
            const data::StatsReport report = data::data_stats(options->resolved());
            if (options->json) {
              print_json(report.figures);
            } else {
              std::cout << report.to_text();
            }
            return 0;
          }};
}

Command pack_command(CLI::App& group) {
  struct Options {
    data::PackOptions pack;
    std::string bad_records = "fail";
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app =
      group.add_subcommand("pack", "Pack a JSONL and its pictures into WebDataset tars");
  app->add_option("input", options->pack.input, "a .jsonl of documents or examples")->required();
  app->add_option("output", options->pack.output, "folder for shard-000000.tar and so on")
      ->required();
  app->add_option("--shard-bytes", options->pack.shard_bytes, "a new shard begins after this many")
      ->capture_default_str();
  app->add_option("--bad-records", options->bad_records, "fail or skip")->capture_default_str();
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            options->pack.policy = data::BadRecords::parse_policy(options->bad_records);
            const data::PackReport report = data::pack(options->pack);
            if (options->json) {
              print_json(report.to_json());
              return 0;
            }
            std::cout << report.samples << " records and " << report.images << " pictures in "
                      << report.shards.size() << " shards:\n";
            for (const std::string& shard : report.shards) std::cout << "  " << shard << "\n";
            if (report.bad.count > 0) std::cout << report.bad.summary() << "\n";
            return 0;
          }};
}

// "dpr: --corpus psgs_w100.tsv; --examples ..." for every format.
std::string format_list() {
  std::string text = "Formats:";
  for (const data::ForeignFormat& format : data::foreign_formats()) {
    text += "\n  " + format.name + ":";
    if (!format.documents.empty()) text += " --corpus " + format.documents + ";";
    text += " --examples " + format.examples;
  }
  return text;
}

Command convert_command(CLI::App& group) {
  struct Options {
    data::ConvertOptions convert;
    std::string bad_records = "fail";
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "convert", "Turn a data set of the field into our corpus.jsonl and examples");
  app->add_option("folder", options->convert.folder,
                  "beir: the data set's folder; every split is converted");
  app->add_option("--from", options->convert.from, "format, listed below")->required();
  app->add_option("--corpus", options->convert.corpus, "file of documents; may be repeated")
      ->allow_extra_args(false);
  app->add_option("--examples", options->convert.examples, "file of examples; may be repeated")
      ->allow_extra_args(false);
  app->add_option("--output", options->convert.output, "folder to write to")->required();
  app->add_option("--annotations", options->convert.foreign.annotations,
                  "vqa: the file of the answers");
  app->add_option("--qrels", options->convert.foreign.qrels, "beir: the judgments of --examples");
  app->add_option("--images", options->convert.images,
                  "folder of pictures, linked into the output");
  app->add_option("--image-name", options->convert.foreign.image_name,
                  "name of a picture by its {id}, as in {id:012}.jpg");
  app->add_option("--prompt", options->convert.foreign.prompt,
                  "coco: the question of every picture")
      ->capture_default_str();
  app->add_option("--bad-records", options->bad_records, "fail or skip")->capture_default_str();
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  app->footer(format_list());
  return {app, [options] {
            options->convert.policy = data::BadRecords::parse_policy(options->bad_records);
            const data::ConvertReport report = data::convert(options->convert);
            if (options->json) {
              print_json(report.to_json());
              return 0;
            }
            std::cout << report.documents << " documents and " << report.examples << " examples:\n";
            for (const std::string& file : report.files) std::cout << "  " << file << "\n";
            if (report.bad.count > 0) std::cout << report.bad.summary() << "\n";
            return 0;
          }};
}

Command trec_command(CLI::App& group) {
  struct Options {
    std::string predictions, examples, from = "contexture", output, tag = "contexture",
                                       bad_records = "fail";
    data::ForeignOptions foreign;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = group.add_subcommand(
      "trec", "Write a TREC run from answers with their documents, or qrels from examples");
  app->add_option("--predictions", options->predictions,
                  "answers of `contexture generate`, or DPR or FiD output: gives a run");
  app->add_option("--examples", options->examples,
                  "examples with their gold documents: gives qrels");
  app->add_option("--from", options->from, "format of --examples, as in data convert")
      ->capture_default_str();
  app->add_option("--output", options->output, "file to write")->required();
  app->add_option("--tag", options->tag, "name of the run")->capture_default_str();
  app->add_option("--bad-records", options->bad_records, "fail or skip")->capture_default_str();
  app->add_flag("--json", options->json, "print one JSON object on stdout");
  return {app, [options] {
            CONTEXTURE_USAGE_REQUIRE(options->predictions.empty() != options->examples.empty(),
                                     "give --predictions for a run, or --examples for qrels.");
            data::BadRecords bad(data::BadRecords::parse_policy(options->bad_records));
            size_t queries = 0, lines = 0;
            const auto count = [&](const auto& written) {
              queries = written.size();
              for (const auto& [query, entries] : written) lines += entries.size();
            };
            if (!options->predictions.empty()) {
              const data::TrecRun run = data::to_run(
                  data::read_predictions(options->predictions, bad), options->predictions, bad);
              CONTEXTURE_DATA_REQUIRE(!run.empty(), options->predictions,
                                      ": no answer names the documents that it read");
              data::write_run(options->output, run, options->tag);
              count(run);
            } else {
              data::Qrels qrels;
              data::read_foreign_examples(options->from, options->examples, options->foreign, bad,
                                          [&](const std::string&, const data::Example& example) {
                                            data::add_judgments(example, qrels);
                                          });
              CONTEXTURE_DATA_REQUIRE(!qrels.empty(), options->examples,
                                      ": no example names a gold document");
              data::write_qrels(options->output, qrels);
              count(qrels);
            }
            if (bad.count > 0) log::warn("{}", bad.summary());
            if (options->json) {
              print_json({{"output", options->output},
                          {"queries", queries},
                          {"lines", lines},
                          {"bad_records", bad.count}});
            } else {
              std::cout << lines << " lines for " << queries << " queries in " << options->output
                        << "\n";
            }
            return 0;
          }};
}

}  // namespace

Command data_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("data", "Check, measure, pack and convert data sets");
  return command_group(app, {check_command(*app), stats_command(*app), pack_command(*app),
                             convert_command(*app), trec_command(*app), data_dpr_command(*app)});
}

}  // namespace contexture::cli
