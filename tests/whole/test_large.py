"""The benchmark of large queues at a small size; speed is not checked."""

import re

from celery_affinity.lua.library import FUNCTION_NAMES

from ..support.processes import run_module


def _measured(*words):
    """Return the rows of the printed tables by their first column."""
    run = run_module("tests.whole.large", *words, timeout=120, may_fail=True)
    assert not run.stderr
    rows = [line.strip("| ").split(" | ") for line in run.stdout.splitlines() if line.startswith("|")]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_program_measures_every_script_and_report():
    measured = _measured("--jobs", "2000", "--rounds", "21")
    assert measured.keys() >= {*FUNCTION_NAMES, "report: explain", "report: pending", "report: status"}
    assert measured["a script that does nothing"][0] == "210", "calls"
    assert not [what for what in measured if "key" in what], "merged calls are measured only with --merging"


def test_program_repeats_calls_and_cancels_a_key():
    sizes = ("--jobs", "2000", "--types", "1", "--keys", "1", "--due", "100", "--rounds", "1")
    measured = _measured(*sizes, "--cancel", "1", "--best-of", "2")
    assert {"report: jobs of a key, CPU", "report: `cancel --key` of all jobs", "revoke"} <= measured.keys()
    assert int(measured["tick"][0]) > 10
    assert int(measured["revoke"][0]) >= 100, "each revokes at most twenty jobs"


def test_program_measures_hints():
    measured = _measured("--jobs", "2000", "--rounds", "2", "--workers", "5", "--hints", "20")
    assert int(measured["release"][0]) > 50


def test_program_compares_merged_calls_with_plain_jobs():
    measured = _measured("--merging", "2000", "--calls", "2500")
    found = {re.sub(r" within [\d.]+ s", "", what): row for what, row in measured.items() if "key" in what}
    many, one = "2,000 keys with a call each", "2,500 calls of one key"
    raised = f"{one}, `most` and `most_bytes` raised"
    costs = ("`publish`, x plain", "memory of a call, x plain")
    assert found.keys() == {
        f"{many}: `release` and claim, x plain",
        *(f"{what}: {cost}" for what in (many, one, raised) for cost in costs),
        *(f"{what}: runs" for what in (one, raised)),
    }
    assert found[f"{one}: runs"] == ["<= 4", "4", "ok"], "one call starts immediately, 2,499 need three runs"
    assert found[f"{raised}: runs"] == ["<= 2", "2", "ok"]
    assert all(float(row[1]) > 0 for row in found.values())
