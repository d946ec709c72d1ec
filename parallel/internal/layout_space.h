// All layouts that a search looks at.
#pragma once
#include <vector>

#include "parallel/internal/layout_cost.h"

namespace contexture::parallel {

// Every layout of the cluster's GPUs that the model and `fixed` allow. Settings on which nothing
// depends are not varied: of mesh orders with the same links the first stands for all, and so does
// arrival where grouped assembly encodes as many documents. UsageError when there is none, or
// `fixed` contradicts itself.
std::vector<Layout> layout_space(LayoutCosts& costs, const PlannedModel& model,
                                 const Cluster& cluster, const FixedLayout& fixed);

}  // namespace contexture::parallel
