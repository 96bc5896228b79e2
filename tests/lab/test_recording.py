"""Recordings of real workers: each claim has a row with ordered times, and keys are hashed."""

import json
import signal
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import pytest

from celery_affinity.errors import TraceError
from celery_affinity.lab import trace_file
from celery_affinity.lab.recorder import Recorder
from celery_affinity.reports.status import Report
from celery_affinity.scheduler import recordings
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.command import affinity
from ..support.processes import Process, start_worker, wait_until

APP = "tests.support.apps.recorded"

#: Workers without mingle and gossip start sooner.
QUIET = ("--without-mingle", "--without-gossip")

#: The Redis list of the app's runs, and a name used in keys, which must not appear in any trace.
RUNS, SECRET = "runs", "secretive"


@pytest.fixture
def lab(valkey, redis_client, load_app):
    """A broker, the app's tasks by name, and functions that start a worker and record."""
    scheduler = Scheduler(redis_client, Keys())
    app = load_app(APP)
    tasks = {name.rpartition(".")[2]: task for name, task in app.tasks.items() if name.startswith(APP)}

    looks = []

    def names():
        return {each.name.partition("@")[0] for each in Report(scheduler.reader).status().workers}

    def start(name, *, pool="threads", slots=2, **conf):
        env = {"CONF": json.dumps(conf)}
        worker = start_worker(APP, valkey.url, ["pdf"], pool=pool, concurrency=slots, name=name, env=env, extra=QUIET)
        wait_until(lambda: name in names(), 30, f"{name} joins\n{worker.log()}")
        return worker

    def wait_for_a_look():
        """Wait until the recorder has completed a look at the fleet that began after this call."""
        before = len(looks)
        wait_until(lambda: len(looks) > before + 1, 10, "the recorder looks")

    def runs():
        return [each.decode().split() for each in redis_client.lrange(RUNS, 0, -1)]

    def record(until, within_s=20):
        """Record until *until* is true; return the trace, which must have no warnings."""
        warnings = []

        def progress(_):
            looks.append(len(looks))
            if until():
                raise KeyboardInterrupt

        trace = Recorder(scheduler, warn=warnings.append).record(within_s, progress)
        assert warnings == []
        return trace

    def all_have_ended():
        workers = list(scheduler.reader.large_zset("heartbeats"))
        return not scheduler.reader.backlogs() and not any(scheduler.reader.claim_counts(workers))

    return SimpleNamespace(
        url=valkey.url,
        redis=redis_client,
        scheduler=scheduler,
        start=start,
        runs=runs,
        names=names,
        wait_for_a_look=wait_for_a_look,
        record=record,
        all_have_ended=all_have_ended,
        **tasks,
    )


def recording_keys(redis_client):
    return redis_client.keys("*}:record*")


def test_each_claim_has_a_row_with_ordered_times(lab):
    for name, pool in (("processes", "prefork"), ("threads", "threads")):
        lab.start(name, pool=pool)
    with recording(lab, lambda: len(lab.runs()) == 6 + 4 + 2 + 3 and lab.all_have_ended()) as traces:
        for _ in range(6):
            lab.plain.delay(0.3)
        for _ in range(4):
            lab.urgent.delay()
        for _ in range(2):
            lab.fails.delay()
        lab.comes_back.delay()
    (trace,) = traces
    runs = {int(fence): task for fence, task in lab.runs()}
    rows = {job.fence: job for job in trace.jobs}
    assert rows.keys() == runs.keys()
    assert len(rows) == len(trace.jobs)
    assert trace.lost == 0
    for job in trace.jobs:
        assert job.enqueued_us <= job.since_us <= job.claimed_us <= job.started_us <= job.ended_us
        assert job.ended_us <= job.freed_us <= trace.length_us
    outcomes = {"plain": "done", "urgent": "done", "fails": "failed"}
    assert all(job.outcome == outcomes[runs[fence]] for fence, job in rows.items() if runs[fence] in outcomes)
    assert all(job.took_us >= 300_000 for fence, job in rows.items() if runs[fence] == "plain")
    assert {(job.on_demand, job.priority) for fence, job in rows.items() if runs[fence] == "urgent"} == {(True, 7)}
    assert {(each.types, each.slots, each.joined_us, each.left_us) for each in trace.workers} == {
        (("pdf",), 2, 0, None)
    }
    assert {each.name.partition("@")[0] for each in trace.workers} == {"processes", "threads"}
    assert {job.worker for job in trace.jobs} <= {each.name for each in trace.workers}
    assert {fence: job.task for fence, job in rows.items()} == {fence: f"{APP}.{task}" for fence, task in runs.items()}
    assert recording_keys(lab.redis) == []


