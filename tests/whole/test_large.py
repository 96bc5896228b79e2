"""The program that measures a large queue, at a size for every run: the program works; speed does not count."""

import subprocess
import sys

from celery_affinity.server.scripts.assembling import ARROWS

from ..support.processes import ROOT


def test_every_script_and_report_is_measured():
    run = subprocess.run(
        [sys.executable, "-m", "tests.whole.large", "--jobs", "2000", "--rounds", "21"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not run.stderr
    measured = {line.split("|")[1].strip().strip("`") for line in run.stdout.splitlines() if line.startswith("|")}
    assert measured >= {*ARROWS, "report: explain", "report: pending", "report: status"}
