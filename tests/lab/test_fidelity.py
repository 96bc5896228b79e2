"""A record of real workers with all kinds of rules is replayed claim by claim. About 10 s, 4 s of CPU time."""

import random
import threading
import time

import pytest

from celery_affinity.lab import replay, trace_file
from celery_affinity.lab.recorder import Recorder
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.processes import start_worker, wait_until

APP = "tests.support.apps.ruled"

#: Types and slots of each worker. The reserve of one slot for pdfs leaves two slots for videos. Jobs with a rate have
#: a separate worker: they start at a tick, and a record does not contain the delay of ticks on a busy machine.
WORKERS = {"videos": (["video"], 1), "all": (["pdf", "video"], 2), "pdfs": (["pdf"], 1), "mails": (["mail"], 1)}

#: Number of jobs, and the average seconds between two of them.
JOBS, PAUSE_S = 120, 0.04


@pytest.fixture
def tasks(valkey, load_app):
    """The tasks by name of an app whose workers are running."""
    app = load_app(APP)
    quiet = ("--without-mingle", "--without-gossip")
    for name, (types, slots) in WORKERS.items():
        start_worker(APP, valkey.url, types, pool="threads", concurrency=slots, name=name, extra=quiet)
    return {name.rpartition(".")[2]: task for name, task in app.tasks.items() if name.startswith(APP)}


def publish_one(tasks, chance):
    """Publish a job of a random task. It takes a tenth of a second on average."""
    seconds = chance.uniform(0.02, 0.2)
    by_customer = {"customer": chance.choice("abc")}
    urgency = {"priority": chance.choice((0, 0, 5, 9)), "on_demand": chance.random() < 0.2}
    task = chance.choice(("encode", "report", "refresh", "mail", "render", "render"))
    if task == "refresh":
        urgency = {}  # only calls of equal urgency merge
    tasks[task].apply_async((seconds,), by_customer if task not in ("mail", "render") else {}, **urgency)


def times_of_the_server(scheduler):
    """Map each fencing token to the times of the claim and its release after the publish, in µs."""
    client, fields = scheduler.client, ("fence", "enqueued", "claimed", "ended")
    rows = [client.hmget(name, fields) for name in client.scan_iter(scheduler.keys.key("job", "*"))]
    known = (list(map(int, row)) for row in rows if all(row))
    return {fence: (claimed - enqueued, ended - enqueued) for fence, enqueued, claimed, ended in known}


def late_claims(trace):
    """Return the jobs that the replay claims at a different time, with the delay of the record in µs."""
    ours = replay.record_of(trace).schedule
    theirs = {run.number: run.claimed_us for run in replay.run_engine(ours.scenario).schedule.runs}
    late = [(trace.jobs[run.number], run.claimed_us - theirs[run.number]) for run in replay.decided_jobs(ours).runs]
    return [(job, late_us) for job, late_us in late if late_us]


def test_record_with_all_rules_is_replayed_claim_by_claim(redis_client, tasks, tmp_path):
    scheduler = Scheduler(redis_client, Keys())
    wait_until(lambda: len(Report(scheduler.reader).status().workers) == len(WORKERS), 30, "workers join")
    chance = random.Random(7)
    for customer in "abc":  # two of them run when the record begins, and the reserve blocks the third
        tasks["encode"].delay(3.0, customer)

    def publish():
        for _ in range(JOBS):
            publish_one(tasks, chance)
            time.sleep(chance.expovariate(1 / PAUSE_S))

    publisher, warnings = threading.Thread(target=publish), []

    def progress(_):
        if publisher.ident is None:
            publisher.start()
        elif not publisher.is_alive():
            raise KeyboardInterrupt

    trace = Recorder(scheduler, warn=warnings.append).record(60, progress)
    assert warnings == []
    claimed = [job for job in trace.jobs if job.claimed_us is not None]
    for kind in ("exclusive", "rate", "merge", "tenant"):
        assert any(getattr(job, kind) for job in claimed), kind
    assert any(job.claimed_us < 0 for job in claimed), "some had slots when the record began"
    ended = {job.fence: job for job in claimed if job.freed_us is not None}
    known = {fence: times for fence, times in times_of_the_server(scheduler).items() if fence in ended}
    assert len(known) > 50
    for fence, times in known.items():
        job = ended[fence]
        assert (job.claimed_us - job.enqueued_us, job.freed_us - job.enqueued_us) == times, job
    trace_file.write_trace(trace, tmp_path / "trace.jsonl")  # to find the cause of a difference
    replayed = replay.replay(trace)
    assert replayed.engine == "judge"
    assert (replayed.fidelity, replayed.first_difference) == (1.0, None), f"{replayed.kept} of {replayed.claims}"
    assert replayed.claims > 50
    assert replayed.replayed.all.mean_s == pytest.approx(replayed.recorded.all.mean_s, rel=0.02)
    assert all(late_us > 0 and job.rate for job, late_us in late_claims(trace)), "only ticks are late, and never early"
    trace_file.write_trace(trace, tmp_path / "trace.csv")
    assert replay.replay(trace_file.read_trace(tmp_path / "trace.csv")) == replayed
