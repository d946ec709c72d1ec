"""sentence-transformers on the texts that `contexture bench encode` wrote to a folder, as its users call it: encode()
with its defaults (batches of 32, sorted by length), then in bf16. Its embeddings must be ours. One JSON line.
"""
import argparse
import json
import pathlib
import time

import numpy as np
import torch
from sentence_transformers import SentenceTransformer


def documents_per_s(model, texts, seconds):
    best, begin = 0.0, time.perf_counter()
    while best == 0.0 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        model.encode(texts, show_progress_bar=False)
        best = max(best, len(texts) / (time.perf_counter() - start))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="holds texts.json and embeddings.npy")
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = json.loads((args.folder / "texts.json").read_text(encoding="utf-8"))
    ours = np.load(args.folder / "embeddings.npy")
    model = SentenceTransformer(args.encoder, device="cpu")
    model.max_seq_length = args.max_tokens
    theirs = model.encode(texts[:256], show_progress_bar=False)
    difference = float(np.abs(theirs - ours[:256]).max())
    if difference > 1e-5:  # fp32 sums in another order
        raise SystemExit(f"the embeddings differ by {difference}")
    out = {"fp32": documents_per_s(model, texts, args.seconds), "largest_difference": difference, "torch": torch.__version__}
    half = SentenceTransformer(args.encoder, device="cpu", model_kwargs={"dtype": torch.bfloat16})
    half.max_seq_length = args.max_tokens
    out["bf16"] = documents_per_s(half, texts, args.seconds)
    print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