@contextmanager
def recording(lab, until, within_s=20):
    """Record in a thread while the block runs and until *until* is true. Workers record when the block begins.

    Yields a list that contains the trace after the block.
    """
    traces, is_over = [], threading.Event()

    def record():
        traces.append(lab.record(lambda: is_over.is_set() and until(), within_s))

    thread = threading.Thread(target=record)
    thread.start()
    try:
        lab.wait_for_a_look()  # the recorder looks after every worker has begun
        yield traces
    finally:
        is_over.set()
        thread.join(40)


def _pages(lab):
    """Return the number of pages sent by workers, including those already read."""
    current = recordings.current_recording(lab.scheduler)
    key = current and lab.scheduler.keys.key("recorded", current.id)
    return lab.redis.xinfo_stream(key)["entries-added"] if key and lab.redis.exists(key) else 0


def _wait_for_heartbeats(lab, number):
    """Wait until the only worker has checked *number* times for a recording."""

    def looks():
        return lab.redis.info("commandstats").get("cmdstat_get", {}).get("calls", 0)

    for _ in range(number):
        before = looks()
        wait_until(lambda before=before: looks() > before, 10, "a heartbeat")


def test_returned_job_has_a_row_for_each_claim(lab):
    lab.start("w")
    with recording(lab, lambda: len(lab.runs()) == 4 and lab.all_have_ended()) as traces:
        lab.comes_back.delay()
        lab.plain.delay()
    jobs = sorted(traces[0].jobs, key=lambda job: job.fence)
    assert [job.fence for job in jobs] == sorted(int(fence) for fence, _ in lab.runs())
    returned = [job for job in jobs if job.fence in {int(fence) for fence, task in lab.runs() if task == "comes_back"}]
    assert [job.outcome for job in returned] == ["returned", "returned", "done"]
    assert len({job.enqueued_us for job in returned}) == 1, "it keeps its age"
    returned_us = [min(job.ended_us, next_job.claimed_us) for job, next_job in pairwise(returned)]
    assert [job.since_us for job in returned] == [returned[0].enqueued_us, *returned_us]


def test_keys_are_hashed_with_their_current_limits(lab, tmp_path):
    lab.start("w")
    lab.scheduler.configure({"limits": f"city%3A{SECRET}=3 type%3Apdf=9", "tenants": f"{SECRET}=max:5"})
    with recording(lab, lambda: len(lab.runs()) == 4 and lab.all_have_ended()) as traces:
        for city in (SECRET, SECRET, "other"):
            lab.keyed.delay(city)
        lab.merged.delay(SECRET)
    (trace,) = traces
    trace_file.write_trace(trace, tmp_path / "trace.jsonl")
    text = (tmp_path / "trace.jsonl").read_text()
    assert SECRET not in text
    assert "mail" not in text
    by_task = {
        task: [job for job in trace.jobs if [str(job.fence), task] in lab.runs()] for task in ("keyed", "merged")
    }
    keyed, (merged,) = by_task["keyed"], by_task["merged"]
    for kind in ("exclusive", "rate", "tenant"):
        assert sorted(Counter(getattr(job, kind) for job in keyed).values()) == [1, 2]
        assert all(len(getattr(job, kind)) == 16 for job in keyed)
    assert {job.exclusive_limit for job in keyed} == {"3", "1"}
    assert {job.rate_limit for job in keyed} == {"100/m"}
    assert (merged.exclusive, merged.tenant) == (None, None)
    assert len(merged.merge) == 16
    tenant = next(job.tenant for job in keyed if job.exclusive_limit == "3")
    assert trace.settings["limits"] == "type%3Apdf=9"
    assert trace.settings["tenants"] == f"{tenant}=max:5"
    assert trace_file.read_trace(tmp_path / "trace.jsonl") == trace


