"""`make lab`, run as a user runs it: record a fleet, change it, and compare predicted and measured waits."""

import re
import subprocess
import sys

import pytest

from celery_affinity.lab import trace_file
from examples.lab import plan
from examples.lab.__main__ import DOCUMENTS, apply_change
from examples.lab.queries import Change
from examples.pipeline import documents


@pytest.mark.slow  # half a minute: two fleets, and a replay between them
def test_predicted_and_measured_waits_are_on_one_page(valkey, tmp_path, monkeypatch):
    monkeypatch.setenv("REDIS_URL", valkey.url)
    words = ["--seconds", "3", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "examples.lab", *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = (trace_file.read_trace(tmp_path / side / "trace.jsonl") for side in ("before", "after"))
    calls = plan.load(tmp_path / "before" / "plan.json")
    assert calls == plan.load(tmp_path / "after" / "plan.json"), "the same work comes twice"
    assert [sum(job.outcome in ("done", "failed") for job in each.jobs) for each in (before, after)] == 2 * [len(calls)]
    assert after.workers != before.workers or after.settings != before.settings, "the fleet is changed"
    page = (tmp_path / "lab.html").read_text()
    for id_ in ("replay", "slot", "limit", "advice", "optimum", "advised", "measured"):
        assert f'<section id="{id_}">' in page
    (table,) = re.findall(r'<section id="measured">.*?</section>', page, re.DOTALL)
    for text in ("predicted", "measured", "<td>all</td>", "<td>pdf</td>", "<td>excel</td>"):
        assert text in table
    assert "data:image/svg+xml" in page
    assert "</svg>" in (tmp_path / "advised.svg").read_text()


def test_plan_is_deterministic_and_exceeds_the_fleets_capacity():
    found, _ = documents.find(DOCUMENTS)
    calls = plan.make(found, 60)
    assert calls == plan.make(found, 60)
    slots = sum(slots for _, slots in plan.WORKERS.values())
    assert 1.1 < sum(each.answer_s for each in calls) / (60 * slots) < 1.2
    assert {each.on_demand for each in calls} == {True, False}


def test_apply_change_adds_workers_and_settings():
    workers, settings = apply_change(Change(add=("[pdf,excel]:2",), settings=("limits=type:excel=1",)))
    assert workers == {**plan.WORKERS, "added1": ("pdf,excel", 2)}
    assert settings == ["limits", "type:excel=1"]
