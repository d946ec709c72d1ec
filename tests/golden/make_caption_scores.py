"""Writes caption_scores.json: tokens, BLEU, ROUGE-L and CIDEr-D of the COCO caption evaluation.

Needs pycocoevalcap 1.2, numpy, and Java for its tokeniser (JAVA names the program).  python make_caption_scores.py
"""

import importlib.metadata
import json
import os
import pathlib
import random
import subprocess

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer import ptbtokenizer

TEXTS = """A man riding a wave on top of a surfboard.
A black-and-white dog can't find its owner's ball; it's lost!
Two people (a man & a woman) eat pizza at 7:30 p.m. in New York.
The U.S. flag, a $5 bill, and 1,000 birds... 50% off
I'm gonna go; they cannot wanna gimme lemme.
"Hello," she said -- it's a 'quoted' word and `backtick`
a man/woman and/or dog @ park #1 user@example.com
Mr. Smith's dogs' bowls, 3.5 feet 1/2 o'clock
rock 'n' roll 'tis the season 90's 1990s the '90s
a t-shirt with "STOP" on it,and no space.after stop
caf\u00e9 na\u00efve \u2014 dash \u2013 en \u201cquoted\u201d it\u2019s \u2026 end
He said no. She said yes.
A sign that says "NO PARKING".
double  spaces\ttab
St. Dr. vs. etc. a.m. No. 5
wouldn't couldn't don't WON'T ain't y'all I've we'd he'll they're
20-year-old mid-air 6ft 100km/h
\u00a35 \u20ac10 5\u00a2
,leading comma ?? !! !? ? !
A kitchen with a stove, microwave and refrigerator.
A little girl holding wet broccoli in her hand.
Three teddy bears, each a different color, snuggling together.
A bathroom with a toilet, sink, and shower
The man at bat readies to swing at the pitch while the umpire looks on.
A large bus sitting next to a very tall building.
Bunk bed with a narrow shelf sitting underneath it.
a woman in a red shirt is cutting a cake with "Happy 50th" on it
An elephant's trunk; a boy's hand
A plate of food - eggs, toast & bacon - on a table
a clock reading 10:45 on the tower of St. Paul's
A NY Yankees player at home-plate
The skateboarder does a 360 in mid air!
a man on a cell phone w/ a laptop
Two zebras standing side by side [in a zoo]
"""
SCENES = [
    ["a man riding a wave on a surfboard", "a surfer rides a large wave", "man surfing in the ocean", "the surfer is on a wave", "a man is riding a wave"],
    ["two dogs play in the grass", "dogs playing on a lawn", "a pair of dogs run in the grass"],
    ["a plate of food on a table", "a table with a plate of food and a fork", "food on a plate", "a meal on a white plate"],
    ["a red bus on the street", "a bus drives down a city street", "red double decker bus"],
    ["a cat sits on a laptop", "a cat lying on a laptop computer", "the cat is on the computer", "cat on a keyboard", "a cat"],
    ["a train at the station", "a train pulling into a train station"],
]
SAID = ["a man riding a wave on a surfboard in the ocean", "two dogs running in the grass the the the", "a plate of food",
        "a bus", "a dog wearing a hat and a coat stands beside an old wooden house", ""]


def run_java(texts):
    folder = pathlib.Path(ptbtokenizer.__file__).parent
    jar = ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR
    said = subprocess.run([os.environ.get("JAVA", "java"), "-Dfile.encoding=UTF-8", "-cp", str(folder / jar), "edu.stanford.nlp.process.PTBTokenizer",
                           "-preserveLines", "-lowerCase"], input="\n".join(texts).encode(), capture_output=True, check=True)
    lines = said.stdout.decode().split("\n")[:len(texts)]
    return [[w for w in line.rstrip().split(" ") if w and w not in ptbtokenizer.PUNCTUATIONS] for line in lines]


def scored(references, said):
    gts = {i: r for i, r in enumerate(references)}
    res = {i: [s] for i, s in enumerate(said)}
    bleu, _ = Bleu(4).compute_score(gts, res, verbose=0)
    cider, cider_each = Cider().compute_score(gts, res)
    rouge, rouge_each = Rouge().compute_score(gts, res)
    return {"references": references, "said": said, "bleu": bleu, "cider": float(cider), "cider_each": [float(c) for c in cider_each],
            "rougel": float(rouge), "rougel_each": [float(r) for r in rouge_each]}


texts = TEXTS.strip("\n").split("\n")
tokens = run_java(texts)
rng = random.Random(5)
words = "a the man dog cat on in with red big sits runs near table".split()
random_set = ([[" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(rng.randint(1, 5))] for _ in range(25)],
              [" ".join(rng.choices(words, k=rng.randint(0, 14))) for _ in range(25)])
golden = {"source": "pycocoevalcap " + importlib.metadata.version("pycocoevalcap"),
          "tokens": [{"text": t, "tokens": w} for t, w in zip(texts, tokens)],
          "sets": [scored(SCENES, SAID), scored(*random_set), scored(SCENES[:1], SAID[:1]), scored([["a b c"]], ["c b a"])]}
out = pathlib.Path(__file__).with_name("caption_scores.json")
out.write_text(json.dumps(golden) + "\n")
print(out.name, [(s["bleu"][3], s["cider"], s["rougel"]) for s in golden["sets"]])
