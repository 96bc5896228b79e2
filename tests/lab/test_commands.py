"""`celery affinity lab replay` and `whatif`, run as a user runs them."""

import json

import pytest

from celery_affinity.lab import synthetic_traces
from celery_affinity.lab.trace import Trace
from celery_affinity.lab.trace_file import write_trace

from ..support.lab_scenarios import S, traced, worker


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    write_trace(synthetic_traces.make_trace(300), path)
    return path


def test_a_replay_prints_fidelity_and_waits(lab, trace):
    code, text = lab("replay", trace)
    assert code == 0
    assert text.startswith("fidelity 100.00%: 300 of 300 claims in the recorded order on the recorded types")
    assert "p95 recorded  p95 replayed" in text


def test_a_replay_as_json_has_the_same_facts(lab, trace):
    code, text = lab("replay", trace, "--json", "--engine", "judge")
    found = json.loads(text)
    assert (code, found["engine"], found["fidelity"], found["first_difference"]) == (0, "judge", 1.0, None)
    assert found["recorded"] == found["replayed"]


def test_a_replay_shows_the_first_claim_that_differs(lab, tmp_path):
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


def test_a_replay_says_how_many_jobs_waited_as_the_record_ended(lab, tmp_path):
    jobs = [traced(claimed_s=0), *(traced(since_s=1) for _ in range(3))]
    path = tmp_path / "trace.jsonl"
    write_trace(Trace(9 * S, (worker("w"),), tuple(jobs)), path)
    text = lab("replay", path)[1]
    assert "jobs still waiting as the record ended: 3 recorded, 3 replayed; waits are of the jobs claimed in" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("pdf")] == ["3"]
    found = json.loads(lab("replay", path, "--json")[1])
    assert (found["still_waiting"], found["still_waiting_replayed"]) == (3, 3)
    assert found["recorded"]["all"] == found["replayed"]["all"]


def test_a_replay_of_a_record_without_claims_says_that_there_is_nothing_to_compare(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(Trace(9 * S, (), (traced(),)), path)
    assert lab("replay", path)[1].startswith("fidelity unknown: the record has no claims (engine: twin)\n")


def test_a_what_if_prints_both_and_plots_them(lab, trace, tmp_path):
    plot = tmp_path / "waits.svg"
    code, text = lab("whatif", trace, "--add", "[ocr]:2", "--priority", "pdf=9", "--rate", "xls=0.5", "--plot", plot)
    assert code == 0
    assert "who gains" in text
    assert "[ocr]          -" in text
    assert plot.read_text().startswith("<svg ")


def test_a_what_if_as_json(lab, trace):
    found = json.loads(lab("whatif", trace, "--set", "limits.type:pdf=0", "--json")[1])
    assert found["after"]["types"]["pdf"]["jobs"] == 0
    assert found["gains"][0].keys() >= {"type", "on_demand", "tenant", "shorter", "longer", "mean_s"}
    assert "never started" in lab("whatif", trace, "--set", "limits.type:pdf=0")[1]


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ([], 2, "give some of --set, --add, --remove, --rate and --priority"),
        (["--remove", "w9@h"], 1, "--remove must be the name of a worker of the trace, got: 'w9@h'"),
        (["--set", "reserve=pdf:queued=1", "--engine", "twin"], 1, "the fast engine does not know a reserve"),
        (["--add", "[pdf]:1", "--plot", "/nowhere/waits.svg"], 1, "No such file or directory: '/nowhere/waits.svg'"),
    ],
)
def test_what_cannot_be_asked_is_a_line(lab, trace, words, code, complaint):
    found, text = lab("whatif", trace, *words)
    assert (found, complaint in text) == (code, True), text


def test_a_file_without_a_trace_is_a_line(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("nothing\n")
    code, text = lab("replay", path)
    assert (code, text.startswith("Error: ")) == (1, True)
    write_trace(Trace(S, (worker("w"),), ()), path)
    assert "has no jobs" in lab("replay", path)[1]
