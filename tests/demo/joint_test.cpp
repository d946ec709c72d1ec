// The reader's loss alone teaches a retriever; reading alone does not (docs/retrieval.md).
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/files.h"
#include "core/json.h"

namespace contexture {
namespace {

TEST(Joint, WithoutGoldDocumentsTheReadersLossTeachesTheRetriever) {
  const TempDir dir;
  const std::string out = dir.path().string();
  const std::string command = "CONTEXTURE=" CONTEXTURE_BINARY " OUT=" + out +
                              " OBJECTIVES='frozen emdr2' " CONTEXTURE_SOURCE_DIR
                              "/tools/joint.sh 1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const auto recall = [&](const std::string& name) {
    return read_json_file(out + "/" + name + ".json")["recall_at"]["1"].get<double>();
  };
  // Guards against a fall, some points below what docs/retrieval.md reports.
  EXPECT_GE(recall("emdr2-1"), recall("frozen-1") + 6.0);
  EXPECT_GE(recall("emdr2-1"), recall("warm-1") + 6.0);
}

}  // namespace
}  // namespace contexture
