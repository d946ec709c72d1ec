"""Writes vqa_scores.json: the VQA challenge's normalisation and accuracy.

Needs salesforce-lavis 1.0.2 (pip install --no-deps salesforce-lavis==1.0.2), which carries the challenge's scorer; its
normalisation is used as it is. The accuracy is that of the challenge's present scorer: line ends and tabs to blanks, ends
stripped, normalised only if the annotators differ, then the mean over the subsets that leave one annotator out.
python make_vqa_scores.py
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import pathlib
import random

path = next(f for f in importlib.metadata.files("salesforce-lavis") if str(f).endswith("vqa_tools/vqa_eval.py")).locate()
spec = importlib.util.spec_from_file_location("vqa_eval", path)
module = importlib.util.module_from_spec(spec)
with contextlib.redirect_stderr(io.StringIO()):
    spec.loader.exec_module(module)
scorer = module.VQAEval()


def normalized(text):
    return scorer.processDigitArticle(scorer.processPunctuation(text))


def accuracy(prediction, answers):
    clean = lambda t: t.replace("\n", " ").replace("\t", " ").strip()
    prediction, answers = clean(prediction), [clean(a) for a in answers]
    if len(set(answers)) > 1:
        answers, prediction = [normalized(a) for a in answers], normalized(prediction)
    return sum(min(1, sum(a == prediction for j, a in enumerate(answers) if j != i) / 3) for i in range(len(answers))) / len(answers)


TEXTS = [
    "yes", "Yes.", "a dog", "The Dog", "two dogs", "ten", "none", "dont know", "isnt it", "hed've", "it's", "1,000", "1,000 dogs, cats",
    "3.5", "3.", ".5", "U.S.A.", "e.g. this", "half-pipe", "half - pipe", "left/right", "left / right", "(brackets)", "what?!", "no; yes",
    "\"quoted\"", "under_score", "a+b=c", "C:\\dir", "<tag>", "@home", "`tick`", "red,white", "red, white", "it costs $5", "50%", "somebody'd",
    "'ow'sat", "lets", "let's", "I'm", "Im", "ive", "oclock", "an apple a day", "  spaced   out ", "", ".", "a", "the the", "caf\u00e9, bar",
    "\u0663,\u0664", "1,2-3", "a.b", "...", ". " * 40 + "x", "tab\tin", "no\u00a0break", "youre", "she's", "wouldn'tve",
]
rng = random.Random(3)
pool = ["yes", "no", "2", "two", "a dog", "dog", "Dog.", "red, white", "red white", "3.5", "isnt", "isn't", "left/right", "1,000", "1000", "a"]
sets = []
for _ in range(120):
    few = rng.sample(pool, rng.randint(1, 5))
    answers = [rng.choice(few) for _ in range(10)]
    sets.append({"prediction": rng.choice(few + pool[:2]), "answers": answers})
sets.append({"prediction": "Yes.", "answers": ["yes"] * 10})        # all agree: nothing is normalised, so this is wrong
sets.append({"prediction": "Yes.", "answers": ["yes"] * 9 + ["no"]})
sets.append({"prediction": " yes\n", "answers": ["yes\t"] * 10})
sets.append({"prediction": "x", "answers": ["x"] * 2 + ["y"] * 3})  # five annotators
sets.append({"prediction": "x", "answers": ["x"]})
for s in sets:
    s["accuracy"] = accuracy(s["prediction"], s["answers"])
golden = {"source": "salesforce-lavis " + importlib.metadata.version("salesforce-lavis"),
          "texts": [{"text": t, "punctuation": scorer.processPunctuation(t), "normalized": normalized(t)} for t in TEXTS],
          "sets": sets}
out = pathlib.Path(__file__).with_name("vqa_scores.json")
out.write_text(json.dumps(golden) + "\n")
print(out.name, len(TEXTS), sum(s["accuracy"] for s in sets) / len(sets))
