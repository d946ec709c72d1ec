"""The model in idiomatic PyTorch eager: modules, padded batches, fused attention, fused AdamW. No torch.compile.

--check compares it with tests/golden/model_*.safetensors first. bf16: bf16 weights, fp32 masters, no autocast.
S sequences, T rows of the longest, D width, B inputs, K documents an input, L rows of a document, M memory rows.
"""
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import common

PAD, IMAGE = 0, 4
GOLDEN = pathlib.Path(__file__).parents[2] / "golden"


def collate(sequences, num_patches=0, closed=True):
    """Pads sequences {tokens, patches} to tensors; `mask` is None where nothing is hidden."""
    lengths = [len(s["tokens"]) + (num_patches if s["patches"] is not None else 0) for s in sequences]
    S, T = len(sequences), max(lengths)
    token, previous, before = (torch.full((S, T), PAD) for _ in range(3))
    text = torch.zeros(S, T, dtype=torch.bool)
    mask = torch.zeros(S, 1, T, T, dtype=torch.bool)
    for s, sequence in enumerate(sequences):
        ids = torch.tensor(sequence["tokens"], dtype=torch.long)
        start = lengths[s] - len(ids)
        token[s, :start] = IMAGE
        token[s, start : lengths[s]] = ids
        previous[s, start + 1 : lengths[s]] = ids[:-1]
        before[s, start + 2 : lengths[s]] = ids[:-2]
        text[s, start : lengths[s]] = True
        mask[s, :, :, : lengths[s]] = True
        if closed and start:
            mask[s, :, :start, start:] = False
    pictures = [s for s, sequence in enumerate(sequences) if sequence["patches"] is not None]
    patches = torch.stack([sequences[s]["patches"] for s in pictures]) if pictures else None
    return {"token": token, "previous": previous, "before": before, "text": text, "length": torch.tensor(lengths),
            "mask": None if mask.all() else mask, "pictures": torch.tensor(pictures, dtype=torch.long), "patches": patches}


def collate_batch(batch, fusion, num_patches=0):
    inputs, documents = batch["inputs"], batch["documents"]
    out = {"doc": collate(documents, num_patches), "query": collate([i["query"] for i in inputs], num_patches)}
    read = [dict(i["prompt"], tokens=i["prompt"]["tokens"] + i["target"][:-1]) for i in inputs]
    out["dec"] = collate(read, num_patches, closed=False)
    B, K = len(inputs), max(1, max(len(i["documents"]) for i in inputs))
    slot = torch.zeros(B, K, dtype=torch.long)   # index into the documents
    valid = torch.zeros(B, K, dtype=torch.bool)
    reads = torch.zeros(B, K, dtype=torch.long)  # index into what the decoder reads
    joined = []
    for b, one in enumerate(inputs):
        for k, d in enumerate(one["documents"]):
            slot[b, k], valid[b, k] = d, True
            reads[b, k] = len(joined) if fusion == "fid" else d
            joined.append({"tokens": one["prompt"]["tokens"] + documents[d]["tokens"], "patches": documents[d]["patches"]})
    out.update(slot=slot, valid=valid, reads=reads)
    memory = out["doc"]
    if fusion == "fid":
        memory = out["reader"] = collate(joined, num_patches)
    text = [len(documents[d]["tokens"]) for one in inputs for d in one["documents"]] if fusion == "fid" else \
        [len(d["tokens"]) for d in documents]
    place = torch.arange(memory["token"].shape[1])
    start = (memory["length"] - torch.tensor(text))[:, None]
    out["copyable"] = (place >= start) & (place < memory["length"][:, None])
    Tt = max(len(i["target"]) for i in inputs)
    target, row = torch.zeros(B, Tt, dtype=torch.long), torch.zeros(B, Tt, dtype=torch.long)
    last, last_two, counted = torch.full((B, Tt), -1), torch.full((B, Tt), -1), torch.zeros(B, Tt, dtype=torch.bool)
    for b, one in enumerate(inputs):
        n = len(one["target"])
        ids = torch.tensor(one["target"])
        target[b, :n], counted[b, :n] = ids, True
        row[b, :n] = torch.arange(n) + int(out["dec"]["length"][b]) - n
        last[b, 1:n], last_two[b, 2:n] = ids[:-1], ids[:-2]
    out.update(target=target, row=row, last=last, last_two=last_two, counted=counted)
    for name in ("positives", "masked"):
        out[name] = torch.zeros(B, len(documents), dtype=torch.bool)
        for b, one in enumerate(inputs):
            out[name][b, one[name]] = True
    return out


