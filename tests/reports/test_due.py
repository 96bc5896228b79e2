"""Which jobs with a due time are expected to start late, and why: `celery affinity due`, `explain` and metrics."""

import random
from collections import Counter

import pytest

from celery_affinity.cli.explain_text import explanation_text
from celery_affinity.clock import SECOND_US
from celery_affinity.policy.run_times import RunTime
from celery_affinity.reports import situation
from celery_affinity.reports.due import DueReport, due_text, read_due
from celery_affinity.reports.metrics import metrics_text, read_metrics
from celery_affinity.reports.type_metrics import note_trends
from celery_affinity.schema.keys import Keys

from ..support.asking import why

TARGET_WAIT_S = 256


def learn(fleet, task, *took_s, size=None):
    learned = RunTime()
    for seconds in took_s:
        learned.add(size, seconds * SECOND_US)
    fleet.scheduler.client.hset(Keys().key("run_times"), task, learned.text)


def within(seconds, *more):
    return " ".join([f"w{round(seconds * SECOND_US)}", *more])


@pytest.fixture
def full_fleet(fleet):
    """Two slots, both busy with a job of 10 s that began now."""
    learn(fleet, "tests.task", *[10] * 10)
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("runs-1", "pdf")
    fleet.publish("runs-2", "pdf")
    return fleet


def late_jobs(reader):
    return {job.task_id.removeprefix("task-"): job for job in read_due(reader).late}


def test_job_behind_more_work_than_fits_is_named_with_the_reason(full_fleet, reader):
    now_s = reader.now_us() / SECOND_US
    for number in range(6):
        full_fleet.publish(f"first-{number}", "pdf", due=within(5))
    full_fleet.publish("report", "pdf", due=within(30))
    found = read_due(reader)
    assert (found.waiting, found.forecast, found.overdue) == (7, 7, 0)
    report = late_jobs(reader)["report"]
    assert (report.due_s, report.expected_s, report.late_s) == pytest.approx((now_s + 30, now_s + 40, 10), abs=0.01)
    assert (report.slots, report.jobs_before, report.work_before_s) == (2, 6, pytest.approx(60))
    assert "10 s late: 2 slots fit, 6 jobs rank before it with 1.0 min of work" in report.why
    assert report.why in due_text(found)


def test_job_that_starts_less_than_a_second_late_is_not_named(full_fleet, reader):
    full_fleet.publish("punctual", "pdf", due=within(9.1))
    full_fleet.publish("late", "pdf", due=within(8.9))
    assert [*late_jobs(reader)] == ["late"]


def test_job_without_jobs_before_it_names_the_busy_slots(full_fleet, reader):
    full_fleet.publish("soon", "pdf", due=within(2))
    assert late_jobs(reader)["soon"].why.endswith("8 s late: 2 slots fit, busy until then")


def test_size_of_a_running_job_predicts_its_end(fleet, reader):
    learned = RunTime()
    for size in (1, 2, 4, 8, 16, 1, 2, 4, 8, 16):
        learned.add(size, size * SECOND_US)
    fleet.scheduler.client.hset(Keys().key("run_times"), "tests.task", learned.text)
    fleet.join("worker", "pdf")
    fleet.publish("runs", "pdf", due="s40000000")
    fleet.publish("next", "pdf", due=within(5))
    assert late_jobs(reader)["next"].late_s == pytest.approx(35, abs=0.5)


def test_deadline_shorter_than_the_run_time_cannot_be_met(full_fleet, reader):
    full_fleet.publish("hopeless", "pdf", due="d3000000")
    full_fleet.publish("possible", "pdf", due="d900000000")
    found = read_due(reader)
    assert found.overdue == 1
    (hopeless,) = found.late
    assert hopeless.deadline_s == pytest.approx(reader.now_us() / SECOND_US + 3, abs=0.01)
    assert "cannot be met, its run time is longer" in hopeless.why


