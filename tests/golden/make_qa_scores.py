"""Writes qa_scores.json: DPR's tokens and answer match, KILT's ROUGE-L.

Needs regex and rouge 1.0.1. The match is DPR's as described: canonically decomposed text, tokens by the pattern of its
tokeniser, lower-cased, an answer's in a row.  python make_qa_scores.py
"""

import importlib.metadata
import json
import pathlib
import unicodedata

import regex
import rouge

PATTERN = regex.compile(r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])", regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)


def tokens(text):
    return [m.group().lower() for m in PATTERN.finditer(unicodedata.normalize("NFD", text))]


def has_answer(passage, answers):
    passage = tokens(passage)
    wanted = [tokens(a) for a in answers]
    return any(w == passage[i:i + len(w)] for w in wanted for i in range(len(passage) - len(w) + 1))


def has_regex(passage, patterns):
    for pattern in patterns:
        try:
            found = regex.compile(unicodedata.normalize("NFD", pattern), regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)
        except regex.error:
            continue
        if found.search(unicodedata.normalize("NFD", passage)):
            return True
    return False


MATCHES = [
    ("The capital of France is Paris.", ["paris"]), ("The capital of France is Parisian", ["Paris"]),
    ("S\u00e3o Tom\u00e9 and Pr\u00edncipe", ["sao tome"]), ("S\u00e3o Tom\u00e9", ["Sa\u0303o Tome\u0301"]),
    ("It cost $1,000.50 in 1990", ["1,000"]), ("It cost $1,000.50", ["1000"]), ("U.S. Navy", ["US"]), ("U.S. Navy", ["U. S."]),
    ("rock-n-roll", ["rock n roll"]), ("rock-n-roll", ["rock-n-roll"]), ("New\u00a0York\u200bCity", ["new york city"]),
    ("\u4e2d\u56fd\u5317\u4eac", ["\u5317\u4eac"]), ("\u4e2d\u56fd \u5317\u4eac", ["\u5317\u4eac"]),
    ("\u039f\u03a3\u039f\u03a3", ["\u03bf\u03c3\u03bf\u03c2"]), ("\u0130stanbul", ["istanbul", "i\u0307stanbul"]),
    ("anything", [""]), ("", [""]), ("", ["x"]), ("something", []), ("a\tb\nc", ["b c"]), ("smile \U0001f600!", ["\U0001f600"]),
    ("x\u00b2 + y\u00b2", ["x2"]), ("tail word", ["word", "no"]), ("word", ["word word"]), ("Don't", ["don t"]), ("Don't", ["don ' t"]),
]
PATTERNS = [
    ("Born on May 5, 1821 there", [r"May\s+5,?\s+1821"]), ("line one\nParis", [r"^paris$"]), ("line one\nParis x", [r"^paris$"]),
    ("caf\u00e9", ["cafe\u0301"]), ("x", ["("]), ("1,234 feet", [r"1,?2\d{2}", "nothing"]), ("abc", [r"a.c|z"]), ("ABC", ["b"]),
]
ROUGE = [
    ("the cat sat on the mat", "the cat lay on the mat"), ("a b c d", "d c b a"), ("one. two three. four", "two. one three four."),
    ("same words same words", "same words"), ("Case Matters", "case matters"), ("nothing shared", "at all here"), ("a", "a"),
    ("The sky is blue. It is vast.", "It is vast. The blue sky. It."), ("x . y", "y . x"), ("a  b\tc", "a b c"),
    ("b a b a", "a b a b"), ("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5.", "w1 w2 w3 w4 w5"),
]
scorer = rouge.Rouge()
golden = {
    "source": "regex " + importlib.metadata.version("regex") + ", rouge " + importlib.metadata.version("rouge"),
    "matches": [{"passage": p, "answers": a, "tokens": tokens(p), "has": has_answer(p, a)} for p, a in MATCHES],
    "patterns": [{"passage": p, "answers": a, "has": has_regex(p, a)} for p, a in PATTERNS],
    "rouge": [{"prediction": p, "reference": r, "f": scorer.get_scores(p, r, avg=True)["rouge-l"]["f"]} for p, r in ROUGE],
}
out = pathlib.Path(__file__).with_name("qa_scores.json")
out.write_text(json.dumps(golden, indent=1) + "\n")
print(out.name, [m["has"] for m in golden["matches"]], [m["has"] for m in golden["patterns"]])
