"""Installing: there is no release yet, so everything that says how to install names the repository."""

import re
import shlex
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement

from celery_affinity.versions import SOURCE, install_with

from ..support.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
_COMMAND = re.compile(r"pip install [^`\n]*celery[-_]affinity[^`\n]*")


def texts():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in {".md", ".py", ".toml", ".yml", ".html", ".js", ".txt", ""} and path.is_file():
            yield name, path.read_text()


def test_whatever_says_how_to_install_names_the_repository():
    found = [(name, each) for name, text in texts() for each in _COMMAND.findall(text) if "{" not in each]
    found = [(name, each) for name, each in found if not name.startswith("tests/")]
    assert len(found) >= 7
    for name, command in found:
        words = shlex.split(command)
        (wanted,) = [Requirement(each) for each in words[2:] if each.startswith("celery")]
        assert (wanted.name, wanted.url) == ("celery-affinity", SOURCE), f"{name}: {command}"
        assert wanted.extras <= EXTRAS, f"{name}: {command}"


def test_no_text_asks_a_package_index_for_an_extra():
    for name, text in texts():
        for each in re.findall(r"celery-affinity\[[a-z,]+\](?! @ )", text):
            assert name == "pyproject.toml" or name.startswith("tests/"), f"{name}: {each}"


def test_the_repository_is_that_of_the_project():
    assert all(url.startswith(SOURCE.removeprefix("git+") + "/") for url in PROJECT["urls"].values())
    wanted = Requirement(shlex.split(install_with("web"))[-1])
    assert (wanted.name, wanted.extras, wanted.url) == ("celery-affinity", {"web"}, SOURCE)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_first_pages_say_that_there_is_no_release(page):
    assert "There is no release on a package index yet" in (ROOT / page).read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/upgrade.md"])
def test_the_pages_name_the_versions_of_celery_that_can_be_installed(page):
    (celery,) = [each for each in map(Requirement, PROJECT["dependencies"]) if each.name == "celery"]
    first, last = re.search(r"Celery (5\.\d+) to (5\.\d+)", (ROOT / page).read_text()).groups()
    assert celery.specifier == Requirement(f"celery>={first},<5.{int(last.removeprefix('5.')) + 1}").specifier
