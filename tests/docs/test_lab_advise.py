"""The pages on advice and on the optimum are followed: their commands print what they show."""

import os
import re
import subprocess
import sys

import pytest

from ..support.pages import blocks, missing_lines
from ..support.processes import ROOT

ADVISE, OPTIMUM = "docs/how-to/lab-advise.md", "docs/how-to/lab-optimum.md"


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

    def run(page, block):
        (line,) = blocks(page)[block].splitlines()
        words = line.removeprefix("$ ")
        return subprocess.run(
            ["sh", "-c", words], cwd=folder, env=env, capture_output=True, text=True, check=True
        ).stdout

    run(ADVISE, "make")
    return run


@pytest.mark.parametrize("command", ["ocr", "both", "fewer"])
def test_the_advice_is_what_the_page_shows(run, command):
    assert missing_lines(blocks(ADVISE)[f"{command}-advice"], run(ADVISE, command)) == []


def test_the_bounds_are_what_the_page_shows_but_for_rounding(run):
    """The solver of another release may take another way to prices that are as good."""
    shown, printed = blocks(OPTIMUM)["waits"], run(OPTIMUM, "optimum")
    number = re.compile(r"\d+(?:[.,]\d+)*")
    assert number.sub("N", printed.strip()).split() == number.sub("N", shown.strip()).split()
    for ours, theirs in zip(number.findall(shown), number.findall(printed), strict=True):
        assert float(ours.replace(",", "")) == pytest.approx(float(theirs.replace(",", "")), rel=0.05)
