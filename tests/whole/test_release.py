"""The checks of a release, and the links of the README."""

import os
import re
import subprocess
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from ..support.processes import ROOT
from .release import building, contents

OURS = "https://github.com/celery-affinity/celery_affinity/"
RAW = "https://raw.githubusercontent.com/celery-affinity/celery_affinity/main/"

METADATA = """\
Metadata-Version: 2.4
Version: 1.0.0
License-Expression: BSD-3-Clause AND MIT
License-File: LICENSE
License-File: celery_affinity/web/page/files/vendor/uPlot.LICENSE
Classifier: Framework :: Celery
Requires-Dist: celery<5.8,>=5.5
Description-Content-Type: text/markdown

# A [link](https://example.org), and [one](#here) within
"""

TREE = {"celery_affinity/__init__.py": b"", "celery_affinity/lua/functions/claim.lua": b"-- claim"}


def test_readme_links_work_outside_the_repository():
    text = (ROOT / "README.md").read_text()
    assert list(contents.relative_links(text)) == []
    linked = re.findall(rf"{OURS}(blob|tree)/main/([^)#\s]*)", text)
    assert len(linked) > 25
    for kind, path in linked:
        assert (ROOT / path).is_dir() is (kind == "tree"), path
        assert (ROOT / path).exists(), path
    pictures = re.findall(rf"{RAW}([^\"\s]+)", text)
    assert len(pictures) == 2
    assert [each for each in pictures if not (ROOT / each).is_file()] == []


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({**TREE, "x-1.0.dist-info/METADATA": b""}, []),
        ({"celery_affinity/__init__.py": b""}, ["celery_affinity/lua/functions/claim.lua is missing"]),
        ({**TREE, "celery_affinity/left.py": b""}, ["celery_affinity/left.py is not in the tree"]),
        ({**TREE, "celery_affinity/__init__.py": b"1"}, ["celery_affinity/__init__.py differs from the tree"]),
        ({**TREE, "tests/test_rules.py": b""}, ["tests/test_rules.py does not belong there"]),
        (
            {**TREE, "x-1.0.dist-info/RECORD": b"/home/ann/dist"},
            ["x-1.0.dist-info/RECORD names a path of a machine: /home/ann"],
        ),
    ],
)
def test_wheel_check_finds_missing_and_foreign_files(found, wrong):
    assert list(contents.wrong_files(found, TREE, is_wheel=True)) == wrong


@pytest.mark.parametrize(
    ("line", "instead", "wrong"),
    [
        ("Version: 1.0.0", "Version: 1.0.0", None),
        ("Version: 1.0.0", "Version: 1.0.1", "Version is"),
        ("BSD-3-Clause AND MIT", "BSD-3-Clause", "License-Expression is"),
        ("License-File: LICENSE\n", "", "License-File is"),
        ("Framework :: Celery", "Framework :: Celer", "knows no classifier 'Framework :: Celer'"),
        ("celery<5.8,>=5.5", "celery @ git+https://example.org", "refuses a requirement with an address"),
        ("https://example.org", "docs/index.md", "a relative link leads nowhere"),
    ],
)
def test_metadata_check_finds_each_mistake(line, instead, wrong):
    assert line in METADATA
    text = METADATA.replace(line, instead)
    found = list(contents.wrong_metadata(text, "1.0.0", {"Framework :: Celery"}))
    assert [wrong in each for each in found] == ([] if wrong is None else [True])


def test_wheels_and_source_packages_are_readable(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel, tarfile.open(tmp_path / "a.tar.gz", "w:gz") as sdist:
        for name, text in TREE.items():
            wheel.writestr(name, text)
            member = tarfile.TarInfo(f"celery_affinity-1.0/{name}")
            member.size = len(text)
            sdist.addfile(member, BytesIO(text))
    assert contents.files(tmp_path / "a.whl") == contents.files(tmp_path / "a.tar.gz") == TREE


def test_tag_must_have_the_name_of_its_version(tmp_path, monkeypatch):
    def git(*words):
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    package = tmp_path / "celery_affinity"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "1.2.0"\n')
    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "all")
    git("tag", "v1.2.0")
    git("tag", "v1.3.0")
    monkeypatch.setattr(building, "ROOT", Path(tmp_path))
    assert building.version_at("main") == building.version_at("v1.2.0") == "1.2.0"
    with pytest.raises(building.NotReadyError, match=r"v1.3.0 has version 1.2.0: its name must be v1.2.0"):
        building.version_at("v1.3.0")


def test_last_kept_wheel_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "KEPT", tmp_path / "dist")
    assert building.last_kept() is None
    for nth, version in enumerate(("1.10.0", "1.9.1")):
        wheel = tmp_path / f"celery_affinity-{version}-py3-none-any.whl"
        wheel.write_text(version)
        kept = building.keep(wheel)
        os.utime(kept, (nth, nth))
        assert building.last_kept() == kept
        assert kept.read_text() == version
