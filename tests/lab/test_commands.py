"""The commands `celery affinity lab replay`, `whatif`, `optimum` and `advise`, run in this process."""

import json
import subprocess
import sys

import pytest

from celery_affinity.lab.trace import Trace
from celery_affinity.lab.trace_file import write_trace
from examples.made_up_trace import make_trace

from ..support.lab_scenarios import S, traced, worker
from . import traces


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    write_trace(make_trace(150), path)
    return path


def test_replay_prints_fidelity_and_waits(lab, recorded):
    code, text = lab("replay", recorded)
    assert code == 0
    assert text.startswith("fidelity 100.00%: 150 of 150 claims in the recorded order on the recorded types")
    assert "p95 recorded  p95 replayed" in text
    code, text = lab("replay", recorded, "--json", "--engine", "judge")
    found = json.loads(text)
    assert (code, found["engine"], found["fidelity"], found["first_difference"]) == (0, "judge", 1.0, None)
    assert found["recorded"] == found["replayed"]


def test_replay_prints_the_first_different_claim(lab, tmp_path):
    jobs = [
        traced(claimed_s=0, ended_s=5),
        traced(since_s=1, claimed_s=5, ended_s=6),
        traced(since_s=2, priority=8, on_demand=True, claimed_s=6, ended_s=7),
    ]
    path = tmp_path / "trace.jsonl"
    write_trace(Trace(9 * S, (worker("w"),), tuple(jobs)), path)
    lines = lab("replay", path)[1].splitlines()
    assert lines[1] == "first difference: claim 2 of [pdf], at 5.000 s, on w"
    assert lines[2] == (
        "  replayed: job 2 (pdf, on demand, priority 8), chosen after 3.0 s, "
        "score 12,932.0 = priority 8,192.0 + age 48.0 + rarity 500.0 + on demand 4,192.0"
    )
    assert lines[3].startswith("  recorded: job 1 (pdf, queued, priority 5), waiting after 4.0 s, score 5,684.0 = ")


def test_replay_prints_jobs_waiting_at_the_records_end(lab, tmp_path):
    jobs = [traced(claimed_s=0), *(traced(since_s=1) for _ in range(3))]
    path = tmp_path / "trace.jsonl"
    write_trace(Trace(9 * S, (worker("w"),), tuple(jobs)), path)
    text = lab("replay", path)[1]
    assert "jobs still waiting as the record ended: 3 recorded, 3 replayed; waits are of the jobs claimed in" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("pdf")] == ["3"]
    found = json.loads(lab("replay", path, "--json")[1])
    assert (found["still_waiting"], found["still_waiting_replayed"]) == (3, 3)
    assert found["recorded"]["all"] == found["replayed"]["all"]


def test_replay_without_claims_reports_unknown_fidelity(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(Trace(9 * S, (), (traced(),)), path)
    assert lab("replay", path)[1].startswith("fidelity unknown: the record has no claims (engine: twin)\n")


def test_whatif_prints_and_plots_both_schedules(lab, recorded, tmp_path):
    plot = tmp_path / "waits.svg"
    code, text = lab("whatif", recorded, "--add", "[ocr]:2", "--priority", "pdf=9", "--rate", "xls=0.5", "--plot", plot)
    assert code == 0
    assert "who gains" in text
    assert "[ocr]          -" in text
    assert plot.read_text().startswith("<svg ")


def test_whatif_json_contains_waits_and_gains(lab, recorded):
    found = json.loads(lab("whatif", recorded, "--set", "limits.type:pdf=0", "--json")[1])
    assert found["after"]["types"]["pdf"]["jobs"] == 0
    assert found["gains"][0].keys() >= {"type", "on_demand", "tenant", "shorter", "longer", "mean_s"}
    assert "never started" in lab("whatif", recorded, "--set", "limits.type:pdf=0")[1]


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ([], 2, "give at least one of --set, --add, --remove, --rate and --priority"),
        (["--remove", "w9@h"], 1, "--remove must be the name of a worker of the trace, got: 'w9@h'"),
        (["--set", "reserve=pdf:queued=1", "--engine", "twin"], 1, "the fast engine does not know a reserve"),
        (["--add", "[pdf]:1", "--plot", "/nowhere/waits.svg"], 1, "No such file or directory: '/nowhere/waits.svg'"),
    ],
)
def test_invalid_whatif_prints_one_line(lab, recorded, words, code, complaint):
    found, text = lab("whatif", recorded, *words)
    assert (found, complaint in text) == (code, True), text


