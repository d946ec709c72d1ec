"""Writes python_lists.json: list literals as Python reads them.  python make_python_lists.py"""

import ast
import json
import pathlib

LITERALS = [
    "['a', 'b']", "[]", "[ ]", "['one',]", '["it\'s", \'a "quote"\']', r"['it\'s']", r"['tab\tnew\nline\\']", r"['\x41\u00e9\U0001f600']",
    r"['\101\60x']", "['a' 'b', 'c']", "[u'x', U\"y\"]", "['caf\u00e9', '\u4e2d']", r"['\d keeps']", "['']", "  ['a'  ,\n 'b' ]\n", "['[]', ', ']",
    r"['\a\b\f\v\r']", r"['C:\\dir']", "['#no comment']", '["1990", "\u201cx\u201d"]', r"['back\
slash']",
]
BAD = ["", "a", "'a'", "('a',)", "['a'", "['a' ", "['a]", "[a]", "['a',,]", "[,]", "[1]", "['a'] x", "[['a']]", "[None]", "['''a''']", "['a'+'b']",
       r"['\x4']", r"['\u12']", "__import__('os')", "[f'x']", "[b'x']", "['a\nb']", r"['\ud800']", r"['\x00']", "{'a'}"]
golden = {"good": [{"text": t, "value": ast.literal_eval(t.strip())} for t in LITERALS], "bad": BAD}
out = pathlib.Path(__file__).with_name("python_lists.json")
out.write_text(json.dumps(golden, indent=1) + "\n")
print(out.name, len(LITERALS), len(BAD))