class Rotary(nn.Module):
    def __init__(self, head_width, theta=10000.0, longest=1024):
        super().__init__()
        angle = torch.outer(torch.arange(longest).double(), theta ** (-torch.arange(0, head_width, 2).double() / head_width))
        self.cos, self.sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)  # fp64; cast with the module's first use

    def forward(self, x):  # [S, heads, T, K]
        if self.cos.dtype != x.dtype:
            self.cos, self.sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        T = x.shape[2]
        a, b = x.chunk(2, -1)
        return x * self.cos[:T] + torch.cat([-b, a], -1) * self.sin[:T]


def linear(rows, columns):
    return nn.Linear(columns, rows, bias=False)


class Attention(nn.Module):
    def __init__(self, c, rotary):
        super().__init__()
        self.c, self.rotary = c, rotary
        self.q_width, self.kv_width = c["heads"] * c["head_width"], c["kv_heads"] * c["head_width"]
        self.norm = nn.RMSNorm(c["width"], eps=1e-6)
        self.qkv = linear(self.q_width + 2 * self.kv_width, c["width"])
        self.out = linear(c["width"], self.q_width)

    def forward(self, x, mask=None, causal=False):
        S, T, _ = x.shape
        split = self.qkv(self.norm(x)).split([self.q_width, self.kv_width, self.kv_width], -1)
        q, k, v = (t.view(S, T, -1, self.c["head_width"]).transpose(1, 2) for t in split)
        y = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, attn_mask=mask, is_causal=causal,
                                           enable_gqa=self.c["heads"] != self.c["kv_heads"])
        return self.out(y.transpose(1, 2).reshape(S, T, -1))


