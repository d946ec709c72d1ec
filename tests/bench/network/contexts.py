"""Where to cut a model whose layers read retrieved documents: the same training on two nodes with a slow link between, cut blindly (time
balanced, bytes unknown), by the SageMaker tree, by PipeDream's planner, and exactly with document wires as hyperedges. Cross-attention in the
late layers, in every second, in all, and Fusion-in-Decoder; with grouped microbatches, too. Prints per cut the bytes that cross a step, the documents encoded, the step
time, and the loss, which must be the same.

    sudo python3 tests/bench/network/contexts.py --contexture build/bin/contexture
"""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile

from two_nodes import TwoNodes

CUTS = ("blind", "tree", "pipedream", "exact", "exact, grouped")
LAYERS = 8
CASES = {"late layers": {"cross_layers": [LAYERS - 2, LAYERS - 1]}, "every second": {"cross_layers": list(range(1, LAYERS, 2))}, "all layers": {},
         "fid": {"fusion": "fid"}}
STEPS = 6


def write_data(folder):
    """Documents of 48 words; a question names a document's first two words and asks for its last."""
    rng = random.Random(1)
    words = ["".join(rng.choice("bcdfghklmnprst") + rng.choice("aeiou") for _ in range(2)) for _ in range(400)]
    documents = [[rng.choice(words) for _ in range(48)] for _ in range(200)]
    with open(f"{folder}/corpus.jsonl", "w") as corpus, open(f"{folder}/train.jsonl", "w") as train, open(f"{folder}/tokenizer.txt", "w") as text:
        for i, document in enumerate(documents):
            corpus.write(json.dumps({"id": f"d{i}", "text": " ".join(document)}) + "\n")
            text.write(" ".join(document) + "\n")
            for kind in range(2):
                answer = " ".join(document[-12:]) if kind else " ".join(document[-13:-1])
                train.write(json.dumps({"id": f"q{i}/{kind}", "question": f"what ends {document[0]} {document[1]}", "answers": [answer],
                                        "documents": [f"d{i}"], "type": "end"}) + "\n")


def config_of(folder, cluster, model):
    return {"data": {"root": folder, "train": [{"path": "train.jsonl"}], "query": "text", "tokenizer_options": {"vocab_size": 700}, "group_size": 2,
                     "max_document_tokens": 64, "max_answer_tokens": 24},
            "model": {"vocab": 700, "width": 128, "heads": 4, "kv_heads": 4, "head_width": 32, "ffn_width": 256, "encoder_layers": 2,
                      "decoder_layers": LAYERS, "towers": "separate", "pooling": "mean", "embedding_width": 64, "copy_head": False, "tie_head": False, **model},
            "retriever": {"documents": 2}, "train": {"steps": STEPS, "batch_size": 64, "precision": "fp32"}, "optimizer": {"warmup_steps": 2},
            "parallel": {"pp": 2, "microbatches": 4, "schedule": "list", "cluster": cluster}, "eval": {"every": 0}, "checkpoint": {"every": 0},
            "run": {"threads": 1}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexture", default="build/bin/contexture", help="the program")
    parser.add_argument("--rate", type=float, default=1000, help="of the link between the nodes, Mbit/s")
    parser.add_argument("--tflops", type=float, default=0.05, help="that dense layers reach on one rank, for the cuts' estimate of work")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args()
    program = os.path.abspath(options.contexture)
    rows = []
    with tempfile.TemporaryDirectory() as folder, TwoNodes() as nodes:
        nodes.set_rate(options.rate)
        write_data(folder)
        cluster = f"{folder}/cluster.json"
        link = {"latency_us": 200, "gb_per_s": options.rate / 8000}
        with open(cluster, "w") as file:
            json.dump({"name": "two nodes", "nodes": 2, "gpus_per_node": 1,
                       "gpu": {"memory_gb": 8, "peak_tflops": {"fp32": options.tflops}, "efficiency": 1.0},
                       "links": {"inside": link, "across": link}}, file)
        tokenizer = ""
        for case, model in CASES.items():
            for cut in CUTS:
                run = f"{folder}/{case}-{cut}".replace(" ", "-").replace(",", "")
                config = f"{run}.json"
                with open(config, "w") as file:
                    json.dump(config_of(folder, cluster, model), file)
                before = nodes.bytes_sent()
                settings = [f"run.dir={run}", f"parallel.partitioner={cut.split(',')[0]}"] + (["data.assembly=grouped"] if "grouped" in cut else []) + ([f"data.tokenizer={tokenizer}"] if tokenizer else [])
                nodes.run([program, "train", "--config", config] + [x for s in settings for x in ("--set", s)], ranks_per_node=1)
                tokenizer = tokenizer or f"{run}/tokenizer.model"
                wire = sum(nodes.bytes_sent()) - sum(before)
                with open(f"{run}/metrics.jsonl") as file:
                    steps = [r for r in map(json.loads, file) if "loss" in r]
                assert len(steps) == STEPS
                rows.append({"case": case, "cut": cut, "sent_mb": statistics.mean(r["sent_bytes"] for r in steps) / 1e6,
                             "encoded": statistics.mean(r["encoded_documents"] for r in steps), "slots": statistics.mean(r["slots"] for r in steps),
                             "seconds": statistics.median(r["seconds"] for r in steps[1:]), "loss": steps[-1]["loss"], "wire_mb": wire / 1e6 / STEPS})
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'cross-attention':<16}{'cut':<15}{'MB a step':>10}{'of blind':>10}{'documents':>11}{'slots':>7}{'seconds':>9}{'of blind':>10}{'loss':>14}")
    for row in rows:
        blind = next(r for r in rows if r["case"] == row["case"] and r["cut"] == "blind")
        print(f"{row['case']:<16}{row['cut']:<15}{row['sent_mb']:10.2f}{row['sent_mb'] / blind['sent_mb']:10.2f}{row['encoded']:11.0f}{row['slots']:7.0f}"
              f"{row['seconds']:9.3f}{row['seconds'] / blind['seconds']:10.2f}{row['loss']:14.9f}")
        if abs(row["loss"] / blind["loss"] - 1) > 1e-5:
            sys.exit(f"{row['case']}, {row['cut']}: the loss differs from the blind cut's")


if __name__ == "__main__":
    main()
