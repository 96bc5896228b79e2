"""A trace of a million jobs is replayed in less than 1 GiB. About three minutes of CPU time."""

import os
import subprocess
import sys

import pytest

from celery_affinity.lab import trace_file
from examples.made_up_trace import make_trace

JOBS, MAX_MIB = 1_000_000, 1_024


@pytest.mark.slow
def test_million_jobs_are_replayed_within_one_gibibyte(tmp_path):
    path = tmp_path / "trace.jsonl"
    trace_file.write_trace(make_trace(JOBS), path)
    command = [sys.executable, "-m", "celery", "affinity", "lab", "replay", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as replay:
        output = replay.stdout.read()
        _, status, used = os.wait4(replay.pid, 0)
        replay.returncode = os.waitstatus_to_exitcode(status)
    assert replay.returncode == 0
    assert f"{JOBS:,} of {JOBS:,} claims" in output
    assert used.ru_maxrss / 1_024 < MAX_MIB, "KiB on Linux"
