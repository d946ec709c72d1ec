#!/usr/bin/env python3
"""Times PyPI's faiss-cpu (IndexFlatIP) on the shapes that search_bench prints, and the ratio to it.

    pip install faiss-cpu numpy
    search_bench | python3 faiss_cpu_peer.py

With one thread both are timed by that thread's processor time, which other programs on the machine disturb less.
"""
import json
import sys
import time

import faiss
import numpy as np

FOUND, ROUNDS = 10, 7


def main():
    rng = np.random.default_rng(1)
    print(f"faiss-cpu {faiss.__version__} ({faiss.get_compile_options().strip()})")
    index, built_for = None, None
    for line in sys.stdin.readlines():  # all of it first: the two must not run at the same time
        ours = json.loads(line)
        n, dim = ours["vectors"], ours["dim"]
        if built_for != (n, dim):
            index, built_for = faiss.IndexFlatIP(dim), (n, dim)
            index.add(unit(rng, n, dim))
        queries = unit(rng, ours["queries"], dim)
        faiss.omp_set_num_threads(ours["threads"])
        scores, _ = index.search(queries, FOUND)
        assert np.allclose(scores[0, 0], (queries[:1] @ index_vectors(index).T).max(), atol=1e-5)
        clock = time.thread_time if ours["threads"] == 1 else time.perf_counter
        best_ms = min(timed(index, queries, clock) for _ in range(ROUNDS))
        print(f"{ours['queries']:4d} queries x {n:6d} x {dim}, {ours['threads']} threads: "
              f"ours {ours['ms']:8.2f} ms, faiss-cpu {best_ms:8.2f} ms, ratio {best_ms / ours['ms']:.2f}", flush=True)


def unit(rng, n, dim):
    vectors = rng.random((n, dim), dtype=np.float32) - np.float32(0.5)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def index_vectors(index):
    return faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d).reshape(index.ntotal, index.d)


def timed(index, queries, clock):
    start = clock()
    index.search(queries, FOUND)
    return (clock() - start) * 1e3


if __name__ == "__main__":
    main()
