"""The parts of the chaos suite, and one minute of it; `make chaos` runs longer."""

import os
import subprocess
import sys
from random import Random

import pytest

from ..support.pages import RESULTS, write_block
from ..support.processes import ROOT, run_module
from .chaos import results
from .chaos.campaign import Outcome
from .chaos.ledger import Ledger
from .chaos.storms import STORMS, plan


def test_ledger_returns_each_complete_line_once(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.note("refused", "a job", error="an = and a blank")
    (event,) = ledger.new()
    assert (event.subject, event.pid, event.facts) == ("a job", os.getpid(), {"error": "an = and a blank"})
    with ledger.path.open("a") as file:
        file.write("start 1.0 2 job run=1")
    assert list(ledger.new()) == []


def test_seed_determines_a_plan_with_every_storm():
    def first(seed):
        storms = plan(Random(seed))
        return [next(storms).name for _ in STORMS]

    assert first("7") == first("7")
    assert sorted(first("7")) == sorted(storm.name for storm in STORMS)


def test_results_replace_only_their_block_in_the_results_file(tmp_path):
    results_file = RESULTS / "chaos.md"
    page = tmp_path / "page.md"
    page.write_text(results_file.read_text())
    run = results.summed_up([Outcome("mixed", 1, 1, {"worker": 2}, {})], "seed-of-a-test", 60)
    write_block(page, results.BLOCK, results.as_markdown(run))
    before, after = results_file.read_text(), page.read_text()
    assert "seed-of-a-test" in after
    assert after.partition("<!--")[0] == before.partition("<!--")[0]
    assert after.rpartition("chaos: end -->")[2] == before.rpartition("chaos: end -->")[2]


def test_worker_writes_unstored_result_to_the_ledger(tmp_path):
    env = {"LEDGER": str(tmp_path / "ledger"), "RESULT_URL": "redis://127.0.0.1:1"}
    store = "from tests.whole.chaos.app import app; app.backend.store_result('task', None, 'SUCCESS')"
    ended = subprocess.run(
        [sys.executable, "-c", store], env={**os.environ, **env}, cwd=ROOT, capture_output=True, text=True
    )
    assert "ConnectionError" in ended.stderr
    (noted,) = Ledger(tmp_path / "ledger").new()
    assert (noted.kind, noted.subject, noted.facts["state"]) == ("unstored", "task", "SUCCESS")


@pytest.mark.timeout(240)
def test_one_minute_of_chaos_has_no_violations(tmp_path):
    words = ["--seconds", 60, "--storm-seconds", 8, "--rate", 120, "--output", tmp_path]
    run_module("tests.whole.chaos", *words, timeout=220)
