"""`celery affinity lab optimum` and `advise`, run as a user runs them."""

import json
import sys

import pytest

from celery_affinity.lab import synthetic_traces
from celery_affinity.lab.trace_file import write_trace

from .traces import S, job, trace, workers


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    write_trace(synthetic_traces.make_trace(150), path)
    return path


def test_optimum_prints_four_waits_and_what_they_mean(lab, made):
    code, text = lab("optimum", made, "--bins", 32)
    assert code == 0
    rows = [line.split("  ")[0] for line in text.splitlines()]
    assert rows[0] == "150 jobs"
    assert rows[2:6] == ["schedule", "recorded", "replayed", "upper bound: the best schedule found"]
    assert rows[6].startswith("lower bound: ")
    bounds, sentence = text.splitlines()[-2:]
    assert bounds.startswith("Lower bounds: prices in 32 steps of ")
    assert sentence.startswith("The replayed schedule waits between ")


def test_optimum_as_json_has_the_bounds_in_their_order(lab, made):
    code, text = lab("optimum", made, "--bins", 32, "--json", "--weights", "priority")
    found = json.loads(text)
    assert code == 0
    assert 0 <= found["lower_s"] <= found["upper_s"] <= found["replayed_s"]
    assert found["jobs"] == 150


def test_a_trace_that_is_not_there_is_named(lab, tmp_path):
    code, text = lab("optimum", tmp_path / "none.jsonl")
    assert (code, text.count("\n")) == (1, 1)
    assert "there is no '" in text


def test_optimum_without_its_packages_says_what_to_install(lab, made, monkeypatch):
    monkeypatch.setitem(sys.modules, "celery_affinity.lab.optimum", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    code, text = lab("optimum", made)
    assert (code, text.count("\n")) == (1, 1)
    assert "pip install 'celery-affinity[lab] @ " in text


def test_optimum_of_jobs_that_nobody_serves_is_refused_in_a_line(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(trace(workers(("pdf", 1)), [(job("xls", 0), S)]), path)
    assert lab("optimum", path) == (
        1,
        "Error: no job of the trace is claimed by a worker of it, so there is no wait to compare\n",
    )


def test_advise_prints_slots_waits_and_their_range(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(trace(workers(("pdf", 4)), [(job("pdf", S), 10 * S) for _ in range(24)]), path)
    code, text = lab("advise", path, "--target", "pdf:p99<15s")
    assert code == 0
    first, mean, days, _, number = text.splitlines()
    assert first.startswith("8 more [pdf] slots: 50.0 s -> 10.0 s (")
    assert mean == "  mean wait of all jobs: 25.0 s -> 5.0 s"
    assert days.endswith(" of 10 days drawn again reach the targets")
    assert number.endswith(" simulations)")


def test_advise_says_which_limit_ended_the_search_and_how_to_raise_it(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(trace(workers(("pdf", 4), ("xls", 4)), [(job("pdf", S), 10 * S), (job("xls", S), 10 * S)] * 99), path)
    arguments = "advise", path, "--target", "pdf:p99<11s", "--target", "xls:p99<11s"
    last = lab(*arguments, "--simulations", "30")[1].splitlines()[-1]
    ended = (
        "the limit of 30, 10 of them for days drawn again, ended the search. More --simulations may find better advice"
    )
    assert last == f"(20 simulations: {ended})"
    assert lab(*arguments)[1].splitlines()[-1].endswith(" simulations)")


def test_advise_says_that_a_target_is_reached_and_that_fewer_slots_would_do(lab, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(trace(workers(("pdf", 20)), [(job("pdf", S), 10 * S) for _ in range(24)]), path)
    lines = lab("advise", path, "--target", "pdf:p99<15s")[1].splitlines()
    assert lines[:2] == ["reached already: pdf:p99<15s is 10.0 s", "fewer would do:"]
    assert lines[2].startswith("8 fewer [pdf] slots: 10.0 s -> 10.0 s")


def test_advise_as_json_has_the_same_facts(lab, made):
    code, text = lab("advise", made, "--target", "pdf:p95<1h", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["already"] is True
    assert found["now"][0]["target"] == "pdf:p95<1h"


@pytest.mark.parametrize(("target", "said"), [("pdf<5s", "got: 'pdf<5s'"), ("doc:p5<1s", "jobs of ocr, pdf, xls")])
def test_a_bad_target_ends_the_command_with_a_line(lab, made, target, said):
    code, text = lab("advise", made, "--target", target)
    assert (code, text.count("\n")) == (1, 1)
    assert text.startswith("Error: --target ")
    assert said in text
