"""The chaos suite itself: a minute of it finds nothing (`make chaos` has more)."""

import os
import signal
import subprocess
import sys
from random import Random

import pytest

from ..support.pages import RESULTS, write_block
from ..support.processes import ROOT
from .chaos import results
from .chaos.campaign import Outcome
from .chaos.ledger import Ledger
from .chaos.storms import STORMS, plan


def test_the_ledger_reads_each_line_once_and_no_half_one(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.note("refused", "a job", error="an = and a blank")
    (event,) = ledger.new()
    assert (event.subject, event.pid, event.facts) == ("a job", os.getpid(), {"error": "an = and a blank"})
    with ledger.path.open("a") as file:
        file.write("start 1.0 2 job run=1")
    assert list(ledger.new()) == []


def test_a_seed_is_a_plan_and_every_storm_comes():
    def first(seed):
        storms = plan(Random(seed))
        return [next(storms).name for _ in STORMS]

    assert first("7") == first("7")
    assert sorted(first("7")) == sorted(storm.name for storm in STORMS)


def test_the_results_file_holds_the_results_of_a_run(tmp_path):
    results_file = RESULTS / "chaos.md"
    page = tmp_path / "page.md"
    page.write_text(results_file.read_text())
    run = results.summed_up([Outcome("mixed", 1, 1, {"worker": 2}, {})], "seed-of-a-test", 60)
    write_block(page, results.BLOCK, results.as_markdown(run))
    before, after = results_file.read_text(), page.read_text()
    assert "seed-of-a-test" in after
    assert after.partition("<!--")[0] == before.partition("<!--")[0]
    assert after.rpartition("chaos: end -->")[2] == before.rpartition("chaos: end -->")[2]


def test_a_worker_that_cannot_store_a_result_notes_that(tmp_path):
    env = {"LEDGER": str(tmp_path / "ledger"), "RESULT_URL": "redis://127.0.0.1:1"}
    store = "from tests.whole.chaos.app import app; app.backend.store_result('task', None, 'SUCCESS')"
    ended = subprocess.run(
        [sys.executable, "-c", store], env={**os.environ, **env}, cwd=ROOT, capture_output=True, text=True
    )
    assert "ConnectionError" in ended.stderr
    (noted,) = Ledger(tmp_path / "ledger").new()
    assert (noted.kind, noted.subject, noted.facts["state"]) == ("unstored", "task", "SUCCESS")


@pytest.mark.timeout(240)
def test_a_minute_of_chaos(tmp_path):
    command = [sys.executable, "-m", "tests.whole.chaos", "--seconds", "60", "--storm-seconds", "8", "--rate", "120"]
    run = subprocess.Popen(
        [*command, "--output", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = run.communicate(timeout=220)
    except BaseException:
        run.send_signal(signal.SIGTERM)  # the run ends the processes that it started
        run.communicate(timeout=15)
        raise
    assert run.returncode == 0, said
