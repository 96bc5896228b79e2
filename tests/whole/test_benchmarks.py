"""The benchmarks at a small size: each task runs once and all figures are reported; speed is not checked."""

import json
import re
import shutil
import statistics

import pytest

from benchmarks import for_users, worker_cost
from benchmarks.bench import BenchmarkError
from benchmarks.drain import check_each_ran_once
from benchmarks.goals import GOALS, at_least, at_most
from benchmarks.in_turns import rates
from benchmarks.ledger import END, START, Record
from benchmarks.load import slot_use
from benchmarks.observers import OBSERVERS
from benchmarks.options import FULL
from benchmarks.plots import Bar, bars
from benchmarks.report import Outcome, outcomes
from benchmarks.results import Named, Part, ratio
from benchmarks.run import Run, parts_of
from benchmarks.viewers import BY_ID, VIEWERS, viewers_name

from ..support.processes import run_module


def run_benchmarks(directory, *words, only=(), timeout=120):
    """Run benchmarks; return their results and the printed text."""
    chosen = [word for each in only for word in ("--only", each)]
    printed = run_module("benchmarks", *words, "--output", directory, *chosen, timeout=timeout).stdout
    return json.loads((directory / "results.json").read_text()), printed


@pytest.mark.slow  # a worker under callgrind
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts the instructions")
def test_worker_cost_counts_instructions(capfd):
    worker_cost.main(["--only", "floor solo"])
    (counted,) = re.findall(r"^solo, floor.*: ([\d,]+) instructions", capfd.readouterr().out, re.MULTILINE)
    assert int(counted.replace(",", "")) > 10_000


def test_publish_and_drain_report_figures_and_goals(tmp_path):
    only = ("stock delay", "affinity delay", "solo stock late prefetch", "solo affinity late strict")
    content, printed = run_benchmarks(tmp_path, "publish", "drain", "--rounds", 1, "--tasks", 50, only=only)
    ours, stocks = "solo, affinity, late acks, strict", "solo, stock, late acks, prefetch 1"
    assert content["parts"].keys() == {"publish", "drain"}
    assert content["parts"]["publish"]["figures"].keys() == {"stock, delay", "affinity, delay"}
    drained = content["parts"]["drain"]
    assert drained["baseline"] == {stocks: "solo, stock, late acks", ours: stocks}
    for figures in drained["figures"].values():
        assert figures.keys() == {"rate", "worker_us", "server_us", "requests", "bytes"}
        assert all(len(rounds) == 1 for rounds in figures.values())
        assert figures["rate"][0] > 0
    assert 2.5 < drained["figures"][stocks]["requests"][0] < 4, "the known requests of the stock transport"
    reached = {goal["what"]: goal for goal in content["goals"]}
    assert reached["drain, solo, one job per slot"]["verdict"] in ("ok", "missed")
    assert reached["drain, threads 8"]["verdict"] == "not measured"
    assert re.search(r"drain, solo, one job per slot .* >= 2.5 x +[\d.]+ x +(ok|missed)", printed)
    page = (tmp_path / "results.html").read_text()
    assert page.count("<svg") == 4
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "it loads nothing"


def test_observers_report_figures_and_goals(tmp_path):
    content, _ = run_benchmarks(tmp_path, "observers", "--quick", only=["20 types"])
    found = content["parts"]["observers"]["figures"]
    assert found.keys() == {f"{name}, 10,000 of 20 types" for name in OBSERVERS}
    for figures in found.values():
        assert figures.keys() == {"median_ms", "longest_ms", "command_ms", "longest_command_ms"}
        assert 0 < figures["median_ms"][0] <= figures["longest_ms"][0]
        assert 0 < figures["command_ms"][0] <= figures["longest_command_ms"][0]
    reached = {goal["what"]: goal["reached"] for goal in content["goals"]}
    for name in OBSERVERS:
        (median_ms,) = found[f"{name}, 10,000 of 20 types"]["median_ms"]
        assert reached[f"{name} at the most pending jobs, 20 types"] == median_ms
    longest_ms = max(figures["command_ms"][0] for figures in found.values())
    assert reached["longest command of an observer on the server"] == longest_ms
    assert (tmp_path / "results.html").read_text().count("<svg") == 2


@pytest.mark.slow
def test_page_benchmark_reports_viewers_and_jobs_by_id(tmp_path):
    content, _ = run_benchmarks(tmp_path, "page", "--quick", timeout=180)
    found = content["parts"]["page"]["figures"]
    for number in VIEWERS:
        looked_at = found[viewers_name(number)]
        assert looked_at.keys() == {"broker_percent", "web_percent", "requests"}
        assert looked_at["broker_percent"][0] > 0
    few, many = (found[viewers_name(number)]["requests"][0] for number in VIEWERS)
    assert many < 2 * few, "one reader serves all viewers"
    assert found[BY_ID]["rate"][0] > 0
    reached = {goal["what"]: goal["reached"] for goal in content["goals"]}
    assert reached["jobs by id over HTTP"] == found[BY_ID]["rate_of_a_core"][0]


