// Rows and texts of all ranks of a group, where each rank may have another number of them.
#pragma once
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace contexture::parallel {

// mine [rows, ...], equal in all but the number of rows (ranks without rows need not know the
// width); returns the ranks' rows one below another, [all rows, width]. Collective; group null:
// mine.
at::Tensor gather_rows(Communicator* group, const at::Tensor& mine);

// Everyone's text, in rank order. Collective; group null: mine.
std::vector<std::string> gather_texts(Communicator* group, const std::string& mine);

}  // namespace contexture::parallel