class Cross(nn.Module):
    """Reads keys and values that were projected once per distinct document, then gathered."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.norm = nn.RMSNorm(c["width"], eps=1e-6)
        self.q = linear(c["heads"] * c["head_width"], c["width"])
        self.kv = linear(2 * c["kv_heads"] * c["head_width"], c["width"])
        self.out = linear(c["width"], c["heads"] * c["head_width"])
        self.null_k = nn.Parameter(torch.zeros(1, c["kv_heads"], c["head_width"]))
        self.null_v = nn.Parameter(torch.zeros(1, c["kv_heads"], c["head_width"]))

    def forward(self, x, states, reads, bias):
        B, T, _ = x.shape
        G, K = self.c["kv_heads"], self.c["head_width"]
        k, v = self.kv(states)[reads].view(B, -1, 2, G, K).unbind(2)
        k = torch.cat([self.null_k.expand(B, 1, G, K), k], 1).transpose(1, 2)
        v = torch.cat([self.null_v.expand(B, 1, G, K), v], 1).transpose(1, 2)
        q = self.q(self.norm(x)).view(B, T, -1, K).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), enable_gqa=self.c["heads"] != G)
        return self.out(y.transpose(1, 2).reshape(B, T, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.RMSNorm(c["width"], eps=1e-6)
        self.add_module("in", linear(2 * c["ffn_width"], c["width"]))
        self.out = linear(c["width"], c["ffn_width"])

    def forward(self, x):
        gate, up = self.get_submodule("in")(self.norm(x)).chunk(2, -1)
        return self.out(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, c, rotary, cross):
        super().__init__()
        self.attention = Attention(c, rotary)
        self.cross = Cross(c) if cross else None
        self.mlp = FeedForward(c)

    def forward(self, x, mask=None, causal=False, memory=None):
        x = x + self.attention(x, mask, causal)
        if self.cross is not None:
            x = x + self.cross(x, *memory)
        return x + self.mlp(x)


class Stack(nn.Module):
    def __init__(self, c, layers, rotary, cross):
        super().__init__()
        self.shift = linear(c["width"], c["width"])
        self.layer = nn.ModuleList(Layer(c, rotary, cross) for _ in range(layers))
        self.norm = nn.RMSNorm(c["width"], eps=1e-6)

    def forward(self, x, **context):
        for layer in self.layer:
            x = layer(x, **context)
        return self.norm(x)


class Embedding(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.token = nn.Embedding(c["vocab"], c["width"])
        if c["num_patches"]:
            self.patch = linear(c["width"], c["patch_width"])
            self.patch_position = nn.Parameter(torch.randn(c["num_patches"], c["width"]) * c["width"] ** -0.5)
        nn.init.normal_(self.token.weight, std=c["width"] ** -0.5)

    def forward(self, text, shift):
        x = (self.token(text["token"]) + shift(self.token(text["previous"]))) * (0.5 * math.sqrt(self.token.embedding_dim))
        if text["patches"] is None:
            return x
        patches = self.patch(text["patches"].to(x.dtype)) + self.patch_position
        rows = torch.cat([patches, x[text["pictures"], patches.shape[1] :]], 1)
        return x.index_copy(0, text["pictures"], rows)


class Copy(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.query, self.key = linear(c["copy_width"], c["width"]), linear(c["copy_width"], c["width"])
        self.context, self.gate = linear(c["width"], c["width"]), linear(1, 2 * c["width"])
        self.match_one, self.match_two = nn.Parameter(torch.tensor([4.0])), nn.Parameter(torch.tensor([2.0]))
        self.gate_bias = nn.Parameter(torch.ones(1))


class Model(nn.Module):
    def __init__(self, c, fusion):
        super().__init__()
        self.c, self.fusion = c, fusion
        rotary = Rotary(c["head_width"])
        D = c["width"]
        self.embed = Embedding(c)
        self.encoder = Stack(c, c["encoder_layers"], rotary, cross=False)
        roles = ["query", "document"] + (["reader"] if fusion == "fid" else [])
        self.encoder.role = nn.ParameterDict({r: torch.randn(D) * D ** -0.5 for r in roles})
        self.encoder.pool = nn.Module()
        self.encoder.pool.plain = linear(c["embedding_width"], D)
        if c["num_patches"]:
            self.encoder.pool.patch = linear(c["embedding_width"] // c["num_patches"], D)
        self.decoder = Stack(c, c["decoder_layers"], rotary, cross=True)
        self.copy = Copy(c)

    def encode(self, text, role):
        return self.encoder(self.embed(text, self.encoder.shift) + self.encoder.role[role], mask=text["mask"])

    def pool(self, text, states):
        real = torch.arange(states.shape[1]) < text["length"][:, None]
        mean = (states * real[..., None]).sum(1) / text["length"][:, None].to(states.dtype)
        pooled = self.encoder.pool.plain(mean)
        if text["patches"] is not None:
            patches = self.encoder.pool.patch(states[text["pictures"], : text["patches"].shape[1]]).flatten(1)
            pooled = pooled.index_copy(0, text["pictures"], patches)
        return F.normalize(pooled.float() if pooled.dtype == torch.bfloat16 else pooled, dim=-1)

    def forward(self, batch, contrastive_weight):
        c = self.c
        doc_states, query_states = self.encode(batch["doc"], "document"), self.encode(batch["query"], "query")
        doc, query = self.pool(batch["doc"], doc_states), self.pool(batch["query"], query_states)
        score = query @ doc.T / c["score_temperature"]
        prior = score.gather(1, batch["slot"]).masked_fill(~batch["valid"], -1e30).log_softmax(1)
        memory, states = batch["doc"], doc_states
        if self.fusion == "fid":
            memory, states = batch["reader"], self.encode(batch["reader"], "reader")
        B, T = batch["dec"]["token"].shape
        X, L = states.shape[:2]
        real = (torch.arange(L) < memory["length"][:, None])[batch["reads"]] & batch["valid"][..., None]
        bias = prior[..., None].expand(-1, -1, L).masked_fill(~real, -1e30).flatten(1)
        with_null = torch.cat([bias.new_zeros(B, 1), bias], 1)[:, None, None, :].expand(B, 1, T, -1)
        x = self.decoder(self.embed(batch["dec"], self.decoder.shift), causal=True, memory=(states, batch["reads"], with_null))
        state = x.gather(1, batch["row"][..., None].expand(-1, -1, c["width"]))
        log_prob = self.read_out(state, states, memory, batch, prior, L)
        reader = -(log_prob * batch["counted"]).sum() / batch["counted"].sum()
        has = batch["positives"].any(1)
        candidates = score.masked_fill(batch["masked"], -1e30)
        pull = candidates.logsumexp(1) - candidates.masked_fill(~batch["positives"], -1e30).logsumexp(1)
        contrastive = (pull * has).sum() / has.sum()
        return reader + contrastive_weight * contrastive, reader, contrastive

    def read_out(self, state, states, memory, batch, prior, L):
        """Log-probabilities of the targets [B, targets]: generated, or pointed at in the documents' text."""
        c, copy = self.c, self.copy
        reads, target = batch["reads"], batch["target"]
        usable = (batch["copyable"][reads] & batch["valid"][..., None]).flatten(1)[:, None]
        bias = prior[..., None].expand(-1, -1, L).flatten(1)[:, None]
        keys = copy.key(states)[reads].flatten(1, 2)
        logits = (copy.query(state) @ keys.transpose(1, 2)).to(prior.dtype) / math.sqrt(c["copy_width"]) + bias
        one = memory["previous"][reads].flatten(1)[:, None] == batch["last"][..., None]
        two = one & (memory["before"][reads].flatten(1)[:, None] == batch["last_two"][..., None])
        logits = logits + one * copy.match_one + two * copy.match_two
        any_document = batch["valid"].any(1)[:, None]
        pointed = logits.masked_fill(~usable, -1e30).softmax(-1) * any_document[..., None]
        context = pointed.to(state.dtype) @ states[reads].flatten(1, 2)
        gate = (copy.gate(torch.cat([state, context], -1)) + copy.gate_bias)[..., 0].to(prior.dtype)
        gate = torch.where(any_document, gate, torch.full_like(gate, -1e30))
        hidden = state + copy.context(context)
        logits = F.linear(hidden, self.embed.token.weight).to(prior.dtype)
        generated = -F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        same = memory["token"][reads].flatten(1)[:, None] == target[..., None]
        copied = (pointed * same).sum(-1).clamp_min(1e-30).log()
        return torch.logaddexp(F.logsigmoid(-gate) + generated, F.logsigmoid(gate) + copied)


