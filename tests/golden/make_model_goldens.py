"""Writes model_{memory,fid,prefix}.safetensors and model_microbatch.json (pip install torch==2.11.0 safetensors numpy).

Per fusion mode: weights w.NAME, gradients g.NAME, weights after ten steps of AdamW a.NAME, and the scalars and
log-probabilities of the first pass, all fp64, from reference_model.py.
"""
import json
import pathlib

import numpy as np
import torch
from reference_model import Config, adamw, contrastive, forward
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
# Seeds of the weights: for these no one-element gradient is a sum that nearly cancels, which fp32 could not resolve.
SEEDS = {"memory": 3, "fid": 1, "prefix": 2}
MODEL = dict(vocab=40, width=16, heads=2, kv_heads=1, head_width=8, ffn_width=24, encoder_layers=2, decoder_layers=2,
             image_size=8, patch_size=4, pooling="patches", patch_projection=3, embedding_width=12, copy_head=True,
             copy_width=8, score_temperature=0.25)
TRAINING = dict(contrastive_weight=0.5, rate=1e-3, beta1=0.9, beta2=0.98, epsilon=1e-4, weight_decay=0.01,
                max_grad_norm=1.0, steps=10)


def make_microbatch(rng):
    """Pictures are bytes [8, 8, 3]; token ids below 10 are the tokenizer's control pieces (2 begins, 3 ends)."""
    text = lambda n: [int(t) for t in rng.integers(10, MODEL["vocab"], n)]
    picture = lambda: [int(b) for b in rng.integers(0, 256, 8 * 8 * 3)]
    sequence = lambda tokens, image=None: {"tokens": tokens, "picture": image}
    documents = [sequence(text(9), picture()), sequence(text(5)), sequence(text(7), picture())]
    copied = documents[0]["tokens"]  # targets copy runs, so that both match bonuses matter
    inputs = [
        dict(query=sequence([], picture()), prompt=sequence(text(4) + [2], picture()), target=copied[2:6] + [3],
             documents=[0, 1, 2], positives=[0], masked=[2]),
        dict(query=sequence(text(3)), prompt=sequence(text(2) + [2]), target=documents[1]["tokens"][1:4] + text(1) + [3],
             documents=[1, 0], positives=[1, 2], masked=[]),
        dict(query=sequence(text(2), picture()), prompt=sequence(text(3) + [2]), target=text(2) + [3], documents=[],
             positives=[], masked=[1]),
        dict(query=sequence(text(4)), prompt=sequence(text(1) + [2], picture()), target=documents[2]["tokens"][:2] + [3],
             documents=[2], positives=[2], masked=[]),
    ]
    return {"documents": documents, "inputs": inputs}


