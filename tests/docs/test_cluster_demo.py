"""`make cluster-demo`: the pipeline on six nodes, run as a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_demo_loses_no_chain_when_the_primary_is_killed(tmp_path):
    command = [sys.executable, "-m", "examples.cluster", "--out", str(tmp_path), "--seconds", "8"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ +dead\n", done.stdout)
    assert done.stdout.count("stores all jobs") == 2
    assert "Unfinished chains: 0. Jobs that ran twice: 0." in done.stdout
