"""The model a second time, as plain padded tensor code in fp64: the oracle of tests/model/golden_test.cpp.

Written from the definition (docs/design.md 1), not from the C++ sources: every sequence is padded to a rectangle, every
mask is dense, nothing is fused and no document is encoded once for several readers unless the definition says so.
Weights are a dict from the C++ parameter names to tensors. Letters: S sequences, T rows of the longest, D width,
H query heads, G key heads, K head width, B inputs, M memory rows, V vocabulary.
"""
import math

import torch

PAD, IMAGE = 0, 4


class Config:
    def __init__(self, **values):
        self.eps, self.theta, self.closed_pictures = 1e-6, 10000.0, True
        self.__dict__.update(values)


def rms_norm(x, gain, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * gain


def rotate(x, position, theta):
    """x [S, T, heads, K]; pairs (i, i + K/2) turn by position * theta^(-2i/K)."""
    K = x.shape[-1]
    frequency = theta ** (-torch.arange(0, K, 2, dtype=x.dtype) / K)
    angle = position[..., None].to(x.dtype) * frequency
    turn = torch.polar(torch.ones_like(angle), angle)[:, :, None, :]
    turned = torch.complex(x[..., : K // 2].contiguous(), x[..., K // 2 :].contiguous()) * turn
    return torch.cat([turned.real, turned.imag], -1)


def attend(q, k, v, bias):
    """q [S, T, H, K], k and v [S, M, G, K], bias [S, T, M] (-inf hides). Query head h reads key head h / (H / G)."""
    repeats = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
    logits = torch.einsum("sthk,smhk->shtm", q, k) / math.sqrt(q.shape[-1]) + bias[:, None]
    return torch.einsum("shtm,smhk->sthk", logits.softmax(-1), v).flatten(2)


def embed(w, c, sequence, shift, role=None):
    """One sequence {tokens, patches [P, patch_width] or None} to rows [n, D]: patches first, then text."""
    tokens = torch.tensor(sequence["tokens"], dtype=torch.long)
    previous = torch.cat([torch.tensor([PAD]), tokens[:-1]]) if len(tokens) else tokens
    text = (w["embed.token"][tokens] + w["embed.token"][previous] @ w[shift].T) * (0.5 * math.sqrt(c.width))
    rows = text
    if sequence["patches"] is not None:
        rows = torch.cat([sequence["patches"] @ w["embed.patch"].T + w["embed.patch_position"], text])
    return rows if role is None else rows + w[role]


def pad(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def self_attention(w, c, name, x, position, bias):
    normed = rms_norm(x, w[name + ".norm"], c.eps) @ w[name + ".qkv"].T
    q, k, v = normed.split([c.heads * c.head_width, c.kv_heads * c.head_width, c.kv_heads * c.head_width], -1)
    shape = x.shape[:2] + (-1, c.head_width)
    q, k = rotate(q.reshape(shape), position, c.theta), rotate(k.reshape(shape), position, c.theta)
    return attend(q, k, v.reshape(shape), bias) @ w[name + ".out"].T


def feed_forward(w, c, name, x):
    gate, up = (rms_norm(x, w[name + ".norm"], c.eps) @ w[name + ".in"].T).chunk(2, -1)
    return (gate / (1 + torch.exp(-gate)) * up) @ w[name + ".out"].T


def encode(w, c, sequences, role):
    """States [S, T, D] after the final norm, with the number of rows of each sequence."""
    rows = [embed(w, c, s, "encoder.shift", role) for s in sequences]
    x, lengths = pad(rows), [len(r) for r in rows]
    S, T = x.shape[:2]
    hidden = torch.zeros(S, T, T, dtype=torch.bool)
    for s, sequence in enumerate(sequences):
        hidden[s, :, lengths[s] :] = True
        if sequence["patches"] is not None and c.closed_pictures:
            P = len(sequence["patches"])
            hidden[s, :P, P:] = True  # a picture's patches see patches only
    bias = torch.zeros(S, T, T, dtype=x.dtype).masked_fill(hidden, -math.inf)
    position = torch.arange(T).expand(S, T)
    for i in range(c.encoder_layers):
        x = x + self_attention(w, c, f"encoder.layer.{i}.attention", x, position, bias)
        x = x + feed_forward(w, c, f"encoder.layer.{i}.mlp", x)
    return rms_norm(x, w["encoder.norm"], c.eps), lengths


def pool(w, c, sequences, states, lengths):
    """Unit-length retrieval embeddings [S, E]."""
    out = []
    for sequence, state, n in zip(sequences, states, lengths):
        if c.pooling == "patches" and sequence["patches"] is not None:
            pooled = (state[: len(sequence["patches"])] @ w["encoder.pool.patch"].T).flatten()
        elif c.pooling == "cls":
            pooled = w["encoder.pool.plain"] @ state[0]
        else:
            pooled = w["encoder.pool.plain"] @ state[:n].mean(0)
        out.append(pooled / torch.sqrt((pooled * pooled).sum() + 1e-12))
    return torch.stack(out)


def joined(prompt, document):
    """Fusion-in-Decoder reads the picture of the document, the prompt's text, the document's text."""
    return {"tokens": prompt["tokens"] + document["tokens"], "patches": document["patches"]}


def forward(w, c, batch):
    """The reader's loss (mean nats per target token), log-probabilities, and the retrieval embeddings."""
    documents, inputs = batch["documents"], batch["inputs"]
    doc_states, doc_lengths = encode(w, c, documents, "encoder.role.document")
    doc_embedding = pool(w, c, documents, doc_states, doc_lengths)
    queries = [i["query"] for i in inputs]
    query_embedding = pool(w, c, queries, *encode(w, c, queries, "encoder.role.query"))
    log_probs, target_log_prob = [], []
    for b, one in enumerate(inputs):
        ids = one["documents"]
        score = doc_embedding[ids] @ query_embedding[b] / c.score_temperature
        log_prior = score - torch.logsumexp(score, 0) if ids else score
        slots = [documents[d] for d in ids]
        read = {"tokens": one["prompt"]["tokens"] + one["target"][:-1], "patches": one["prompt"]["patches"]}
        written = embed(w, c, read, "decoder.shift")
        memory, memory_bias = torch.zeros(0, c.width, dtype=written.dtype), torch.zeros(0, dtype=written.dtype)
        texts = [d["tokens"] for d in slots]  # what the memory's text rows say, from the first one's predecessors on
        if c.fusion == "fid" and slots:
            both = [joined(one["prompt"], d) for d in slots]
            states, lengths = encode(w, c, both, "encoder.role.reader")
            parts = [s[:n] for s, n in zip(states, lengths)]
            texts = [d["tokens"] for d in both]
        else:
            parts = [doc_states[d, : doc_lengths[d]] for d in ids]
        if c.fusion == "prefix":
            chunks = [embed(w, c, d, "decoder.shift") for d in slots] + [written]
            prior = torch.cat([log_prior, torch.zeros(1, dtype=written.dtype)])
            key_bias = torch.cat([p.expand(len(r)) for p, r in zip(prior, chunks)])
            x = torch.cat(chunks)[None]
        else:
            x = written[None]
            key_bias = torch.zeros(len(written), dtype=written.dtype)
            if parts:
                memory = torch.cat(parts)
                memory_bias = torch.cat([p.expand(len(r)) for p, r in zip(log_prior, parts)])
        n = x.shape[1]
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        bias = key_bias.expand(n, n).masked_fill(future, -math.inf)[None]
        position = torch.arange(n)[None]
        for i in range(c.decoder_layers):
            name = f"decoder.layer.{i}"
            x = x + self_attention(w, c, name + ".attention", x, position, bias)
            if c.fusion != "prefix":
                q = (rms_norm(x, w[name + ".cross.norm"], c.eps) @ w[name + ".cross.q"].T).reshape(1, n, c.heads, c.head_width)
                k, v = (memory @ w[name + ".cross.kv"].T).chunk(2, -1)
                grid = (1, len(memory), c.kv_heads, c.head_width)
                k = torch.cat([w[name + ".cross.null_k"][None], k.reshape(grid)], 1)
                v = torch.cat([w[name + ".cross.null_v"][None], v.reshape(grid)], 1)
                with_null = torch.cat([torch.zeros(1, dtype=x.dtype), memory_bias]).expand(1, n, -1)
                x = x + attend(q, k, v, with_null) @ w[name + ".cross.out"].T
            x = x + feed_forward(w, c, name + ".mlp", x)
        states = rms_norm(x, w["decoder.norm"], c.eps)[0]
        if c.fusion == "prefix":
            parts = list(states[: n - len(written)].split([len(r) for r in chunks[:-1]])) if slots else []
        state = states[n - len(one["target"]) :]
        distribution = read_out(w, c, state, one["target"], slots, parts, texts, log_prior)
        log_probs.append(distribution.log())
        target_log_prob.append(log_probs[-1][torch.arange(len(one["target"])), one["target"]])
    target_log_prob = torch.cat(target_log_prob)
    return {"loss": -target_log_prob.mean(), "log_probs": torch.cat(log_probs), "target_log_prob": target_log_prob,
            "query_embedding": query_embedding, "doc_embedding": doc_embedding}


def read_out(w, c, state, target, slots, parts, texts, log_prior):
    """Probabilities [targets, V] of one input: generated, or pointed at among the text of its documents."""
    if not slots or not c.copy_head:
        return (state @ w["embed.token"].T).softmax(-1)
    keys, bias, said, one_back, two_back = [], [], [], [], []
    for slot, (document, part, text) in enumerate(zip(slots, parts, texts)):
        n = len(document["tokens"])
        keys.append(part[len(part) - n :])
        bias.append(log_prior[slot].expand(n))
        padded = [PAD, PAD] + text
        said += padded[len(padded) - n :]
        one_back += padded[len(padded) - n - 1 : len(padded) - 1]
        two_back += padded[len(padded) - n - 2 : len(padded) - 2]
    keys, bias = torch.cat(keys), torch.cat(bias)
    said, one_back, two_back = (torch.tensor(t) for t in (said, one_back, two_back))
    logits = state @ w["copy.query"].T @ (keys @ w["copy.key"].T).T / math.sqrt(c.copy_width) + bias
    for t in range(len(target)):  # a key whose predecessors are what was just written is favoured
        one = one_back == target[t - 1] if t > 0 else torch.zeros_like(one_back, dtype=torch.bool)
        two = one & (two_back == target[t - 2]) if t > 1 else torch.zeros_like(one)
        bonus = torch.zeros_like(logits)
        bonus[t] = one * w["copy.match_one"] + two * w["copy.match_two"]
        logits = logits + bonus
    pointed = logits.softmax(-1)
    context = pointed @ keys
    gate = torch.sigmoid(torch.cat([state, context], -1) @ w["copy.gate"][0] + w["copy.gate_bias"])[:, None]
    generated = ((state + context @ w["copy.context"].T) @ w["embed.token"].T).softmax(-1)
    one_hot = torch.nn.functional.one_hot(said, c.vocab).to(pointed.dtype)
    return (1 - gate) * generated + gate * (pointed @ one_hot)


def contrastive(query, document, positives, masked, temperature):
    """Mean over the queries with a positive of -log (share of the softmax over the documents that is positive).

    masked[b]: documents that are no candidates of query b.
    """
    terms = []
    for b, gold in enumerate(positives):
        if gold:
            candidates = [u for u in range(len(document)) if u not in masked[b]]
            share = (document[candidates] @ query[b] / temperature).softmax(0)
            terms.append(-share[[candidates.index(u) for u in gold]].sum().log())
    return torch.stack(terms).mean()


def adamw(w, state, grads, rate, betas, eps, decay, clip):
    """One step in place: gradients scaled to the norm `clip`, then AdamW with decay of matrices only."""
    norm = torch.sqrt(sum((g * g).sum() for g in grads.values()))
    scale = min(1.0, clip / norm.item())
    for name, grad in grads.items():
        first, second, t = state.get(name, (0.0, 0.0, 0))
        grad = grad * scale
        first = betas[0] * first + (1 - betas[0]) * grad
        second = betas[1] * second + (1 - betas[1]) * grad * grad
        t += 1
        state[name] = (first, second, t)
        value = w[name].detach()
        if value.dim() > 1:
            value = value * (1 - rate * decay)
        root = torch.sqrt(second / (1 - betas[1] ** t)) + eps
        w[name] = (value - rate * (first / (1 - betas[0] ** t)) / root).requires_grad_()
    return norm
