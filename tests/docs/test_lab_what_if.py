"""The page on what-if is followed: its commands print what it shows, and its options are those that there are."""

import os
import re
import subprocess
import sys

import pytest

from celery_affinity.cli.lab.whatif import whatif

from ..support.pages import blocks, missing_lines
from ..support.processes import ROOT

PAGE = "docs/how-to/lab-what-if.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that runs the command of a block, in a folder where the trace was made."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text('from celery import Celery\napp = Celery("shop")\n')
    for name, words in {"celery": "-m celery", "python": ""}.items():
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        program.chmod(0o755)
    env = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }

    def run(block):
        (line,) = blocks(PAGE)[block].splitlines()
        words = line.removeprefix("$ ")
        return subprocess.run(
            ["sh", "-c", words], cwd=folder, env=env, capture_output=True, text=True, check=True
        ).stdout

    run("make")
    run.folder = folder
    return run


@pytest.mark.parametrize(("command", "shown"), [("replay", "replayed"), ("limit", "limited"), ("add", "added")])
def test_the_commands_print_what_the_page_shows(run, command, shown):
    assert missing_lines(blocks(PAGE)[shown], run(command)) == []


def test_the_plot_is_written(run):
    run("limit")
    assert "limits.type:pdf=6" in (run.folder / "waits.svg").read_text()


def test_the_page_names_all_options():
    text = (ROOT / PAGE).read_text()
    named = set(re.findall(r"`(--[a-z]+)", text))
    assert named >= {name for each in whatif.params for name in each.opts if name.startswith("--")} - {"--plot"}
    assert "--plot waits.svg" in text
