"""Judge a mutant: by random steps, by the tests of its Lua file, then by all other short server tests."""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lua.library import assemble, library_of

from ...support.processes import ROOT
from ..wire import walked
from .operators import Mutant
from .replay import Replay, Run

LUA = Path("celery_affinity", "lua")
JUDGES = Path(__file__).with_name("judges.toml")

#: Maximum seconds per test, which then fails, and for all tests, after which the mutant has no verdict.
_TEST_S, _TESTS_S = 60, 600

#: Maximum memory in bytes of a server or a test process: a mutant with an endless loop may allocate everything.
_MEMORY_BYTES = 4 << 30

_OPTIONS = f"-x -q -k valkey --tb=no -rfE -p no:cacheprovider -p pytest_timeout -o timeout={_TEST_S}".split()

#: Tests that run if nothing else notices a mutant: the short server tests.
_LONG = ("spoiled", "costs", "costs_of_rules", "instructions")
OTHERS = ("tests/scheduler", *(f"--ignore=tests/scheduler/test_{name}.py" for name in _LONG))

_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)

KILLED, SURVIVED, UNLOADED, UNJUDGED = "killed", "survived", "does not load", "not judged"


class Verdict(NamedTuple):
    """The outcome of a mutant. *by*: the step or the test that noticed it."""

    verdict: str
    by: str = ""


class Tree:
    """A copy of the source tree in *directory*, whose tests may use other Lua files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for part in ("celery_affinity", "tests", "docs", "examples"):  # some tests read docs pages and run examples
            shutil.copytree(ROOT / part, directory / part)
        shutil.copy(ROOT / "pyproject.toml", directory)

    def failing(self, tests: Sequence[str], instead: Mapping[str, str]) -> str:
        """Return the first of *tests* that fails with the replaced Lua files of *instead*, or ""."""
        if not tests:
            return ""
        whole = {self.directory / LUA / f"{file}.lua": text for file, text in texts().items() if file in instead}
        try:
            for file, text in instead.items():
                (self.directory / LUA / f"{file}.lua").write_text(text)
            tried = self._run(tests)
        finally:
            for path, text in whole.items():
                path.write_text(text)
        if tried.returncode == 0:
            return ""
        if tried.returncode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"{tests} cannot run:\n{tried.stdout}{tried.stderr}")
        found = _FAILED_TEST.search(tried.stdout)
        return found[1] if found else f"{tests[0]} ends with {tried.returncode}"

    def _run(self, tests: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.directory),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # of several dozen plugins these tests need only one
        }
        return subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, *tests],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TESTS_S,
            check=False,
        )


def verdict_on(mutant: Mutant, replay: Replay, tree: Tree, others: Sequence[str] = OTHERS) -> Verdict:
    """Return the verdict on *mutant* by *replay*, by its file's tests in *tree*, and by the *others* there."""
    source = mutant.applied(texts()[mutant.file])
    text = assemble({mutant.file: source})
    if not _loads(text, replay):
        return Verdict(UNLOADED)
    instead = {mutant.file: source}
    found = _step(text, replay) or tree.failing(judges_of(mutant.file), instead) or tree.failing(others, instead)
    return Verdict(KILLED, found) if found else Verdict(SURVIVED)


def _loads(text: str, replay: Replay) -> bool:
    """Return True if the library can be loaded. Any test would notice the others, so they are not counted."""
    with replay.client() as client:
        client.flushall()
        client.function_flush()
        try:
            client.function_load(library_of(text).functions)
        except redis.ResponseError:
            return False
    return True


def _step(text: str, replay: Replay) -> str:
    try:
        library = walked(text)
    except AssertionError:  # a mutant of code that the test library replaces itself
        return ""
    return replay.notices(library)


# -- selection of tests


@cache
def texts() -> dict[str, str]:
    """Return the text of each Lua file by its path without a suffix."""
    folder = ROOT / LUA
    paths = sorted(folder.rglob("*.lua"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path.read_text() for path in paths}


@cache
def judges() -> dict[str, list[str]]:
    """Return the Lua files of each listed test."""
    found: dict[str, list[str]] = tomllib.loads(JUDGES.read_text())["judges"]
    return found


def judges_of(file: str) -> list[str]:
    """Return the listed tests for mutants of *file*."""
    return [test for test, files in judges().items() if file in files]


# -- in a separate process

_judges: tuple[Replay, Tree, Sequence[str]]


def begin(directory: str, runs: list[Run], others: Sequence[str]) -> None:
    """Prepare this process to judge mutants one after another."""
    global _judges
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    server = EmbeddedServer()
    server.start()  # it ends with this process
    _judges = Replay(server, runs), Tree(Path(tempfile.mkdtemp(dir=directory))), others


def judged(mutant: Mutant) -> tuple[Verdict, float]:
    """Return the verdict on *mutant*, and the seconds it took. An error of a test must not end a run of hours."""
    began_s = monotonic()
    try:
        verdict = verdict_on(mutant, *_judges)
    except Exception as error:  # the next run judges it again
        verdict = Verdict(UNJUDGED, repr(error))
    return verdict, monotonic() - began_s