def make_weights(c, rng):
    """Every tensor random and none zero: a wrongly wired one must show."""
    D, q, kv, F = c.width, c.heads * c.head_width, c.kv_heads * c.head_width, c.ffn_width
    w = {}
    def matrix(name, rows, columns, std=None):
        w[name] = rng.normal(0, std or columns ** -0.5, (rows, columns))
    def vector(name, n, mean, std):
        w[name] = rng.normal(mean, std, n)
    def layer(name):
        vector(name + ".attention.norm", D, 1, 0.1)
        matrix(name + ".attention.qkv", q + 2 * kv, D)
        matrix(name + ".attention.out", D, q)
        vector(name + ".mlp.norm", D, 1, 0.1)
        matrix(name + ".mlp.in", 2 * F, D)
        matrix(name + ".mlp.out", D, F)
    patches = (c.image_size // c.patch_size) ** 2
    matrix("embed.token", c.vocab, D, 0.25)
    matrix("embed.patch", D, 3 * c.patch_size ** 2)
    matrix("embed.patch_position", patches, D, 0.25)
    matrix("encoder.shift", D, D)
    matrix("decoder.shift", D, D)
    for role in ["query", "document"] + (["reader"] if c.fusion == "fid" else []):
        vector("encoder.role." + role, D, 0, 0.25)
    for i in range(c.encoder_layers):
        layer(f"encoder.layer.{i}")
    vector("encoder.norm", D, 1, 0.1)
    matrix("encoder.pool.plain", c.embedding_width, D)
    matrix("encoder.pool.patch", c.patch_projection, D)
    for i in range(c.decoder_layers):
        layer(f"decoder.layer.{i}")
        if c.fusion == "prefix":
            continue
        name = f"decoder.layer.{i}.cross"
        vector(name + ".norm", D, 1, 0.1)
        matrix(name + ".q", q, D)
        matrix(name + ".kv", 2 * kv, D)
        matrix(name + ".out", D, q)
        w[name + ".null_k"] = rng.normal(0, 1, (1, c.kv_heads, c.head_width))
        w[name + ".null_v"] = rng.normal(0, 1, (1, c.kv_heads, c.head_width))
    vector("decoder.norm", D, 1, 0.1)
    matrix("copy.query", c.copy_width, D)
    matrix("copy.key", c.copy_width, D)
    vector("copy.match_one", 1, 1.5, 0.1)
    vector("copy.match_two", 1, 1.0, 0.1)
    matrix("copy.context", D, D)
    matrix("copy.gate", 1, 2 * D)
    vector("copy.gate_bias", 1, 0.3, 0.1)
    return {name: torch.tensor(value, requires_grad=True) for name, value in w.items()}


def to_patches(picture):
    """Bytes to [4, 48]: patches row by row, each as rows of RGB pixels, scaled to [-1, 1] in fp32 as pictures are stored."""
    pixels = np.array(picture, dtype=np.float32).reshape(8, 8, 3) / np.float32(127.5) - np.float32(1)
    cut = [pixels[y : y + 4, x : x + 4].reshape(-1) for y in (0, 4) for x in (0, 4)]
    return torch.tensor(np.stack(cut), dtype=torch.float64)


def with_patches(microbatch):
    read = lambda s: {"tokens": s["tokens"], "patches": None if s["picture"] is None else to_patches(s["picture"])}
    inputs = [dict(i, query=read(i["query"]), prompt=read(i["prompt"])) for i in microbatch["inputs"]]
    return {"documents": [read(d) for d in microbatch["documents"]], "inputs": inputs}


def main():
    torch.set_num_threads(1)
    microbatch = make_microbatch(np.random.default_rng(20240))
    text = json.dumps({"model": MODEL, "training": TRAINING, "microbatch": microbatch})
    (HERE / "model_microbatch.json").write_text(text + "\n")
    batch = with_patches(microbatch)
    positives, masked = ([i[name] for i in batch["inputs"]] for name in ("positives", "masked"))
    t = TRAINING
    for fusion, seed in SEEDS.items():
        c = Config(fusion=fusion, **MODEL)
        w = make_weights(c, np.random.default_rng(seed))
        out = {"w." + name: value.detach() for name, value in w.items()}
        state = {}
        for step in range(t["steps"]):
            first = forward(w, c, batch)
            pull = contrastive(first["query_embedding"], first["doc_embedding"], positives, masked,
                               c.score_temperature)
            total = first["loss"] + t["contrastive_weight"] * pull
            grads = dict(zip(w, torch.autograd.grad(total, list(w.values()))))
            if step == 0:
                out.update({"g." + name: g for name, g in grads.items()})
                out.update({name: first[name].detach() for name in first})
                out["contrastive"] = pull.detach()
            norm = adamw(w, state, grads, t["rate"], (t["beta1"], t["beta2"]), t["epsilon"], t["weight_decay"], t["max_grad_norm"])
            if step == 0:
                out["grad_norm"] = norm
        out["last_loss"] = first["loss"].detach()
        out.update({"a." + name: value.detach() for name, value in w.items()})
        save_file({name: value.contiguous().numpy() for name, value in out.items()}, HERE / f"model_{fusion}.safetensors", metadata={"format": "pt"})
        print(fusion, "loss", float(out["loss"]), "->", float(out["last_loss"]), "contrastive", float(out["contrastive"]),
              "norm", float(norm))


if __name__ == "__main__":
    main()
