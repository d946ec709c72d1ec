"""Writes trec_scores.json: graded judgments and runs with trec_eval's figures for each query.

Needs pytrec-eval-terrier 0.5.11.  python make_trec_scores.py
"""

import importlib.metadata
import json
import pathlib
import random

import pytrec_eval

CUTOFFS = [1, 3, 5, 10, 100]
KINDS = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "p": "P", "success": "success"}
rng = random.Random(77)

qrels, run = {}, {}
for q in range(30):
    qid = f"q{q}"
    judged = rng.sample(range(80), rng.randint(1, 12))
    qrels[qid] = {f"d{n}": rng.choice([-1, 0, 0, 1, 1, 2, 3]) for n in judged}
    results = rng.sample(range(80), rng.randint(1, 60))
    # Few distinct scores: many ties, which trec_eval breaks by id, descending as text.
    run[qid] = {f"d{n}": rng.choice([-2.0, 0.25, 0.5, 1.0, 1e-9, 3.5]) for n in results}
qrels["none relevant"] = {"d1": 0, "d2": -1}
run["none relevant"] = {"d1": 1.0, "d2": 0.5}
qrels["nothing judged found"] = {"d1": 1}
run["nothing judged found"] = {"d2": 1.0}
qrels["tie"] = {"d10": 1, "d9": 2}
run["tie"] = {"d10": 1.0, "d9": 1.0, "d1": 1.0}
qrels["equal as floats"] = {"a": 1}
run["equal as floats"] = {"a": 1.0 + 1e-9, "b": 1.0}
qrels["judged, no result"] = {"d1": 1}
run["result, not judged"] = {"d1": 1.0}

wanted = {f"{m}.{','.join(map(str, CUTOFFS))}" for m in KINDS.values()} | {"map", "Rprec", "recip_rank"}
found = pytrec_eval.RelevanceEvaluator(qrels, wanted).evaluate(run)
names = {f"{ours}@{k}": f"{theirs}_{k}" for ours, theirs in KINDS.items() for k in CUTOFFS}
names |= {"map": "map", "rprec": "Rprec", "mrr": "recip_rank"}
golden = {"source": "pytrec-eval-terrier " + importlib.metadata.version("pytrec_eval-terrier"), "cutoffs": CUTOFFS,
          "qrels": qrels, "run": run,
          "scores": {q: {ours: v[theirs] for ours, theirs in names.items()} for q, v in found.items()}}
out = pathlib.Path(__file__).with_name("trec_scores.json")
out.write_text(json.dumps(golden) + "\n")
print(out.name, len(found))
