#!/usr/bin/env bash
# joint.sh [pictures|text] [SEED...]: what the reader's loss alone teaches a retriever on the demo set (docs/retrieval.md),
# asked with pictures (configs/joint.json) or with text that a published encoder embeds (configs/joint_text.json). For each
# seed a warm start that reads gold documents; from it, a frozen retriever and four objectives that are given none. Prints a
# line a run, on test countries. Runs lie in ${OUT:-runs/joint}; what is finished there is kept, what is not is continued.
# OBJECTIVES="frozen emdr2" trains these alone.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
contexture="${CONTEXTURE:-$root/build/bin/contexture}"
kind=pictures
case "${1:-}" in pictures|text) kind="$1"; shift ;; esac
if [ $kind = pictures ]; then
  out="${OUT:-runs/joint}"
  warm=(--config "$root/configs/joint.json")
  joint=(train.stop_at=290 retriever.overretrieve=64 data.identity_probability=0)
  questions=(--examples 360)
else
  out="${OUT:-runs/joint-text}"
  mkdir -p "$out"
  [ -e "$out/data" ] || { "$root/tools/text_questions" "$out/data.part" && mv "$out/data.part" "$out/data"; }
  warm=(--config "$root/configs/joint_text.json" --set data.root="$out/data" --set model.text_encoder="$("$root/tools/minilm")")
  joint=(train.stop_at=120)
  questions=()
fi

finish() {  # NAME SETTING...: trains and evaluates
  local run="$out/$1" figures="$out/$1.json" sets=()
  for setting in run.dir="$run" run.seed="$seed" "${@:2}"; do sets+=(--set "$setting"); done
  if [ ! -e "$figures" ]; then
    "$contexture" train "${warm[@]}" --resume "${sets[@]}" >&2
    "$contexture" eval "$run" "${questions[@]}" > "$figures.part"
    mv "$figures.part" "$figures"
  fi
  python3 - "$1" "$figures" <<'PYTHON'
import json, sys
figures = json.load(open(sys.argv[2]))
em, recall = figures["em"], figures["recall_at"]
print(f"{sys.argv[1]}: recall@1 {recall['1']:.1f}, recall@5 {recall['5']:.1f}, "
      f"exact match {em['retrieved']:.1f} retrieved, {em['gold']:.1f} gold", flush=True)
PYTHON
}

[ $# -gt 0 ] || set -- 1 2 3
for seed in "$@"; do
  finish "warm-$seed"
  for objective in ${OBJECTIVES:-frozen attentive emdr2 pdist rag_token}; do
    [ -e "$out/$objective-$seed" ] || cp -r "$out/warm-$seed" "$out/$objective-$seed"
    trained=(retriever.frozen=false "retriever.objectives={\"$objective\":1}")
    if [ "$objective" = frozen ]; then trained=(); fi
    finish "$objective-$seed" retriever.gold=false "${joint[@]}" "${trained[@]}"
  done
done
