"""Writes answer_scores.json: normalised text, EM and F1 of the reference SQuAD scorer.

Needs torchmetrics 1.9.0 (pip install --no-deps torchmetrics==1.9.0). Its squad.py is loaded as it is,
with plain Python floats in place of torch tensors, so that the goldens are in double precision and
need no torch.  python make_answer_scores.py
"""

import importlib.metadata
import importlib.util
import json
import pathlib
import sys
import types


def load_squad():
    torch = types.ModuleType("torch")
    torch.Tensor, torch.tensor = float, float
    sys.modules["torch"] = torch
    utilities = types.ModuleType("torchmetrics.utilities")
    utilities.rank_zero_warn = print
    sys.modules["torchmetrics.utilities"] = utilities
    prints = types.ModuleType("torchmetrics.utilities.prints")
    prints.rank_zero_warn = print
    sys.modules["torchmetrics.utilities.prints"] = prints
    files = importlib.metadata.files("torchmetrics")
    path = next(f for f in files if str(f).endswith("functional/text/squad.py")).locate()
    spec = importlib.util.spec_from_file_location("squad", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = [
    ("Paris", ["Paris"]),
    ("the  Eiffel Tower!", ["Eiffel tower"]),
    ("Take a-ha", ["take aha"]),            # punctuation goes first: no article is left
    ("a.k.a. the a", ["aka"]),
    ("The The", [""]),
    ("", [""]),
    ("", ["something"]),
    ("something", [""]),
    ("an", ["a"]),
    ("theatre another", ["the atre an other"]),
    ("New York City", ["York New", "city of new york"]),
    ("b b b c", ["b b c c", "b"]),
    ("U.S.", ["US", "U S"]),
    ("N'Djamena", ["NDjamena", "N’Djamena"]),   # the curved apostrophe stays
    ("« Bonjour »", ["bonjour", "« bonjour »"]),
    ("S\u00e3o Tom\u00e9", ["sao tome", "S\u00c3O TOM\u00c9"]),
    ("\u0130stanbul", ["i\u0307stanbul", "istanbul"]),   # dotted capital I lowers to two code points
    ("\u039f\u03a3\u039f\u03a3", ["\u03bf\u03c3\u03bf\u03c2", "\u03bf\u03c3\u03bf\u03c3"]),   # final sigma
    ("Stra\u00dfe", ["STRASSE", "stra\u00dfe"]),
    ("a\u0301 tilde", ["\u00e1 tilde", "\u0301 tilde"]),   # a mark is no word character: the article goes
    ("a\u00a0cat\u2003sat", ["cat sat"]),   # no-break and em spaces are white space
    ("cat\u200bsat", ["cat sat", "cat\u200bsat"]),   # a zero-width space is not
    ("tab\tand\nnewline\x1cgroup\x85next", ["tab and newline group next"]),
    ("\u4e2d\u56fd a \u4eba", ["\u4e2d\u56fd \u4eba"]),
    ("a\u4e2d", ["\u4e2d", "a\u4e2d"]),   # letters of another script: "a" is no word of its own
    ("1,000.5", ["10005", "1000.5"]),
    ("an_apple", ["anapple", "apple"]),
    ("the\u2014end", ["end", "\u2014end"]),   # an em dash ends the article's word and stays
    ("\u2460 a \u00b2a", ["\u2460 \u00b2a"]),   # circled one and superscript two are numbers
    ("\U0001f1eb\U0001f1f7 a flag", ["\U0001f1eb\U0001f1f7 flag"]),
    ("A" * 300, ["a" * 300]),
]

squad = load_squad()
cases = []
for prediction, references in CASES:
    best = squad._metric_max_over_ground_truths
    cases.append({
        "prediction": prediction, "references": references,
        "normalized": squad._normalize_text(prediction),
        "em": float(best(squad._compute_exact_match_score, prediction, references)),
        "f1": float(best(squad._compute_f1_score, prediction, references)),
    })
mean = lambda key: 100.0 * sum(c[key] for c in cases) / len(cases)
golden = {"source": "torchmetrics " + importlib.metadata.version("torchmetrics"),
          "cases": cases, "em": mean("em"), "f1": mean("f1")}
out = pathlib.Path(__file__).with_name("answer_scores.json")
out.write_text(json.dumps(golden, indent=1) + "\n")
print(out.name, len(cases), golden["em"], golden["f1"])
