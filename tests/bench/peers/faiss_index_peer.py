"""PyPI's faiss-cpu on an index file and queries that `contexture bench index` wrote: the same index, its own search.

One JSON line: milliseconds of the fastest search for each batch size, and the rows found for all queries (to compare).
"""
import argparse
import json
import pathlib
import time

import faiss
import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="holds index.faiss and queries.npy; rows.f32 is written there")
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16, 256])
    parser.add_argument("--search", default="", help="nprobe=16 and the like")
    parser.add_argument("--found", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    faiss.omp_set_num_threads(args.threads)
    index = faiss.read_index(str(args.folder / "index.faiss"))
    if args.search:
        faiss.ParameterSpace().set_index_parameters(index, args.search)
    queries = np.load(args.folder / "queries.npy")
    _, rows = index.search(queries, args.found)
    rows.astype(np.float32).tofile(args.folder / "rows.f32")  # below 2^24: exact
    ms = {}
    for batch in args.batches:
        best, at, begin = float("inf"), 0, time.perf_counter()
        while time.perf_counter() - begin < args.seconds:
            some = queries[at : at + batch]
            start = time.perf_counter()
            index.search(some, args.found)
            best = min(best, time.perf_counter() - start)
            at = (at + batch) % max(1, len(queries) - batch + 1)
        ms[str(batch)] = 1e3 * best
    print(json.dumps({"ms": ms, "faiss": faiss.__version__, "options": faiss.get_compile_options().strip()}), flush=True)


if __name__ == "__main__":
    main()
