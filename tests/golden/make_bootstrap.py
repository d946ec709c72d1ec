"""Writes bootstrap.json: quantiles as numpy has them, percentile intervals as scipy has them.

Needs numpy and scipy.  python make_bootstrap.py
"""

import json
import pathlib

import numpy
import scipy
import scipy.stats

rng = numpy.random.default_rng(5)
quantiles = []
for n in (1, 2, 3, 10, 101):
    values = numpy.round(rng.normal(size=n), 1)  # ties
    quantiles.append({"values": values.tolist(), "q": [0.0, 0.025, 0.3, 0.5, 0.975, 1.0],
                      "expected": [float(numpy.quantile(values, q)) for q in (0.0, 0.025, 0.3, 0.5, 0.975, 1.0)]})

intervals = []
for p, n in ((0.76, 525), (0.09, 525), (0.5, 40)):
    scores = (rng.random(n) < p).astype(float)
    result = scipy.stats.bootstrap((scores,), numpy.mean, n_resamples=100000, method="percentile",
                                   confidence_level=0.95, batch=1000, rng=numpy.random.default_rng(9))
    intervals.append({"scores": scores.tolist(), "mean": float(scores.mean()),
                      "low": float(result.confidence_interval.low), "high": float(result.confidence_interval.high),
                      "standard_error": float(result.standard_error)})
golden = {"source": f"numpy {numpy.__version__}, scipy {scipy.__version__}", "quantiles": quantiles, "intervals": intervals}
out = pathlib.Path(__file__).with_name("bootstrap.json")
out.write_text(json.dumps(golden) + "\n")
print(out.name, [(i["mean"], i["low"], i["high"]) for i in intervals])