def test_merged_calls_are_compared_with_plain_calls(tmp_path):
    only = ("affinity delay", "merged", "results")
    content, _ = run_benchmarks(tmp_path, "publish", "sharing", "--rounds", 1, "--tasks", 50, only=only)
    published = content["parts"]["publish"]
    own, one = "affinity, merged own key", "affinity, merged one key"
    assert published["baseline"] == {"affinity, delay": "stock, delay", own: "affinity, delay", one: "affinity, delay"}
    reached = {goal["what"]: goal["reached"] for goal in content["goals"]}
    rates = {name: figures["rate"][0] for name, figures in published["figures"].items()}
    for name in (own, one):
        assert reached[f"publish, {name.removeprefix('affinity, ')}"] == rates[name] / rates["affinity, delay"]
    (rate,) = content["parts"]["sharing"]["figures"]["affinity, 1,000 results"]["rate"]
    assert 0 < rate == reached["results shared"]


def test_drains_compare_tasks_with_and_without_rules(tmp_path):
    words = ("metrics", "keys", "tenants", "--rounds", 3, "--tasks", 300)
    content, _ = run_benchmarks(tmp_path, *words, only=["solo"])
    reached = {goal["what"]: goal["reached"] for goal in content["goals"]}
    for part, what, goal in (
        ("metrics", "metrics", "metrics of types"),
        ("keys", "1,000 keys", "1,000 keys"),
        ("tenants", "100 tenants", "100 tenants"),
    ):
        measured = content["parts"][part]
        with_, without = (f"solo, affinity, late acks, strict, {word} {what}" for word in ("with", "without"))
        assert measured["baseline"] == {with_: without, without: None}
        pairs = zip(*(measured["figures"][name]["rate"] for name in (with_, without)), strict=True)
        assert reached[f"drain, solo, {goal}"] == statistics.median(ours / others for ours, others in pairs)


def test_rates_separate_turns_and_tolerate_disturbed_ones():
    lasted_ms = [1, 3, 1, 3, 900, 3, 1, 800, 1, 3]
    ns, records = 0, [Record(0, 0, START)]
    for turn in lasted_ms:
        for _ in range(5):
            ns += turn * 1_000_000
            records.append(Record(ns, len(records), START))
    assert rates(records, 5) == (pytest.approx(1000), pytest.approx(1000 / 3))
    with pytest.raises(BenchmarkError, match="fewer than two turns of 50"):
        rates(records, 50)


def test_check_rejects_lost_and_repeated_tasks():
    ran = [Record(number, number, START) for number in range(3)]
    check_each_ran_once(ran, 3, "all")
    with pytest.raises(BenchmarkError, match="of 4 tasks 1 were lost"):
        check_each_ran_once(ran, 4, "one lost")
    with pytest.raises(BenchmarkError, match="0 were lost, and there were 4 runs"):
        check_each_ran_once([*ran, ran[0]], 3, "one twice")


def test_ratio_is_the_median_over_rounds():
    part = Part()
    for ours, stocks in ((2, 1), (30, 20), (800, 10)):
        part.add(Named("ours", "stock"), {"rate": ours})
        part.add(Named("stock"), {"rate": stocks})
    assert part.ratio("ours", "stock", "rate") == 2, "the medians are 30 and 10"
    assert part.ratio("ours", "unknown", "rate") is None
    assert ratio("drain", "rate", "ours", "stock")({"drain": part}) == 2
    assert ratio("drain", "rate", "ours", "stock")({}) is None


def test_goal_is_met_at_its_limit():
    assert Outcome(at_least(2, "fast", lambda _: 2), 2).verdict == "ok"
    assert Outcome(at_least(2, "fast", lambda _: 1.9), 1.9).verdict == "missed"
    assert Outcome(at_most(2, "small", lambda _: 2), 2).verdict == "ok"
    assert Outcome(at_most(2, "small", lambda _: 2.1), 2.1).verdict == "missed"
    assert Outcome(at_most(2, "small", lambda _: None), None).verdict == "not measured"


@pytest.mark.parametrize("found", [[], [Bar("stock", 0.0, 0.0, 0.0)], [Bar("stock", 0.0, 0.0, 0.0)] * 2])
def test_bars_draw_zero_values(found):
    assert bars(found).count('width="0.0"') == len(found)


def test_slot_use_counts_running_tasks():
    first, second = [Record(0, 1, START), Record(60, 1, END)], [Record(20, 2, START), Record(100, 2, END)]
    assert slot_use(sorted([*first, *second]), slots=2) == (60 + 80) / 200
    assert slot_use(sorted([*first, second[0]]), slots=2) == (60 + 40) / 120, (
        "a running task counts until the last record"
    )


def test_table_for_users_shows_ratios_to_stock():
    assert for_users.DESCRIPTIONS.keys() <= {goal.name for goal in GOALS}
    found = [Outcome(goal, 2.04 if goal.unit == "x" else 0) for goal in GOALS]
    lines = for_users.table(found).splitlines()
    assert len(lines) == 2 + len(for_users.DESCRIPTIONS)
    assert lines[2] == "| empty tasks a second, 8 threads | 2 | its default settings |"
    assert "| 0 tasks |" in lines[-1]


def test_run_reuses_parts_of_an_earlier_run(tmp_path):
    part = Part()
    part.add(Named("solo, affinity, late acks, strict"), {"requests": 1.0})
    earlier = Run.now(FULL)
    earlier.write(tmp_path, {"drain": part}, [])
    added = parts_of(tmp_path / "results.json")
    assert added == {"drain": part}
    table = earlier.as_markdown(outcomes(added))
    assert "requests a task, solo" in table
    assert "not measured" not in table
    assert f"{len(GOALS) - 1} further goals belong to parts that this run omitted." in table
