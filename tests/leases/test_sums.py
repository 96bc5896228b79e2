"""A worker collects metric deltas per type until the server has counted them, and none is counted twice."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import redis

from celery_affinity.leases import job_metrics as module
from celery_affinity.leases.held_claim import ACKED, FAILED, REJECTED, REVOKED
from celery_affinity.leases.job_metrics import MetricDeltas
from celery_affinity.leases.member import Member
from celery_affinity.scheduler.messages import Claim, TaskRuns
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import MAX_METRICS, MAX_RUNS_ADDED, MAX_TASKS_ADDED, MAX_TYPES
from celery_affinity.schema.histograms import histogram_of
from celery_affinity.schema.keys import Keys

from ..support.members import claims_of
from ..support.scripted_fleet import ScriptedFleet


class LosesReplies(Scheduler):
    """A scheduler whose server counts metrics, and whose next *losses* replies are lost."""

    losses = 0

    def add_metrics(self, *args):
        known = super().add_metrics(*args)
        if self.losses:
            self.losses -= 1
            raise redis.ConnectionError("the reply is lost")
        return known


class Worker:
    """A live worker of one slot that serves "pdf"."""

    def __init__(self, client):
        self.scheduler = LosesReplies(client, Keys())
        self.fleet = ScriptedFleet(self.scheduler)
        self.fleet.join("worker", "pdf")
        self.sums = MetricDeltas()

    def membership(self):
        members = Member.__new__(Member)
        members.id, members.claims = "worker", SimpleNamespace(sums=self.sums, settled_in_buffer=frozenset)
        members.reporter = SimpleNamespace(scheduler=self.scheduler)
        members._recorder = Mock()
        return members

    def hand_over(self):
        self.sums.hand_over(self.scheduler, "worker")

    def metrics(self):
        row = self.scheduler.client.hgetall(Keys().key("metrics", "pdf"))
        return {name.decode(): value.decode() for name, value in row.items()}

    @property
    def runs(self):
        return histogram_of(self.metrics(), "done").number

    @property
    def average_us(self):
        average = self.scheduler.client.hget(Keys().key("durations"), "pdf")
        return average and int(average)


@pytest.fixture
def worker(redis_client):
    return Worker(redis_client)


def test_waits_and_runs_are_sent_to_the_server_once(worker):
    for _ in range(3):
        worker.sums.waited("pdf", False, 2_000_000)
        worker.sums.ran("pdf", "done", 500_000)
    worker.sums.waited("pdf", True, 100)
    worker.sums.ran("pdf", "failed", 1_000_000)
    worker.hand_over()
    worker.hand_over()
    delta = worker.metrics()
    numbers = {kind: histogram_of(delta, kind).number for kind in ("queued", "demand", "done", "failed")}
    assert numbers == {"queued": 3, "demand": 1, "done": 3, "failed": 1}
    assert (histogram_of(delta, "queued").sum_s, histogram_of(delta, "done").sum_s) == (6, 1.5)
    assert worker.average_us == 625_000


def test_metrics_are_counted_once_after_a_lost_reply(worker):
    worker.sums.ran("pdf", "done", 1)
    worker.scheduler.losses = 2
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            worker.hand_over()
        worker.sums.ran("pdf", "done", 1)
    worker.hand_over()
    assert worker.runs == 3


def test_unsent_metrics_are_kept_until_the_worker_rejoins(worker):
    worker.sums.ran("pdf", "done", 1)
    worker.scheduler.leave("worker")
    worker.hand_over()
    assert worker.runs == 0
    worker.fleet.join("worker", "pdf")
    worker.sums.drop_doubtful()
    worker.hand_over()
    assert worker.runs == 1


def test_doubtful_metrics_are_dropped_when_server_forgot_the_worker(worker):
    """The numbers of counted pages were deleted with the worker's hash."""
    worker.sums.ran("pdf", "done", 1)
    worker.scheduler.losses = 1
    with pytest.raises(redis.ConnectionError):
        worker.hand_over()
    worker.scheduler.leave("worker")
    worker.hand_over()
    worker.fleet.join("worker", "pdf")
    worker.sums.drop_doubtful()
    worker.sums.ran("pdf", "done", 1)
    worker.hand_over()
    assert worker.runs == 2


def test_leaving_worker_sends_its_remaining_metrics(worker):
    worker.sums.ran("pdf", "done", 1)
    members = worker.membership()
    members._dispatcher = members._heartbeats = Mock()
    members._reconciler, members._loop = SimpleNamespace(returned=0), Mock()
    members.reporter.flush_all = lambda: worker.sums.ran("pdf", "done", 1)
    assert members.leave()
    assert worker.runs == 2


def test_refused_metrics_are_logged_and_dropped(worker, caplog):
    worker.sums.ran("pdf", "done", 1)
    counts, worker.scheduler.add_metrics = worker.scheduler.add_metrics, Mock(side_effect=redis.ResponseError("no"))
    worker.hand_over()
    assert "refuses the metrics" in caplog.text
    worker.scheduler.add_metrics = counts
    worker.hand_over()
    assert worker.runs == 1


def test_overwritten_metrics_are_rebuilt_without_double_counts(worker):
    worker.fleet.publish("waits", "pdf")
    worker.scheduler.client.set(Keys().key("metrics", "pdf"), "overwritten")
    worker.sums.ran("pdf", "done", 1)
    worker.hand_over()
    worker.sums.ran("pdf", "done", 1)
    worker.hand_over()
    assert worker.runs == 1, "the first page, sent to the corrupt key, is lost"


