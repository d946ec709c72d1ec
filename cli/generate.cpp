#include <iostream>

#include "cli/answers.h"
#include "cli/ranks.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "parallel/gather.h"

namespace contexture::cli {
namespace {

struct GenerateCommand {
  std::string run, input, output;
  std::vector<std::string> sets;
  std::string bad_records = "skip";
  WritingFlags writing;
};

int answer_all(const train::RunConfig& config, const GenerateCommand& options,
               parallel::Groups groups) {
  data::BadRecords bad(data::BadRecords::parse_policy(options.bad_records));
  const auto session =
      train::open_run(config, bad, /*step=*/-1, /*with_index=*/true, std::move(groups));
  const parallel::Groups& layout = session->engine().groups();
  const data::ExampleSet set = data::read_examples(options.input, bad);
  const std::filesystem::path folder = std::filesystem::path(options.input).parent_path();
  const eval::GenerateOptions writing = options.writing.options(config);
  eval::DocumentCache cache;
  // Where replicas have to pass together (ZeRO 3), what is cached here and not there would part
  // them.
  eval::DocumentCache* const cached = session->inference().together() ? nullptr : &cache;
  const auto answered = [&](const Question& question) {
    return answer_with_sources(*session, question, writing, cached).dump() + "\n";
  };
  // Each replica answers a share, and all of them equally many: they search the index together.
  const auto n = static_cast<int64_t>(set.examples.size()),
             rounds = (n + layout.dp_size() - 1) / layout.dp_size();
  const auto [begin, end] = parallel::part_of(n, {layout.dp_rank(), layout.dp_size()});
  std::string lines;
  for (int64_t i = begin; i < begin + rounds; ++i) {
    bool passed = false;
    if (i < end) {
      const data::Example& example = set.examples[i];
      const std::string picture = example.image.empty() ? "" : (folder / example.image).string();
      try {
        lines += answered({example.id, example.question, picture});
        passed = true;
      } catch (const DataError& error) {
        bad.add(example.id, "question", error.what());
      }
    }
    if (!passed && layout.dp) answered({"", "?", ""});  // for the others' sake
  }
  if (layout.first_of_replica() && bad.count > 0) log::warn("{}", bad.summary());
  std::string all;
  for (const std::string& theirs : parallel::gather_texts(layout.dp.get(), lines)) all += theirs;
  if (layout.rank() != 0) return 0;
  if (options.output.empty()) {
    std::cout << all << std::flush;
  } else {
    write_file_atomic(options.output, all);
  }
  log::info("{} answers; {} documents encoded, {} read from the cache{}", set.examples.size(),
            cache.misses, cache.hits, layout.dp ? " of the first replica" : "");
  return 0;
}

}  // namespace

Command generate_command(CLI::App& program) {
  auto options = std::make_shared<GenerateCommand>();
  CLI::App* app =
      program.add_subcommand("generate",
                             "Answer every question of a JSONL file, with the documents read, on "
                             "one process or many (contexture launch)");
  app->add_option("run", options->run, "run folder")->required();
  app->add_option("input", options->input, R"(JSONL of {"id","question","image"?})")->required();
  app->add_option("--output", options->output, "file to write; default: stdout");
  app->add_option("--bad-records", options->bad_records, "skip or fail")->capture_default_str();
  app->add_option("--set", options->sets,
                  "one setting, a.b=c, on top of the run's own; may be repeated")
      ->allow_extra_args(false);
  options->writing.add_to(*app);
  app->add_flag("--json")->description("output is always one JSON object a line");
  return {app, [options] {
            train::RunConfig config = train::settings_of(options->run, options->sets);
            return on_ranks(config, /*finished=*/true, [&](parallel::Groups groups) {
              return answer_all(config, *options, std::move(groups));
            });
          }};
}

}  // namespace contexture::cli
