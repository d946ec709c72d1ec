// Caption scores as the COCO caption evaluation computes them: BLEU-1..4, ROUGE-L, CIDEr-D.
// Pure functions: any thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "eval/score_table.h"

namespace contexture::eval {

// The words of a caption after the manner of the Penn Treebank tokeniser that COCO's evaluation
// runs (a Java program): lower case, contractions parted ("ca n't", "dog 's"), hyphenated words,
// abbreviations and numbers whole, the punctuation out that the evaluation drops ("(" stays, as
// "-lrb-"). docs/evaluation.md says where it departs from that program.
std::vector<std::string> caption_tokens(std::string_view caption);

using Tokens = std::vector<std::string>;

struct CaptionReference {
  std::string id;                  // of the image
  std::vector<Tokens> references;  // at least one
};

// Columns "cider" (0..10, CIDEr-D: sigma 6, document frequencies over these references) and
// "rougel" (beta 1.2, best precision and best recall over the references). Totals bleu-1 .. bleu-4
// of the whole set (closest reference length), which are no means. `predictions` runs parallel to
// `references`. UserError when an image has no reference.
ScoreTable score_captions(const std::vector<CaptionReference>& references,
                          const std::vector<Tokens>& predictions);

}  // namespace contexture::eval
