"""The plain transformer of `contexture bench parallel` in torch.distributed over Gloo, one thread a rank: pipelining
(Schedule1F1B), DistributedDataParallel, or FSDP2 (fully_shard). Prints one JSON line: step_s, loss, peak_mb per rank."""
import argparse
import json
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.gain, 1e-6)


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.heads
        self.norm1, self.norm2 = RMSNorm(a.width), RMSNorm(a.width)
        self.qkv = nn.Linear(a.width, 3 * a.width, bias=False)
        self.out = nn.Linear(a.width, a.width, bias=False)
        self.up = nn.Linear(a.width, 2 * a.ffn_width, bias=False)
        self.down = nn.Linear(a.ffn_width, a.width, bias=False)
        half = a.width // a.heads // 2
        angle = torch.arange(a.tokens)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, D))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Embed(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.table = nn.Embedding(a.vocab, a.width)
        nn.init.normal_(self.table.weight, std=a.width**-0.5)
        self.scale = 0.5 * a.width**0.5

    def forward(self, tokens):
        return self.table(tokens) * self.scale


def modules(a):
    head = nn.Linear(a.width, a.vocab, bias=False)
    return [Embed(a), *(Layer(a) for _ in range(a.layers)), RMSNorm(a.width), head]


def status_mb(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def run(rank, a, port, queue):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=a.ranks)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(a.vocab, (a.batch, a.tokens), generator=generator)
    targets = (tokens + 1) % a.vocab
    before = status_mb("VmRSS:")
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")

    def loss_of(logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    losses = []
    if a.mode == "pipeline":
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        parts = modules(a)
        cut = [round(len(parts) * s / a.ranks) for s in range(a.ranks + 1)]
        model = nn.Sequential(*parts[cut[rank]:cut[rank + 1]])
        stage = PipelineStage(model, rank, a.ranks, torch.device("cpu"))
        schedule = Schedule1F1B(stage, a.microbatches, loss_fn=loss_of)

        def forward_backward():
            out = []
            if rank == 0 and a.ranks > 1:
                schedule.step(tokens)
            elif rank == a.ranks - 1:
                schedule.step(target=targets, losses=out)
            else:
                schedule.step()
            return sum(x.item() for x in out) / len(out) if out else 0.0
    else:
        model = nn.Sequential(*modules(a))
        share = slice(rank * a.batch // a.ranks, (rank + 1) * a.batch // a.ranks)
        if a.mode == "ddp":
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard
            mesh = init_device_mesh("cpu", (a.ranks,))
            for part in model:
                fully_shard(part, mesh=mesh)
            fully_shard(model, mesh=mesh)

        def forward_backward():
            loss = loss_of(model(tokens[share]), targets[share])
            loss.backward()
            return loss.item() / a.ranks

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=a.mode != "fsdp")
    seconds = []
    for s in range(a.warmup + a.steps):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.tensor([forward_backward()])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        dist.all_reduce(loss)
        if s >= a.warmup:
            seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    queue.put((rank, status_mb("VmHWM:") - before, statistics.median(seconds), losses[-1]))
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["pipeline", "ddp", "fsdp"], required=True)
    for name in ["ranks", "microbatches", "width", "heads", "ffn-width", "layers", "vocab", "batch", "tokens", "warmup", "steps"]:
        parser.add_argument(f"--{name}", type=int, default=1)
    a = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ["OMP_NUM_THREADS"] = "1"
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=run, args=(r, a, port, queue)) for r in range(a.ranks)]
    for w in workers:
        w.start()
    results = sorted(queue.get(timeout=300) for _ in workers)
    for w in workers:
        w.join()
    print(json.dumps({"step_s": results[0][2], "loss": results[0][3], "peak_mb": [r[1] for r in results]}))


if __name__ == "__main__":
    main()
