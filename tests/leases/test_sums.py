"""What a worker adds up of its jobs: by type, until the server has counted it, and never twice."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import redis

from celery_affinity.leases import job_metrics as module
from celery_affinity.leases.held_claim import ACKED, FAILED, REJECTED, REVOKED
from celery_affinity.leases.job_metrics import MetricDeltas
from celery_affinity.leases.member import Member
from celery_affinity.scheduler.messages import Claim
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import MAX_METRICS, MAX_TYPES
from celery_affinity.schema.histograms import histogram_of
from celery_affinity.schema.keys import Keys

from ..support.members import claims_of
from ..support.scripted_fleet import ScriptedFleet


class LosesReplies(Scheduler):
    """A scheduler whose server counts sums, and whose replies are lost as often as *losses* says."""

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


def test_waits_and_runs_are_added_up_and_handed_over_once(worker):
    for _ in range(3):
        worker.sums.waited("pdf", False, 2_000_000)
        worker.sums.ran("pdf", "done", 500_000)
    worker.sums.waited("pdf", True, 100)
    worker.sums.ran("pdf", "failed", 1_000_000)
    worker.hand_over()
    worker.hand_over()
    found = worker.metrics()
    numbers = {kind: histogram_of(found, kind).number for kind in ("queued", "demand", "done", "failed")}
    assert numbers == {"queued": 3, "demand": 1, "done": 3, "failed": 1}
    assert (histogram_of(found, "queued").sum_s, histogram_of(found, "done").sum_s) == (6, 1.5)
    assert worker.average_us == 625_000


def test_sums_whose_reply_was_lost_count_once(worker):
    worker.sums.ran("pdf", "done", 1)
    worker.scheduler.losses = 2
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            worker.hand_over()
        worker.sums.ran("pdf", "done", 1)
    worker.hand_over()
    assert worker.runs == 3


def test_sums_that_no_server_has_seen_are_kept_until_the_worker_has_joined_again(worker):
    worker.sums.ran("pdf", "done", 1)
    worker.scheduler.leave("worker")
    worker.hand_over()
    assert worker.runs == 0
    worker.fleet.join("worker", "pdf")
    worker.sums.drop_doubtful()
    worker.hand_over()
    assert worker.runs == 1


def test_sums_that_may_have_been_counted_are_dropped_when_the_server_has_forgotten_the_worker(worker):
    """The numbers of what was counted went with the worker's row."""
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


def test_a_worker_that_leaves_hands_over_the_rest_before_the_server_forgets_it(worker):
    worker.sums.ran("pdf", "done", 1)
    members = worker.membership()
    members._dispatcher = members._heartbeats = Mock()
    members._reconciler, members._loop = SimpleNamespace(returned=0), Mock()
    members.reporter.flush_all = lambda: worker.sums.ran("pdf", "done", 1)
    assert members.leave()
    assert worker.runs == 2


def test_sums_that_a_server_refuses_keep_the_worker_from_nothing(worker, caplog):
    worker.sums.ran("pdf", "done", 1)
    counts, worker.scheduler.add_metrics = worker.scheduler.add_metrics, Mock(side_effect=redis.ResponseError("no"))
    worker.hand_over()
    assert "refuses the metrics" in caplog.text
    worker.scheduler.add_metrics = counts
    worker.hand_over()
    assert worker.runs == 1


def test_metrics_that_somebody_overwrote_are_made_again_and_count_nothing_twice(worker):
    worker.fleet.publish("waits", "pdf")
    worker.scheduler.client.set(Keys().key("metrics", "pdf"), "overwritten")
    worker.sums.ran("pdf", "done", 1)
    worker.hand_over()
    worker.sums.ran("pdf", "done", 1)
    worker.hand_over()
    assert worker.runs == 1, "the call that met the key is lost"


def test_the_average_goes_by_single_jobs_as_by_many_at_once(worker):
    for took_us, average_us in ((800, 800), (1_600, 900), (100, 800)):
        worker.sums.ran("pdf", "done", took_us)
        worker.hand_over()
        assert worker.average_us == average_us
    for _ in range(20):
        worker.sums.ran("pdf", "done", 5_000)
    worker.hand_over()
    assert worker.average_us == 5_000


def test_more_sums_than_one_call_may_have_go_in_several():
    sums = MetricDeltas()
    for number in range(MAX_METRICS):
        sums.waited(f"type {number}", False, 1)
    pages = [*sums.pages()]
    assert [page.number for page in pages] == [1, 2]
    assert sum(len(page.sums) for page in pages) == MAX_METRICS
    assert max(sum(len(each.grown) for each in page.sums) for page in pages) == MAX_METRICS


def test_no_more_types_are_kept_than_a_worker_may_serve():
    sums = MetricDeltas()
    for number in range(MAX_TYPES + 5):
        sums.ran(f"type {number}", "done", 1)
    assert sum(len(page.sums) for page in sums.pages()) == MAX_TYPES + 5
    assert len(sums._types) == MAX_TYPES


def answered(sums):
    for page in sums.pages():
        sums.answered(page, is_known=True)


def test_the_first_end_of_a_type_is_urgent_and_a_duration_unlike_those_before(monkeypatch):
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
    assert not sums.are_urgent, "a moment ago sums were handed over"
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
def test_only_jobs_that_ended_here_count_a_time_in_a_slot(outcome, how, kind, void):
    claims = claims_of()
    tag = claims.hold(Claim("job", "7", "pdf", 0, 0, b""))
    claims.bind(tag, SimpleNamespace(name="task", id="one"))
    claims.set_outcome(tag, outcome)
    held = claims.end(tag, how)
    held.void = void
    held.ended_s = held.held_since_s + 2
    claims.forget({tag: held})
    ended = [each for page in claims.sums.pages() for each in page.sums]
    assert [(each.type, each.ended, each.took_us) for each in ended] == (
        [("pdf", 1, 2_000_000)] if kind and not void else []
    )
    assert [name for each in ended for name in each.grown] == ([f"{kind} 09", f"{kind} sum"] if ended else [])


def test_a_job_that_was_taken_ahead_waits_until_it_has_a_slot(monkeypatch):
    claims = claims_of()
    now_us, now_s = 5_000_000, 104.0
    claims.clock = SimpleNamespace(now_us=lambda: now_us)
    monkeypatch.setattr("celery_affinity.leases.claims.time", SimpleNamespace(monotonic=lambda: now_s))
    ahead, early = (
        claims.hold(Claim(job, fence, "pdf", 0, enqueued_us, b""))
        for job, fence, enqueued_us in (("ahead", "1", 2_000_000), ("early", "2", 5_000_001))
    )
    now_us = 60_000_000  # the server's clock counts when the job arrives; then this process' own, which never steps
    held = dict(claims.open_claims())
    held[ahead].held_since_s, held[early].held_since_s = 100.0, 104.0
    claims.count_wait(ahead, on_demand=True)
    claims.count_wait(early, on_demand=False)
    claims.count_wait("no claim", on_demand=False)
    now_s = 106.0
    claims.set_outcome(ahead, ACKED)
    claims.forget({ahead: held[ahead]})
    ((found,),) = [page.sums for page in claims.sums.pages()]
    assert found.grown["demand sum"] == 7_000_000
    assert found.grown["queued sum"] == 0
    assert found.took_us == 2_000_000, "not the time ahead of the slot"