def test_due_times_and_head_starts_are_recorded(lab):
    lab.start("w", slots=1)
    lab.scheduler.configure({"target_wait_us": str(100 * 10**6)})
    with recording(lab, lambda: len(lab.runs()) == 2) as traces:
        lab.plain.apply_async(start_within=30)
        lab.plain.apply_async((30,))
        wait_until(lambda: len(lab.runs()) == 2, 10, "it runs")
        lab.plain.apply_async(deadline=20)
    claimed, running, waiting = sorted(traces[0].jobs, key=lambda job: job.enqueued_us)
    assert (claimed.start_within_us, claimed.deadline_us, claimed.head_us) == (30 * 10**6, None, 70 * 10**6)
    assert (running.start_within_us, running.head_us) == (None, None)
    assert waiting.claimed_us is None
    assert 19 * 10**6 < waiting.deadline_us <= 20 * 10**6
    assert waiting.head_us > 80 * 10**6
    assert waiting.task.endswith(".plain")


def test_merged_calls_have_one_row(lab):
    lab.start("w", slots=1)
    with recording(lab, lambda: lab.all_have_ended()) as traces:
        lab.plain.delay(1)
        wait_until(lambda: len(lab.runs()) == 1, 10, "it runs")
        for _ in range(3):
            lab.merged.delay("city")
    assert Counter(bool(job.merge) for job in traces[0].jobs) == {True: 1, False: 1}


def test_jobs_waiting_or_running_at_the_end_are_recorded(lab):
    lab.start("w", slots=1)
    with recording(lab, lambda: True) as traces:
        lab.plain.delay(30)
        wait_until(lambda: len(lab.runs()) == 1, 10, "it runs")
        for _ in range(2):
            lab.urgent.delay()
        lab.plain.apply_async(countdown=100)
        lab.keyed.delay("city")
    jobs = traces[0].jobs
    assert Counter((job.outcome, job.on_demand, job.priority) for job in jobs) == {
        ("running", False, 0): 1,
        ("pending", True, 7): 2,
        ("pending", False, 0): 1,
    }
    (running,) = (job for job in jobs if job.outcome == "running")
    assert running.started_us is not None
    assert running.ended_us is None
    (keyed,) = (job for job in jobs if job.exclusive)
    assert (keyed.outcome, keyed.worker, keyed.rate_limit) == ("pending", None, "100/m")


def test_joining_leaving_and_dying_workers_are_recorded(lab):
    lab.start("stays", slots=1)
    with recording(lab, lambda: True, within_s=40) as traces:
        leaves, dies = lab.start("leaves", slots=3), lab.start("dies", slots=1)
        lab.wait_for_a_look()
        dies.kill()
        wait_until(lambda: "dies" not in lab.names(), 20, "it is removed")
        leaves.term()
        wait_until(lambda: "leaves" not in lab.names(), 20, "it is removed")
        lab.start("comes", slots=2)
    workers = {each.name.partition("@")[0]: each for each in traces[0].workers}
    assert workers.keys() == {"stays", "leaves", "dies", "comes"}
    assert (workers["stays"].joined_us, workers["stays"].left_us) == (0, None)
    assert 0 < workers["leaves"].joined_us < workers["leaves"].left_us
    assert 0 < workers["dies"].joined_us < workers["dies"].left_us
    assert workers["comes"].joined_us > workers["dies"].joined_us
    assert {name: each.slots for name, each in workers.items()} == {"stays": 1, "leaves": 3, "dies": 1, "comes": 2}


def test_dead_workers_claim_is_returned_at_its_death(lab):
    dies = lab.start("dies", slots=1)
    with recording(lab, lambda: len(lab.runs()) == 2, within_s=40) as traces:
        lab.plain.delay(60)
        wait_until(lambda: len(lab.runs()) == 1, 10, "it runs")
        before = _pages(lab)
        wait_until(lambda: _pages(lab) > before + 1, 10, "two heartbeats: the claim is named")
        dies.kill()
        lab.start("comes", slots=1)
    first, second = sorted(traces[0].jobs, key=lambda job: job.fence)
    assert (first.worker.partition("@")[0], first.outcome) == ("dies", "returned")
    assert (second.worker.partition("@")[0], second.outcome) == ("comes", "running")
    assert second.since_us == min(first.ended_us, second.claimed_us)


def test_lower_first_worker_records_higher_first_priorities(lab):
    lab.start("w", affinity_priority_order="lower-first")
    with recording(lab, lambda: len(lab.runs()) == 1 and lab.all_have_ended()) as traces:
        lab.plain.apply_async(priority=3)
    (job,) = traces[0].jobs
    assert job.priority == 7


# -- the end of a recording