def test_missed_job_is_overdue_and_no_longer_forecast(full_fleet, reader):
    full_fleet.publish("missed", "pdf", due=within(5))
    full_fleet.scheduler.advance(6)
    found = read_due(reader)
    assert (found.waiting, found.overdue, found.late) == (0, 1, [])


def test_claimed_and_ended_jobs_are_in_no_report(full_fleet, reader):
    full_fleet.publish("claimed", "pdf", due=within(5))
    full_fleet.publish("revoked", "pdf", due=within(5))
    assert read_due(reader).waiting == 2
    full_fleet.scheduler.revoke(["task-revoked"], [], keep_s=60)
    full_fleet.end("worker", *full_fleet.inbox("worker")[:1])
    assert read_due(reader) == DueReport()


def test_unserved_and_paused_types_are_reasons(full_fleet, reader):
    full_fleet.publish("lonely", "excel", due=within(50))
    full_fleet.publish("paused", "pdf", due=within(60))
    full_fleet.scheduler.pause("type:pdf", for_s=None, why="")
    found = late_jobs(reader)
    assert "no live worker serves type 'excel'" in found["lonely"].why
    assert "type 'pdf' is paused" in found["paused"].why
    assert found["paused"].expected_s is None


def test_scheduled_job_is_forecast_from_its_eta(full_fleet, reader):
    full_fleet.publish("later", "pdf", due=within(5), delay_s=20)
    assert not read_due(reader).late
    assert read_due(reader).waiting == 1
    for number in range(8):
        full_fleet.publish(f"other-{number}", "pdf", due=within(1))
    assert late_jobs(reader)["later"].jobs_before > 0


def test_merged_calls_are_named_by_their_first_call(full_fleet, reader):
    for number in range(2):
        full_fleet.publish(f"call-{number}+", "pdf", rules="merge=a most=9 bytes=999999", due=within(2))
    (late,) = read_due(reader).late
    assert late.task_id == "task-call-0+"


def test_expected_arrivals_of_higher_priority_delay_a_job(full_fleet, reader):
    client = full_fleet.scheduler.client
    client.lpush(Keys().key("trend"), note_trends(reader))
    full_fleet.scheduler.advance(1)
    for number in range(4):
        full_fleet.publish(f"urgent-{number}", "pdf", priority=9)
    full_fleet.publish("report", "pdf", due=within(35))
    with_arrivals = late_jobs(reader)["report"].late_s
    client.delete(Keys().key("trend"))
    assert "report" not in late_jobs(reader)
    assert with_arrivals > 10


def test_jobs_beyond_the_first_ones_are_read_as_blocks(full_fleet, reader, monkeypatch):
    monkeypatch.setattr(situation, "_MAX_FIRST", 10)
    monkeypatch.setattr(situation, "_MAX_SAMPLES", 32)
    for number in range(400):
        full_fleet.publish(f"first-{number:03}", "pdf", priority=9)
    full_fleet.publish("report", "pdf", due=within(30))
    report = late_jobs(reader)["report"]
    assert report.expected_s - reader.now_us() / SECOND_US == pytest.approx(2_010, rel=0.02)
    assert report.jobs_before == pytest.approx(400, abs=4)


def test_forecast_of_a_large_backlog_sends_few_commands(full_fleet, reader, monkeypatch):
    sent = Counter()
    ask, fields_of_jobs = reader.ask, reader.fields_of_jobs
    monkeypatch.setattr(
        reader, "ask", lambda commands, **options: sent.update(commands=len(commands)) or ask(commands, **options)
    )
    monkeypatch.setattr(
        reader, "fields_of_jobs", lambda ids, fields: sent.update(jobs=len(ids)) or fields_of_jobs(ids, fields)
    )
    monkeypatch.setattr(situation, "_MAX_FIRST", 100)
    for number in range(3_000):
        full_fleet.publish(f"job-{number:04}", "pdf", priority=number % 3, due=within(100) if number % 100 == 0 else "")
    read_due(reader)
    assert sent["commands"] < 250
    assert sent["jobs"] < 500
    with_few_slots = sent.pop("jobs")
    monkeypatch.setattr(situation, "_MANY_SLOTS", 2)
    monkeypatch.setattr(situation, "_MAX_FIRST_OF_MANY_SLOTS", 10)
    read_due(reader)
    assert sent["jobs"] < with_few_slots - 80


