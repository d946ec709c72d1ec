"""What the peers share: command line, random text of the benchmark's shapes, the clock, the result line."""
import argparse
import json
import os
import resource
import statistics
import time

SHAPES = {
    "small": dict(vocab=1500, width=128, heads=4, kv_heads=2, head_width=32, ffn_width=344, encoder_layers=2,
                  decoder_layers=2, inputs=16, documents=4, document_tokens=96, question_tokens=16, target_tokens=8),
    "medium": dict(vocab=1500, width=512, heads=8, kv_heads=8, head_width=64, ffn_width=1376, encoder_layers=6,
                   decoder_layers=6, inputs=4, documents=4, document_tokens=128, question_tokens=16, target_tokens=8),
}
SHARING = 0.5  # distinct documents of a batch as a share of those read


def parse(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--fusion", choices=["memory", "fid"], default="memory")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps, after --warmup")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def cpu_seconds():
    """Processor time of this process and of the workers that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def time_steps(step, warmup, steps):
    """Wall-clock and processor seconds of each timed call."""
    for _ in range(warmup):
        step()
    seconds = []
    for _ in range(steps):
        start, cpu = time.perf_counter(), cpu_seconds()
        step()
        seconds.append((time.perf_counter() - start, cpu_seconds() - cpu))
    return seconds


def report(peer, examples, seconds, config):
    """One JSON line: examples per second by the median step. cpu_step_s tells how far a busy machine is to blame."""
    wall = [s for s, _ in seconds]
    config = dict(config, peer=peer, steps=len(wall), step_s=statistics.median(wall), fastest_step_s=min(wall),
                  slowest_step_s=max(wall), cpu_step_s=statistics.median(cpu for _, cpu in seconds),
                  load_average=os.getloadavg()[0])
    print(json.dumps({"examples_per_s": examples / config["step_s"], "config": config}), flush=True)


def make_batch(shape, rng):
    """Random text: documents, and inputs that read `documents` each of a pool half the size of all reads.

    Every document of the pool is read by about two inputs. The first document of an input is its positive.
    """
    text = lambda n: rng.integers(10, shape["vocab"], n).tolist()
    reads = shape["inputs"] * shape["documents"]
    distinct = int(reads * SHARING)
    documents = [{"tokens": text(shape["document_tokens"]), "patches": None} for _ in range(distinct)]
    inputs = []
    for i in range(shape["inputs"]):
        # Pairs of neighbouring inputs read the same documents, each with another one first.
        first = (i // 2) * shape["documents"] * 2 * SHARING
        ids = [int(first + (k + i) % shape["documents"]) % distinct for k in range(shape["documents"])]
        question = text(shape["question_tokens"] - 1)
        inputs.append({"query": {"tokens": question + text(1), "patches": None},
                       "prompt": {"tokens": question + [2], "patches": None},
                       "target": documents[ids[0]]["tokens"][5 : 4 + shape["target_tokens"]] + [3],
                       "documents": ids, "positives": [ids[0]], "masked": []})
    return {"documents": documents, "inputs": inputs}
