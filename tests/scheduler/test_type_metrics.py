"""Metrics of types: published, waited, ran, ended; and their costs."""

import pytest

from celery_affinity.reports.status import ComparedPace, Report
from celery_affinity.reports.type_metrics import metrics_of
from celery_affinity.scheduler.messages import EndArguments
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.constants import LARGEST_BUCKET, METRICS_KEPT_S, PACE_AVERAGED_OVER
from celery_affinity.schema.histograms import histogram_of
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.counting import Counting
from ..support.scripted_fleet import ScriptedFleet

#: Maximum number of commands per invocation. A feature's additional commands for jobs without it are added here, and to
#: the table in docs/internals/measurements.md.
BUDGET = {"publish": 7, "publish that is placed": 20, "release that claims": 17}


def metrics(fleet, type_="pdf"):
    fleet.hand_over()
    row = fleet.scheduler.client.hgetall(Keys().key("metrics", type_))
    return {name.decode(): value.decode() for name, value in row.items()}


def test_waits_and_runs_are_counted_with_their_times(fleet):
    fleet.join("worker", "pdf")
    for name in ("a", "b"):
        fleet.publish(name, "pdf", on_demand=name == "b")
    (first,) = fleet.inbox("worker")
    fleet.scheduler.advance(3)
    (second,) = fleet.end("worker", first)
    fleet.scheduler.advance(0.5)
    fleet.end("worker", second, outcome="failed")
    found = metrics(fleet)
    assert found.pop("published") == "2"
    assert histogram_of(found, "queued").sum_s == 0
    assert histogram_of(found, "demand").sum_s == histogram_of(found, "done").sum_s == 3
    assert histogram_of(found, "failed").sum_s == 0.5
    assert all(histogram_of(found, kind).number == 1 for kind in ("queued", "demand", "done", "failed"))


def test_wait_longer_than_every_bucket_is_in_the_last(fleet):
    """It follows the largest bucket; Prometheus calls it "+Inf"."""
    fleet.publish("a", "pdf")
    fleet.scheduler.advance(30 * 24 * 3600)
    fleet.join("worker", "pdf")
    fleet.inbox("worker")
    assert metrics(fleet)[f"queued {LARGEST_BUCKET + 1}"] == "1"


def test_metrics_outlive_a_types_workers_by_a_day(fleet, redis_client):
    fleet.join("worker", "pdf")
    fleet.publish("a", "pdf")
    key = Keys().key("metrics", "pdf")
    assert redis_client.ttl(key) == -1
    fleet.scheduler.leave("worker")
    assert METRICS_KEPT_S - 60 < redis_client.ttl(key) <= METRICS_KEPT_S
    fleet.join("another", "pdf")
    assert redis_client.ttl(key) == -1


def test_job_that_outlives_its_types_workers_leaves_expiring_metrics(fleet, redis_client):
    fleet.join("worker", "pdf")
    fleet.publish("a", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.join("worker", "excel")
    redis_client.delete(Keys().key("metrics", "pdf"))
    fleet.end("worker", claim)
    fleet.hand_over("worker")
    assert 0 < redis_client.ttl(Keys().key("metrics", "pdf")) <= METRICS_KEPT_S


def test_jobs_of_an_unserved_type_have_no_metrics(fleet):
    fleet.publish("a", "pdf")
    fleet.scheduler.revoke(["task-a"], [], keep_s=60)
    assert metrics(fleet) == {}


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in one call"])
def test_jobs_published_to_an_unserved_type_are_not_counted(fleet, redis_client, together):
    names = iter("abcdefghijklmnop")

    def publish():
        """Publish two jobs per type. Return the counted pdf jobs, the uncounted jobs, and if excel has metrics."""
        jobs = [NewJob(next(names), type_, "m") for type_ in ("pdf", "excel", "pdf", "excel")]
        for some in [jobs] if together else [[job] for job in jobs]:
            fleet.scheduler.publish(*some)
        reader = Reader(redis_client, Keys())
        counted = [each.published for each in metrics_of(reader, ["pdf"])]
        return counted, int(reader.hash("counters")["unserved"]), redis_client.exists(Keys().key("metrics", "excel"))

    assert publish() == ([], 4, 0)
    fleet.join("worker", "pdf", slots=0)
    fleet.join("worker", "pdf", slots=1)
    assert publish() == ([2], 6, 0)
    fleet.scheduler.leave("worker")
    assert publish() == ([2], 10, 0)
    fleet.join("another", "pdf")
    assert publish() == ([4], 12, 0)


def test_pace_compares_a_workers_run_times_with_others(fleet):
    for worker in ("quick", "slow"):
        fleet.join(worker, "pdf")
    ends_at, took_s, held = {}, {"quick": 1, "slow": 6}, {}
    for number in range(300):
        fleet.publish(f"a{number}", "pdf")
    now_s = 0
    for worker in took_s:
        (held[worker],) = fleet.inbox(worker)
        ends_at[worker] = took_s[worker]
    for _ in range(200):
        worker = min(ends_at, key=ends_at.get)
        fleet.scheduler.advance(ends_at[worker] - now_s)
        now_s = ends_at[worker]
        (held[worker],) = fleet.end(worker, held[worker])
        ends_at[worker] += took_s[worker]
    found = workers(fleet)
    assert found["slow@host"].pace == ComparedPace("pdf", pytest.approx(6, rel=0.01), is_slow=True)
    assert found["quick@host"].pace == ComparedPace("pdf", pytest.approx(1 / 6, rel=0.01), is_slow=False)


def workers(fleet):
    fleet.hand_over()
    return {each.name: each for each in Report(Reader(fleet.scheduler.client, Keys())).status().workers}


def run(fleet, worker, type_, seconds):
    """Run a job of *type_* on *worker*, the only free worker."""
    fleet.scheduler.publish(*fleet.made([f"job{fleet.scheduler.now_us}"], type_))
    (claim,) = fleet.inbox(worker)
    fleet.scheduler.advance(seconds)
    fleet.end(worker, claim)


def test_only_worker_of_a_type_is_never_slow(fleet):
    fleet.join("only", "pdf")
    for number in range(2 * PACE_AVERAGED_OVER):
        run(fleet, "only", "pdf", 0.2 if number < PACE_AVERAGED_OVER else 600)
    assert workers(fleet)["only@host"].pace is None


def test_worker_of_a_long_running_type_is_not_slow(fleet):
    fleet.join("quick", "mail")
    fleet.join("long", "pdf")
    for _ in range(PACE_AVERAGED_OVER):
        run(fleet, "quick", "mail", 0.2)
        run(fleet, "long", "pdf", 60)
    assert {each.pace for each in workers(fleet).values()} == {None}


def test_each_function_keeps_its_command_budget(redis_client):
    fleet = ScriptedFleet(Counting(redis_client, Keys()))
    scheduler, costs = fleet.scheduler, {name: [] for name in BUDGET}

    def note(name):
        costs[name].append(sum(scheduler.calls[-1][1].values()))

    fleet.join("worker", "pdf")
    for number in range(60):
        fleet.publish(f"a{number}", "pdf")
        note("publish")
    (claim,) = fleet.inbox("worker")
    for number in range(40):
        ends = [EndArguments(claim.job_id, claim.fence, "acked")]
        (claim,) = scheduler.release_and_claim("worker", acks=[], ends=ends, sequence=number, inline=True)
        note("release that claims")
    fleet.join("other", "excel", slots=40)
    for number in range(40):
        scheduler.publish(NewJob(f"b{number}", "excel", "message", task_id=f"t{number}"))
        note("publish that is placed")
    assert {name: min(each) for name, each in costs.items()} == BUDGET
