"""Writes ranking_scores.json: Success@k, Recall@k and reciprocal rank of trec_eval.

Needs ir-measures 0.4.3 with pytrec-eval-terrier 0.5.11.  python make_ranking_scores.py
"""

import importlib.metadata
import json
import pathlib
import random

import ir_measures
from ir_measures import RR, R, Success

CUTOFFS = [1, 2, 5, 20]
rng = random.Random(20240611)

queries = []
for q in range(40):
    ids = [f"d{n}" for n in rng.sample(range(60), rng.randint(1, 30))]
    # Few distinct scores: many ties, which trec_eval breaks by id, descending as text.
    run = [{"id": i, "score": rng.choice([0.5, 1.0, 1.5, 2.0])} for i in ids]
    gold = [f"d{n}" for n in rng.sample(range(60), rng.randint(1, 4))]
    queries.append({"run": run, "gold": gold})
queries.append({"run": [{"id": "b", "score": 1.0}, {"id": "a", "score": 1.0}], "gold": ["a"]})
queries.append({"run": [{"id": "d9", "score": 1.0}, {"id": "d10", "score": 1.0}], "gold": ["d10"]})
# Apart as doubles, equal as the floats that trec_eval keeps.
queries.append({"run": [{"id": "a", "score": 1.0 + 1e-9}, {"id": "b", "score": 1.0}], "gold": ["a"]})
queries.append({"run": [{"id": "a", "score": -1.0}, {"id": "b", "score": -2.0}], "gold": ["b", "zz"]})
queries.append({"run": [{"id": "x", "score": 3.0}], "gold": ["absent"]})

for n, query in enumerate(queries):
    qrels = [ir_measures.Qrel(str(n), i, 1) for i in query["gold"]]
    run = [ir_measures.ScoredDoc(str(n), d["id"], d["score"]) for d in query["run"]]
    wanted = [RR] + [m @ k for k in CUTOFFS for m in (R, Success)]
    values = ir_measures.pytrec_eval.calc_aggregate(wanted, qrels, run)
    query["rr"] = values[RR]
    query["recall"] = [values[R @ k] for k in CUTOFFS]
    query["hit"] = [values[Success @ k] for k in CUTOFFS]

mean = lambda f: 100.0 * sum(f(q) for q in queries) / len(queries)
golden = {
    "source": "ir-measures " + importlib.metadata.version("ir_measures")
    + ", pytrec-eval-terrier " + importlib.metadata.version("pytrec_eval-terrier"),
    "cutoffs": CUTOFFS, "queries": queries, "mrr": mean(lambda q: q["rr"]),
    "recall": [mean(lambda q, i=i: q["recall"][i]) for i in range(len(CUTOFFS))],
    "hit": [mean(lambda q, i=i: q["hit"][i]) for i in range(len(CUTOFFS))],
}
out = pathlib.Path(__file__).with_name("ranking_scores.json")
out.write_text(json.dumps(golden) + "\n")
print(out.name, len(queries), golden["mrr"], golden["hit"], golden["recall"])
