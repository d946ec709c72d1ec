"""Writes paired_tests.json: two-sided sign-flip tests of paired scores, every sign pattern counted.

Needs numpy and scipy.  python make_paired_tests.py
"""

import json
import pathlib

import numpy
import scipy
import scipy.stats

rng = numpy.random.default_rng(11)
cases = []
for n, step in ((2, 0.5), (5, 0.25), (9, 0.1), (12, 0.0)):
    a, b = rng.random(n), rng.random(n)
    if step:  # coarse scores: examples without a difference, and sums that tie
        a, b = numpy.round(a / step) * step, numpy.round(b / step) * step
    cases.append((a, b))
cases.append((numpy.array([1.0, 1, 1, 0, 1, 1]), numpy.array([0.0, 0, 0, 1, 0, 1])))
cases.append((numpy.array([0.5, 0.5]), numpy.array([0.5, 0.5])))

mean_difference = lambda x, y, axis: numpy.mean(x - y, axis=axis)
golden = {"source": f"scipy {scipy.__version__}", "cases": []}
for a, b in cases:
    test = scipy.stats.permutation_test((a, b), mean_difference, permutation_type="samples", vectorized=True,
                                        n_resamples=numpy.inf, alternative="two-sided")
    golden["cases"].append({"a": a.tolist(), "b": b.tolist(), "difference": float(test.statistic), "p": float(test.pvalue)})
out = pathlib.Path(__file__).with_name("paired_tests.json")
out.write_text(json.dumps(golden) + "\n")
print(out.name, [c["p"] for c in golden["cases"]])