class Trainer:
    """AdamW over the weights, or over fp32 masters of bf16 weights."""

    def __init__(self, model, precision, fused=True):
        self.model, self.weights = model, list(model.parameters())
        self.masters = self.weights
        if precision == "bf16":
            self.masters = [nn.Parameter(w.detach().float()) for w in self.weights]
            model.to(torch.bfloat16)
        groups = [{"params": [w for w in self.masters if (w.dim() > 1) == decays], "weight_decay": 0.01 * decays} for decays in (True, False)]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), eps=1e-8, fused=fused)

    def step(self, batch):
        loss, _, _ = self.model(batch, contrastive_weight=0.5)
        loss.backward()
        if self.masters is not self.weights:
            for master, weight in zip(self.masters, self.weights):
                master.grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.masters is not self.weights:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, self.masters)
        return loss


def check(fusion):
    """Losses and every gradient of the golden microbatch, in fp64."""
    import sys
    sys.path.insert(0, str(GOLDEN))
    from make_model_goldens import with_patches
    from safetensors.torch import load_file
    golden = load_file(GOLDEN / f"model_{fusion}.safetensors")
    stored = json.loads((GOLDEN / "model_microbatch.json").read_text())
    c = dict(stored["model"], num_patches=4, patch_width=48)
    model = Model(c, fusion).double()
    short = lambda name: name.removesuffix(".weight")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(golden["w." + short(name)])
    batch = collate_batch(with_patches(stored["microbatch"]), fusion, c["num_patches"])
    loss, reader, contrastive = model(batch, stored["training"]["contrastive_weight"])
    loss.backward()
    errors = {"loss": abs(reader.detach() - golden["loss"]), "contrastive": abs(contrastive.detach() - golden["contrastive"])}
    for name, weight in model.named_parameters():
        want = golden["g." + short(name)]
        errors[short(name)] = (weight.grad - want).norm() / want.norm()
    worst = max(errors, key=lambda n: float(errors[n]))
    if not float(errors[worst]) < 1e-10:  # fp64 rounding through some dozen sums
        raise SystemExit(f"eager.py differs from the reference model: {worst} by {float(errors[worst]):.3g}")
    return float(errors[worst])


def main():
    parser = common.parse(__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the golden files first")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = dict(vars(args), torch=torch.__version__)
    if args.check:
        config["check_worst_error"] = check(args.fusion)
    shape = common.SHAPES[args.shape]
    c = dict(shape, num_patches=0, embedding_width=256, copy_width=64, score_temperature=0.05)
    torch.manual_seed(args.seed)
    model = Model(c, args.fusion)
    trainer = Trainer(model, args.precision)
    batch = collate_batch(common.make_batch(shape, np.random.default_rng(args.seed)), args.fusion)
    losses = []
    seconds = common.time_steps(lambda: losses.append(float(trainer.step(batch).detach())), args.warmup, args.steps)
    if not losses[-1] < losses[0]:
        raise SystemExit(f"the loss did not fall: {losses}")
    config.update(shape, parameters=sum(p.numel() for p in model.parameters()), distinct_documents=batch["doc"]["token"].shape[0],
                  first_loss=losses[0], last_loss=losses[-1])
    common.report("pytorch-eager", shape["inputs"], seconds, config)


if __name__ == "__main__":
    main()
