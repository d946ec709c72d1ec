// Suggestions for mistyped names: config keys, subcommands, options, tensor names.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace contexture {

// Edits (insert, delete, replace, swap of neighbours) that turn a into b, ignoring case and taking
// '-' as '_'.
int edit_distance(std::string_view a, std::string_view b);

// The nearest candidate, or "" when none is near (more than a third of the letters would change,
// two at least). Ties go to the earlier candidate.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

// " Did you mean 'steps'?" or "", to end a message with.
std::string did_you_mean_hint(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace contexture