def test_damaged_hashes_and_index_do_not_break_the_report(full_fleet, reader):
    client, key = full_fleet.scheduler.client, Keys().key
    full_fleet.publish("good", "pdf", due=within(2))
    rng = random.Random(1)
    client.zadd(key("due_times"), {"ghost": reader.now_us() + SECOND_US, "\xff\r\n odd": reader.now_us() + 5})
    for number in range(30):
        full_fleet.publish(f"bad-{number}", "pdf", due=within(60))
        for field in ("due", "head", "enqueued", "lane", "type", "name", "rank", "state"):
            if rng.random() < 0.3:
                client.hset(
                    key("job", f"bad-{number}"), field, rng.choice(["", "-5", "x y", "9" * 40, b"\xff\r\n", "nan"])
                )
    client.hset(key("run_times"), "tests.task", "inf nan x")
    assert read_due(reader).waiting > 0
    client.delete(key("due_times"))
    client.set(key("due_times"), "ghost")
    assert read_due(reader) == DueReport()


def test_explain_shows_due_time_head_start_and_expected_start(full_fleet, reader):
    full_fleet.publish("other", "pdf")
    full_fleet.publish("report", "pdf", due=within(6))
    found = why(reader, "report")
    assert found.head_start_s == TARGET_WAIT_S - 6
    assert found.expected_start_s == pytest.approx(reader.now_us() / SECOND_US + 10, abs=0.01)
    assert found.why_late.endswith("4 s late: 2 slots fit, busy until then")
    text = explanation_text(found)
    assert "head start 4 min 10 s, expected at" in text
    assert "4 s late" in text
    assert why(reader, "other").head_start_s is None


def test_overtaking_bound_grows_by_the_target_wait_and_shrinks_by_the_own_head_start(full_fleet, reader):
    full_fleet.publish("plain", "pdf")
    before = why(reader, "plain").waiting
    full_fleet.publish("report", "pdf", due=within(6))
    plain, report = why(reader, "plain").waiting, why(reader, "report").waiting
    assert plain.bound_s == before.bound_s + TARGET_WAIT_S
    assert plain.passed_until_s == before.passed_until_s + TARGET_WAIT_S
    assert report.bound_s == before.bound_s + TARGET_WAIT_S - (TARGET_WAIT_S - 6)
    assert read_metrics(reader).bounds_s["pdf"] == plain.bound_s


def test_metrics_count_starts_in_time_and_late_and_expected_late_jobs(full_fleet, reader):
    (first, second) = full_fleet.inbox("worker")
    full_fleet.publish("punctual", "pdf", due=within(20))
    full_fleet.publish("late", "pdf", due=within(30))
    full_fleet.scheduler.advance(10)
    full_fleet.end("worker", first)
    full_fleet.scheduler.advance(25)
    full_fleet.end("worker", second)
    for name in ("soon", "hopeless"):
        full_fleet.publish(name, "pdf", due=within(1))
    full_fleet.inbox("worker")
    full_fleet.hand_over("worker")
    text = metrics_text(read_metrics(reader))
    assert 'celery_affinity_due_starts_total{type="pdf",met="yes"} 1' in text
    assert 'celery_affinity_due_starts_total{type="pdf",met="no"} 1' in text
    assert 'celery_affinity_late_seconds_sum{type="pdf"} 5' in text
    assert 'celery_affinity_expected_late_jobs{type="pdf"} 1' in text
    assert "celery_affinity_overdue_jobs 0" in text
