#include <iostream>

#include "cli/answers.h"
#include "cli/command.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"

namespace contexture::cli {

Command generate_command(CLI::App& program) {
  struct Options {
    std::string run, input, output;
    std::vector<std::string> sets;
    std::string bad_records = "skip";
    WritingFlags writing;
  };
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("generate", "Answer every question of a JSONL file, with the documents read");
  app->add_option("run", options->run, "run folder")->required();
  app->add_option("input", options->input, R"(JSONL of {"id","question","image"?})")->required();
  app->add_option("--output", options->output, "file to write; default: stdout");
  app->add_option("--bad-records", options->bad_records, "skip or fail")->capture_default_str();
  app->add_option("--set", options->sets, "one setting, a.b=c, on top of the run's own; may be repeated")->allow_extra_args(false);
  options->writing.add_to(*app);
  app->add_flag("--json")->description("output is always one JSON object a line");
  return {app, [options] {
            data::BadRecords bad(data::BadRecords::parse_policy(options->bad_records));
            const auto session = train::open_run(options->run, options->sets, bad);
            const data::ExampleSet set = data::read_examples(options->input, bad);
            const std::filesystem::path folder = std::filesystem::path(options->input).parent_path();
            eval::DocumentCache cache;
            const eval::GenerateOptions writing = options->writing.options(session->config());
            std::string lines;
            for (const data::Example& example : set.examples) {
              const std::string picture = example.image.empty() ? "" : (folder / example.image).string();
              try {
                lines += answer_with_sources(*session, {example.id, example.question, picture}, writing, &cache).dump() + "\n";
              } catch (const DataError& error) {
                bad.add(example.id, "question", error.what());
              }
            }
            if (options->output.empty()) {
              std::cout << lines << std::flush;
            } else {
              write_file_atomic(options->output, lines);
            }
            if (bad.count > 0) log::warn("{}", bad.summary());
            log::info("{} answers; {} documents encoded, {} read from the cache", set.examples.size(), cache.misses, cache.hits);
            return 0;
          }};
}

}  // namespace contexture::cli