def test_file_without_a_trace_prints_one_line(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    code, text = lab("optimum", path)
    assert (code, text.count("\n")) == (1, 1)
    assert "there is no '" in text
    path.write_text("nothing\n")
    code, text = lab("replay", path)
    assert (code, text.startswith("Error: ")) == (1, True)
    write_trace(Trace(S, (worker("w"),), ()), path)
    assert "has no jobs" in lab("replay", path)[1]


def test_optimum_prints_four_waits_and_their_meaning(lab, recorded):
    code, text = lab("optimum", recorded, "--bins", 32)
    assert code == 0
    rows = [line.split("  ")[0] for line in text.splitlines()]
    assert rows[0] == "150 jobs"
    assert rows[2:6] == ["schedule", "recorded", "replayed", "upper bound: the best schedule found"]
    assert rows[6].startswith("lower bound: ")
    bounds, sentence = text.splitlines()[-2:]
    assert bounds.startswith("Lower bounds: prices in 32 steps of ")
    assert sentence.startswith("The replayed schedule waits between ")


def test_optimum_json_contains_ordered_bounds(lab, recorded):
    code, text = lab("optimum", recorded, "--bins", 32, "--json", "--weights", "priority")
    found = json.loads(text)
    assert code == 0
    assert 0 <= found["lower_s"] <= found["upper_s"] <= found["replayed_s"]
    assert found["jobs"] == 150


def test_optimum_without_scipy_names_the_extra(lab, recorded, monkeypatch):
    monkeypatch.setitem(sys.modules, "celery_affinity.lab.optimum", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    code, text = lab("optimum", recorded)
    assert (code, text.count("\n")) == (1, 1)
    assert "pip install 'celery-affinity[lab] @ " in text


def test_other_lab_commands_import_without_numpy():
    blocked = "import sys; sys.modules.update(numpy=None, scipy=None); import celery_affinity.cli.lab"
    subprocess.run([sys.executable, "-c", blocked], check=True)


def test_optimum_without_claimable_jobs_prints_one_line(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(traces.trace(traces.workers(("pdf", 1)), [(traces.job("xls", 0), S)]), path)
    message = "Error: no job of the trace is claimed by a worker of it, so there is no wait to compare\n"
    assert lab("optimum", path) == (1, message)


def test_advise_prints_slots_waits_and_their_range(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(traces.trace(traces.workers(("pdf", 4)), [(traces.job("pdf", S), 10 * S) for _ in range(24)]), path)
    code, text = lab("advise", path, "--target", "pdf:p99<15s")
    assert code == 0
    first, mean, days, _, number = text.splitlines()
    assert first.startswith("8 more [pdf] slots: 50.0 s -> 10.0 s (")
    assert mean == "  mean wait of all jobs: 25.0 s -> 5.0 s"
    assert days.endswith(" of 10 days drawn again reach the targets")
    assert number.endswith(" simulations)")


def test_advise_names_the_limit_that_ended_the_search(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    jobs = [(traces.job("pdf", S), 10 * S), (traces.job("xls", S), 10 * S)] * 99
    write_trace(traces.trace(traces.workers(("pdf", 4), ("xls", 4)), jobs), path)
    arguments = "advise", path, "--target", "pdf:p99<11s", "--target", "xls:p99<11s"
    last = lab(*arguments, "--simulations", "30")[1].splitlines()[-1]
    limit = "the limit of 30, 10 of them for days drawn again, ended the search"
    assert last == f"(20 simulations: {limit}. More --simulations may find better advice)"
    assert lab(*arguments)[1].splitlines()[-1].endswith(" simulations)")


def test_advise_prints_reached_target_and_fewer_slots(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(traces.trace(traces.workers(("pdf", 20)), [(traces.job("pdf", S), 10 * S) for _ in range(24)]), path)
    lines = lab("advise", path, "--target", "pdf:p99<15s")[1].splitlines()
    assert lines[:2] == ["reached already: pdf:p99<15s is 10.0 s", "fewer would do:"]
    assert lines[2].startswith("8 fewer [pdf] slots: 10.0 s -> 10.0 s")


def test_advise_json_contains_the_same_facts(lab, recorded):
    code, text = lab("advise", recorded, "--target", "pdf:p95<1h", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["already"] is True
    assert found["now"][0]["target"] == "pdf:p95<1h"


@pytest.mark.parametrize(("target", "complaint"), [("pdf<5s", "got: 'pdf<5s'"), ("doc:p5<1s", "jobs of ocr, pdf, xls")])
def test_invalid_target_prints_one_line(lab, recorded, target, complaint):
    code, text = lab("advise", recorded, "--target", target)
    assert (code, text.count("\n")) == (1, 1)
    assert text.startswith("Error: --target ")
    assert complaint in text
