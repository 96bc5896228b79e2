import subprocess
import sys

import pytest

from ..support.processes import ROOT


@pytest.mark.slow  # some 12 s: a server, a web process and a producer are started
def test_polling_program_measures_waiting_workers_and_runs_jobs():
    command = ["-m", "tests.http_workers.polling", "--workers", "60", "--seconds", "1", "--jobs", "20"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[::2]] == ["60 workers wait", "20 jobs"]