def test_second_recorder_is_refused_during_a_recording(lab):
    lab.start("w")
    with (
        recording(lab, lambda: True),
        pytest.raises(TraceError, match="a recording is on by another `lab record`, at the latest until 20"),
    ):
        Recorder(lab.scheduler).record(1)


def test_record_returns_false_after_the_recording(lab):
    assert lab.scheduler.record("over", [("{}", [])]) is False


def test_killed_recorder_leaves_only_expiring_keys(lab, tmp_path):
    lab.start("w")
    words = ("-A", APP, "affinity", "lab", "record", "--for", "60s", "--output", str(tmp_path / "t"))
    env = {"BROKER_URL": lab.url, "PYTHONUNBUFFERED": "1"}
    recorder = Process("recorder", [sys.executable, "-m", "celery", *words], env)
    wait_until(lambda: _pages(lab), 20, recorder.log())
    recorder.kill()
    keys = recording_keys(lab.redis)
    assert len(keys) == 2
    assert all(0 < lab.redis.pttl(key) <= 30_000 for key in keys), "no process extends the expiry"
    for key in keys:
        lab.redis.pexpire(key, 1)
    wait_until(lambda: not recording_keys(lab.redis), 5, "the keys expire")
    lab.plain.delay()
    wait_until(lambda: len(lab.runs()) == 1 and lab.all_have_ended(), 10, "the worker works")
    _wait_for_heartbeats(lab, 3)
    assert not recording_keys(lab.redis), "it no longer records"
    assert list(tmp_path.iterdir()) == []


def test_interrupted_recorder_keeps_its_recording(lab, tmp_path):
    lab.start("w")
    output = tmp_path / "t.jsonl"
    words = ("-A", APP, "affinity", "lab", "record", "--for", "60s", "--output", str(output), "--json")
    recorder = Process("recorder", [sys.executable, "-m", "celery", *words], {"BROKER_URL": lab.url})
    wait_until(lambda: _pages(lab), 20, recorder.log())
    lab.plain.delay()
    wait_until(lambda: len(lab.runs()) == 1 and lab.all_have_ended(), 10, "it ran")
    recorder.signal(signal.SIGINT)
    assert recorder.wait(20) == 0, recorder.log()
    trace = trace_file.read_trace(output)
    assert [job.outcome for job in trace.jobs] == ["done"]
    assert trace.length_us < 60_000_000
    assert '"jobs": 1' in recorder.log()
    assert recording_keys(lab.redis) == []


def test_affinity_record_records_from_the_workers_start(lab, tmp_path):
    lab.start("w", affinity_record=3)
    lab.plain.delay(0.1)
    wait_until(lambda: len(lab.runs()) == 1 and lab.all_have_ended(), 10, "it ran")
    recording = recordings.current_recording(lab.scheduler)
    assert 2_900_000 < recording.until_us - recording.since_us <= 3_000_000
    refused = affinity(lab.url, "lab", "record", "--for", "1s", app=APP)
    assert "a recording is on since an app.conf has affinity_record" in refused.stderr
    wait_until(lambda: lab.scheduler.reader.now_us() > recording.until_us, 10, "it is over")
    _wait_for_heartbeats(lab, 3)  # the first heartbeat may send jobs that ended before
    pages = _pages(lab)
    lab.plain.delay()
    wait_until(lambda: len(lab.runs()) == 2 and lab.all_have_ended(), 10, "it ran")
    _wait_for_heartbeats(lab, 3)
    assert _pages(lab) == pages, "workers no longer record"
    output = tmp_path / "t.jsonl"
    fetched = affinity(lab.url, "lab", "record", "--output", str(output), app=APP)
    assert fetched.returncode == 0, fetched.stderr
    trace = trace_file.read_trace(output)
    assert [job.outcome for job in trace.jobs] == ["done"], "the second job was too late"
    assert 2_000_000 < trace.length_us <= 3_000_000
    assert recording_keys(lab.redis) == []
    again = affinity(lab.url, "lab", "record", "--output", str(output), app=APP)
    assert "there is no recording to fetch: --for records now" in again.stderr


def test_recording_key_of_wrong_type_does_not_stop_workers(lab):
    lab.redis.rpush(lab.scheduler.keys.key("recording"), "garbage")
    lab.start("w")
    lab.plain.delay()
    wait_until(lambda: len(lab.runs()) == 1 and lab.all_have_ended(), 10, "it ran")
    assert len(Report(lab.scheduler.reader).status().workers) == 1