def test_average_follows_single_jobs_and_many_jobs_alike(worker):
    for took_us, average_us in ((800, 800), (1_600, 900), (100, 800)):
        worker.sums.ran("pdf", "done", took_us)
        worker.hand_over()
        assert worker.average_us == average_us
    for _ in range(20):
        worker.sums.ran("pdf", "done", 5_000)
    worker.hand_over()
    assert worker.average_us == 5_000


def test_metrics_above_the_limit_use_several_calls():
    sums = MetricDeltas()
    for number in range(MAX_METRICS):
        sums.waited(f"type {number}", False, 1)
    pages = [*sums.pages()]
    assert [page.number for page in pages] == [1, 2]
    assert sum(len(page.sums) for page in pages) == MAX_METRICS
    assert max(sum(len(each.grown) for each in page.sums) for page in pages) == MAX_METRICS


def test_last_runs_of_many_tasks_use_several_pages():
    sums = MetricDeltas()
    for number in range(MAX_TASKS_ADDED + 1):
        for took_us in range(MAX_RUNS_ADDED + 5):
            sums.ran_task(f"task {number}", None, took_us)
    sums.ran("pdf", "done", 1)
    first, second = sums.pages()
    assert (len(first.sums), len(first.runs), len(second.sums), len(second.runs)) == (1, MAX_TASKS_ADDED, 0, 1)
    (runs,) = second.runs
    assert (runs.number, len(runs.last), runs.last[0]) == (MAX_RUNS_ADDED + 5, MAX_RUNS_ADDED, (None, 5))


def test_worker_keeps_metrics_of_at_most_max_types():
    sums = MetricDeltas()
    for number in range(MAX_TYPES + 5):
        sums.ran(f"type {number}", "done", 1)
    assert sum(len(page.sums) for page in sums.pages()) == MAX_TYPES + 5
    assert len(sums._types) == MAX_TYPES


def answered(sums):
    for page in sums.pages():
        sums.answered(page, is_known=True)


def test_first_end_and_unusual_durations_are_urgent(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sums = MetricDeltas()
    sums.waited("pdf", False, 1)
    assert not sums.are_urgent
    sums.ran("pdf", "done", 1_000)
    assert sums.are_urgent
    answered(sums)
    now[0] += 2
    sums.ran("pdf", "done", 3_900)
    assert not sums.are_urgent
    answered(sums)
    sums.ran("pdf", "done", 20_000)
    assert not sums.are_urgent, "metrics were sent a moment ago"
    now[0] += 2
    sums.ran("pdf", "done", 20_000)
    assert sums.are_urgent
    answered(sums)
    assert not sums.are_urgent
    now[0] += 2
    sums.ran("pdf", "done", 100)
    assert sums.are_urgent


@pytest.mark.parametrize(
    ("outcome", "how", "kind"),
    [
        (ACKED, "", "done"),
        (ACKED, "ignored", "done"),
        (ACKED, FAILED, "failed"),
        (ACKED, REVOKED, "revoked"),
        (ACKED, "expired", "expired"),
        (ACKED, "returned", None),
        (REJECTED, FAILED, None),
        ("unsettled", "", None),
        ("returned", "", None),
    ],
)
@pytest.mark.parametrize("void", [False, True])
def test_only_jobs_that_ended_here_count_slot_time(outcome, how, kind, void):
    claims = claims_of()
    tag = claims.hold(Claim("job", "7", "pdf", 0, 0, b""))
    claims.bind(tag, SimpleNamespace(name="task", id="one", size=12.0))
    claims.set_outcome(tag, outcome)
    held = claims.end(tag, how)
    held.void = void
    held.ended_s = held.held_since_s + 2
    claims.forget({tag: held})
    pages = [*claims.sums.pages()]
    ended = [each for page in pages for each in page.sums]
    assert [(each.type, each.ended, each.took_us) for each in ended] == (
        [("pdf", 1, 2_000_000)] if kind and not void else []
    )
    assert [name for each in ended for name in each.grown] == ([f"{kind} 09", f"{kind} sum"] if ended else [])
    runs = [TaskRuns("task", 1, ((12.0, 2_000_000),))] if (outcome, how) == (ACKED, "") and not void else []
    assert [row for page in pages for row in page.runs] == runs, "only success shows the run time"


def test_prefetched_jobs_wait_ends_when_it_has_a_slot(monkeypatch):
    claims = claims_of()
    now_us, now_s = 5_000_000, 104.0
    claims.clock = SimpleNamespace(now_us=lambda: now_us)
    monkeypatch.setattr("celery_affinity.leases.claims.time", SimpleNamespace(monotonic=lambda: now_s))
    prefetched, early = (
        claims.hold(Claim(job, fence, "pdf", 0, enqueued_us, b""))
        for job, fence, enqueued_us in (("ahead", "1", 2_000_000), ("early", "2", 5_000_001))
    )
    now_us = 60_000_000  # the server's clock counts when the job arrives; then this process' own, which never steps
    held = dict(claims.open_claims())
    held[prefetched].held_since_s, held[early].held_since_s = 100.0, 104.0
    claims.count_wait(prefetched, on_demand=True)
    claims.count_wait(early, on_demand=False)
    claims.count_wait("no claim", on_demand=False)
    now_s = 106.0
    claims.set_outcome(prefetched, ACKED)
    claims.forget({prefetched: held[prefetched]})
    ((delta,),) = [page.sums for page in claims.sums.pages()]
    assert delta.grown["demand sum"] == 7_000_000
    assert delta.grown["queued sum"] == 0
    assert delta.took_us == 2_000_000, "not the time before it had a slot"
