// What the benches share: the options of a run beside its peers, and starting a peer.
#pragma once
#include <string>

#include "cli/command.h"
#include "core/json.h"

namespace contexture::cli {

struct PeerOptions {
  std::string scripts;  // folder of the peers' scripts; empty: no peer is run
  std::string python = "python3";
  int64_t threads = 2;
  bool json = false;
  void add_to(CLI::App& app);
};

// Runs a script of options.scripts and returns the last line that it prints. Its words go to
// stderr. Throws UserError when it fails.
Json run_peer(const PeerOptions& options, const std::string& script_and_arguments);
// The last line, as JSON, that a shell command prints.
Json run_command(const std::string& command);

Command bench_train_command(CLI::App& group);
Command bench_loader_command(CLI::App& group);
Command bench_search_command(CLI::App& group);
Command bench_parallel_command(CLI::App& group);
Command bench_encode_command(CLI::App& group);
Command bench_index_command(CLI::App& group);
Command bench_links_command(CLI::App& group);
Command bench_storage_command(CLI::App& group);

}  // namespace contexture::cli
