"""Checks of the files and the metadata in the packages of a release; the checks yield mistakes."""

import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from email import message_from_string
from pathlib import Path

#: Files of the source package outside the library.
OTHER_FILES = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "SECURITY.md", "pyproject.toml", ".gitignore"}
LICENSE_FILES = ["LICENSE", "celery_affinity/web/page/files/vendor/uPlot.LICENSE"]

#: Start of a path on a build machine.
_MACHINE = re.compile(rb"(?<![\w.$}])/(?:root|home|Users|work|tmp)/\w+")
_RELATIVE = re.compile(r"\]\((?!https://|#)[^)]*\)|(?:src|srcset)=\"(?!https://)[^\"]*\"")


def files(package: Path) -> dict[str, bytes]:
    """Return the files of a wheel, or of a source package without its outermost folder."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(package) as archive:
        members = [each for each in archive.getmembers() if each.isfile()]
        return {each.name.partition("/")[2]: archive.extractfile(each).read() for each in members}


def tracked(source: Path) -> dict[str, bytes]:
    """Return the files of the library in the folder *source*."""
    package = source / "celery_affinity"
    found = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(source).as_posix(): path.read_bytes() for path in found}


def wrong_files(found: Mapping[str, bytes], wanted: Mapping[str, bytes], *, is_wheel: bool) -> Iterator[str]:
    """Yield missing, foreign and changed files among *found*, the files of a package; *wanted*: those of the tree."""
    library = {name: text for name, text in found.items() if name.startswith("celery_affinity/")}
    for name in sorted(wanted.keys() - library.keys()):
        yield f"{name} is missing"
    for name in sorted(library.keys() - wanted.keys()):
        yield f"{name} is not in the tree"
    for name in sorted(name for name in wanted.keys() & library.keys() if wanted[name] != library[name]):
        yield f"{name} differs from the tree"
    for name in sorted(found.keys() - library.keys()):
        if not (".dist-info/" in name if is_wheel else name in OTHER_FILES):
            yield f"{name} does not belong there"
    for name, text in sorted(found.items()):
        if machine := _MACHINE.search(text):
            yield f"{name} names a path of a machine: {machine[0].decode()}"


def wrong_metadata(text: str, version: str, known_classifiers: Iterable[str]) -> Iterator[str]:
    """Yield mistakes in the metadata of a package and in the description for the package index."""
    metadata = message_from_string(text)
    for name, wanted in (
        ("Version", [version]),
        ("License-Expression", ["BSD-3-Clause AND MIT"]),
        ("License-File", LICENSE_FILES),
        ("Description-Content-Type", ["text/markdown"]),
    ):
        if metadata.get_all(name, []) != wanted:
            yield f"{name} is {metadata.get_all(name, [])}, not {wanted}"
    for each in sorted(set(metadata.get_all("Classifier", [])) - set(known_classifiers)):
        yield f"the package index knows no classifier {each!r}"
    for each in metadata.get_all("Requires-Dist", []):
        if " @ " in each:
            yield f"the package index refuses a requirement with an address: {each}"
    yield from relative_links(metadata.get_payload())


def relative_links(description: str) -> Iterator[str]:
    """Yield the links in *description* that do not work outside the repository."""
    for each in _RELATIVE.findall(description):
        yield f"a relative link leads nowhere on the index: {each}"
