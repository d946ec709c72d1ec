"""An exported encoder as its users load it. Arguments: the folder, our vectors (.npy), and their texts (a JSON list). Prints the
largest difference, at unit length, to sentence-transformers' embeddings and to those that transformers alone gives.
"""
import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def main():
    folder, vectors, texts = sys.argv[1:]
    ours = unit(np.load(vectors).astype(np.float64))
    texts = json.loads(pathlib.Path(texts).read_text(encoding="utf-8"))
    stock = SentenceTransformer(folder, device="cpu")
    theirs = unit(stock.encode(texts, show_progress_bar=False).astype(np.float64))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=stock.max_seq_length, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    pooling = json.loads((pathlib.Path(folder) / "1_Pooling" / "config.json").read_text())
    rows = states[:, 0] if pooling["pooling_mode_cls_token"] else (states * mask).sum(1) / mask.sum(1)
    pooled = unit(rows.double().numpy())
    print(json.dumps({"sentence_transformers": float(np.abs(theirs - ours).max()), "transformers": float(np.abs(pooled - ours).max()),
                      "texts": len(texts), "dim": int(ours.shape[1])}))


if __name__ == "__main__":
    main()
