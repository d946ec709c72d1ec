"""Documents and questions about things: emoji that WordNet knows as a noun."""

import dataclasses
import re

# Emoji group -> the WordNet lexicographer files whose senses fit it, best first
# (5 animal, 6 artifact, 8 body, 10 communication, 13 food, 15 location, 17 object, 18 person,
# 19 phenomenon, 20 plant, 27 substance, 28 time, 4 act, 9 cognition, 23 quantity).
GROUPS = {
    "Animals & Nature": (5, 20, 13, 17, 19),
    "Food & Drink": (13, 20, 6),
    "Travel & Places": (6, 17, 15, 19, 28),
    "Activities": (6, 4, 10),
    "Objects": (6, 10, 13, 27, 17),
    "People & Body": (8, 18),
}
MAX_GLOSS_WORDS = 24
MAX_DESCRIPTION_WORDS = 9
MAX_PARTS = 3

QUESTIONS = {
    "name": ("What is shown in this picture?", "What is the name of this thing?"),
    "kind": ("What kind of thing is this?", "To which kind does this belong?"),
    "description": ("Describe this thing in a few words.",),
}


@dataclasses.dataclass
class Synset:
    lexfile: int
    lemmas: list[str]
    hypernyms: list[str]
    parts: list[str]
    gloss: str


class WordNet:
    def __init__(self, archive):
        self._index = {}
        for line in archive.read("usr/share/wordnet/index.noun").decode().splitlines():
            if not line.startswith(" "):
                fields = line.split()
                self._index[fields[0]] = fields[-int(fields[2]):]
        self._data = {}
        for line in archive.read("usr/share/wordnet/data.noun").decode().splitlines():
            if not line.startswith(" "):
                self._data[line[:8]] = line

    def senses(self, lemma: str) -> list[str]:
        return self._index.get(lemma.lower().replace(" ", "_"), [])

    def synset(self, offset: str) -> Synset:
        body, _, gloss = self._data[offset].partition(" | ")
        fields = body.split()
        count = int(fields[3], 16)
        lemmas = [w.replace("_", " ") for w in fields[4:4 + 2 * count:2]]
        pointers = fields[5 + 2 * count:]
        pairs = [(pointers[i], pointers[i + 1]) for i in range(0, len(pointers) - 3, 4)]
        return Synset(int(fields[1]), lemmas,
                      [o for mark, o in pairs if mark in ("@", "@i")],
                      [o for mark, o in pairs if mark == "%p"], gloss.strip())


@dataclasses.dataclass
class Thing:
    code_point: int
    name: str
    names: list[str]
    kinds: list[str]
    parts: list[str]
    gloss: str
    description: str
    group: str

    @property
    def document_id(self) -> str:
        return f"thing:{self.code_point:04X}"

    @property
    def file(self) -> str:
        return f"{self.code_point:04X}.png"


def _definition(gloss: str) -> str:
    """The gloss without examples and parentheses."""
    text = re.sub(r"\([^)]*\)", "", gloss.split('; "')[0])
    return re.sub(r"\s+", " ", text).replace(" ;", ";").replace(" ,", ",").strip(" ;:,.")


def read(unicode_data, wordnet_archive) -> list[Thing]:
    wordnet = WordNet(wordnet_archive)
    group = subgroup = ""
    things, used = [], set()
    text = unicode_data.read("usr/share/unicode/emoji/emoji-test.txt").decode("utf-8")
    for line in text.splitlines():
        if line.startswith("# group: "):
            group = line[9:].strip()
        elif line.startswith("# subgroup: "):
            subgroup = line[12:].strip()
        if group not in GROUPS or "; fully-qualified" not in line:
            continue
        code_points = [int(c, 16) for c in line.split(";")[0].split() if c != "FE0F"]
        name = re.sub(r"^.*? E[0-9.]+ ", "", line.split("#", 1)[1].strip())
        if len(code_points) != 1 or "skin tone" in name:
            continue
        senses = [(o, wordnet.synset(o)) for o in wordnet.senses(name)]
        fitting = [(GROUPS[group].index(s.lexfile), i, o, s) for i, (o, s) in enumerate(senses)
                   if s.lexfile in GROUPS[group] and s.hypernyms]
        if not fitting:
            continue
        _, _, offset, sense = min(fitting)
        if offset in used:
            continue
        used.add(offset)
        gloss = " ".join(_definition(sense.gloss).split()[:MAX_GLOSS_WORDS]).rstrip(" ;,")
        short = gloss.split(";")[0].strip()
        kinds = [lemma for o in sense.hypernyms for lemma in wordnet.synset(o).lemmas]
        parts = [wordnet.synset(o).lemmas[0] for o in sense.parts[:MAX_PARTS]]
        things.append(Thing(
            code_points[0], name, list(dict.fromkeys([name] + sense.lemmas)), kinds, parts, gloss,
            short if len(short.split()) <= MAX_DESCRIPTION_WORDS else "",
            subgroup.replace("-", " ")))
    return things


def document(thing: Thing) -> dict:
    head = f"{thing.name[:1].upper()}{thing.name[1:]}: {thing.gloss}. It is a kind of "
    start = len(head.encode("utf-8"))
    text = head + thing.kinds[0]
    spans = {"kind": [[start, len(text.encode("utf-8"))]]}
    if thing.parts:
        text += ". Its parts include " + ", ".join(thing.parts)
    text += f". Group: {thing.group}."
    return {"id": thing.document_id, "title": thing.name, "text": text,
            "image": f"images/openmoji/{thing.file}", "kind": "thing",
            "facts": {"kind": [thing.kinds[0]]}, "spans": spans}


def examples(thing: Thing) -> list[dict]:
    answers = {"name": thing.names, "kind": thing.kinds,
               "description": [thing.description] if thing.description else []}
    return [{"id": f"{thing.document_id}/{kind}/{wording}/noto", "question": question,
             "answers": answers[kind], "image": f"images/noto/{thing.file}",
             "documents": [thing.document_id], "type": kind, "entity": thing.document_id,
             "style": "noto"}
            for kind, questions in QUESTIONS.items() if answers[kind]
            for wording, question in enumerate(questions, start=1)]
