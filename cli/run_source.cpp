#include "cli/run_source.h"

#include "cli/ranks.h"
#include "core/error.h"

namespace contexture::cli {

CLI::Option* RunSource::add_to(CLI::App& app) {
  CLI::Option* folder = app.add_option("run", run, "run folder");
  app.add_option("--data", data, "examples, below data.root; default: data.test of the run")
      ->needs(folder);
  app.add_option("--set", sets, "one setting, a.b=c, on top of the run's own; may be repeated")
      ->allow_extra_args(false)
      ->needs(folder);
  app.add_option("--step", step, "checkpoint to evaluate; default: the newest")->needs(folder);
  app.add_option("--examples", examples, "evenly spaced examples; 0: all")
      ->capture_default_str()
      ->needs(folder);
  return folder;
}

int RunSource::open(const std::function<int(const OpenRun&)>& body) const {
  train::RunConfig config = train::settings_of(run, sets);
  return on_ranks(config, /*finished=*/true, [&](parallel::Groups groups) {
    const bool first = groups.rank() == 0;
    data::BadRecords bad(data::BadRecords::Policy::kSkip);
    const auto session = train::open_run(config, bad, step, /*with_index=*/true, std::move(groups));
    const std::string path = data.empty() ? config.data.test : data;
    CONTEXTURE_USAGE_REQUIRE(!path.empty(), "the run names no data.test. Give --data FILE.");
    const train::PictureSet set(session->config(), path, session->config().eval.types,
                                session->documents(), bad);
    return body({*session, set, train::Evaluator::choose(set, examples), bad, first});
  });
}

}  // namespace contexture::cli
