"""What is in the packages of a release, and what must not be: each function yields what is wrong."""

import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from email import message_from_string
from pathlib import Path

#: What the source package has beside the library.
BESIDE = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "SECURITY.md", "pyproject.toml", ".gitignore"}
LICENSE_FILES = ["LICENSE", "celery_affinity/web/page/files/vendor/uPlot.LICENSE"]

#: The beginning of a path of a machine that builds packages.
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
    """Return the library's own files in the folder *source*."""
    package = source / "celery_affinity"
    found = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(source).as_posix(): path.read_bytes() for path in found}


def wrong_files(found: Mapping[str, bytes], wanted: Mapping[str, bytes], *, is_wheel: bool) -> Iterator[str]:
    """Yield what *found*, the files of a package, has too few, too many or otherwise than the tree, *wanted*."""
    library = {name: text for name, text in found.items() if name.startswith("celery_affinity/")}
    for name in sorted(wanted.keys() - library.keys()):
        yield f"{name} is missing"
    for name in sorted(library.keys() - wanted.keys()):
        yield f"{name} is not in the tree"
    for name in sorted(name for name in wanted.keys() & library.keys() if wanted[name] != library[name]):
        yield f"{name} differs from the tree"
    for name in sorted(found.keys() - library.keys()):
        if not (".dist-info/" in name if is_wheel else name in BESIDE):
            yield f"{name} does not belong there"
    for name, text in sorted(found.items()):
        if machine := _MACHINE.search(text):
            yield f"{name} names a path of a machine: {machine[0].decode()}"


def wrong_metadata(text: str, version: str, known_classifiers: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong in the metadata of a package, with the description that the package index shows."""
    told = message_from_string(text)
    for name, wanted in (
        ("Version", [version]),
        ("License-Expression", ["BSD-3-Clause AND MIT"]),
        ("License-File", LICENSE_FILES),
        ("Description-Content-Type", ["text/markdown"]),
    ):
        if told.get_all(name, []) != wanted:
            yield f"{name} is {told.get_all(name, [])}, not {wanted}"
    for each in sorted(set(told.get_all("Classifier", [])) - set(known_classifiers)):
        yield f"the package index knows no classifier {each!r}"
    for each in told.get_all("Requires-Dist", []):
        if " @ " in each:
            yield f"the package index refuses a requirement with an address: {each}"
    yield from relative_links(told.get_payload())


def relative_links(description: str) -> Iterator[str]:
    """Yield the links of *description* that lead nowhere outside of the repository."""
    for each in _RELATIVE.findall(description):
        yield f"a relative link leads nowhere on the index: {each}"
