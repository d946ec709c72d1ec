// Commands of `contexture data` that have a file of their own.
#pragma once
#include "cli/command.h"

namespace contexture::cli {

Command data_dpr_command(CLI::App& group);

}  // namespace contexture::cli
