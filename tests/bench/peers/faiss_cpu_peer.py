"""PyPI's faiss-cpu (IndexFlatIP) on the vectors and queries that `contexture bench search` wrote to a folder.

Its rows must be the same, or score the same to fp32's rounding. One JSON line: the fastest search in ms.
"""
import argparse
import json
import pathlib
import time

import faiss
import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="holds vectors.f32, queries.f32 and rows.i64")
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--found", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    faiss.omp_set_num_threads(args.threads)
    vectors = np.fromfile(args.folder / "vectors.f32", dtype=np.float32).reshape(-1, args.dim)
    queries = np.fromfile(args.folder / "queries.f32", dtype=np.float32).reshape(-1, args.dim)
    rows = np.fromfile(args.folder / "rows.i64", dtype=np.int64).reshape(len(queries), args.found)
    index = faiss.IndexFlatIP(args.dim)
    index.add(vectors)
    scores, found = index.search(queries, args.found)
    wanted = np.einsum("qd,qfd->qf", queries.astype(np.float64), vectors[rows].astype(np.float64))
    # Unit vectors: a float sum of dim products is off by less than dim * 2^-24.
    if not np.all((found == rows) | (np.abs(scores - wanted) < args.dim * 2.0**-24)):
        raise SystemExit("faiss-cpu found other rows")
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        start = time.perf_counter()
        index.search(queries, args.found)
        best = min(best, time.perf_counter() - start)
    print(json.dumps({"ms": 1e3 * best, "faiss": faiss.__version__, "options": faiss.get_compile_options().strip()}), flush=True)


if __name__ == "__main__":
    main()
