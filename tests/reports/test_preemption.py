"""Reports on preemption: the victim, the waiting job of a tenant below its minimum, and the metrics."""

import click
import pytest

from celery_affinity.cli import explain_text
from celery_affinity.clock import SECOND_US
from celery_affinity.reports.blockers import PreemptedJob, StopOrder
from celery_affinity.reports.metrics import metrics_text, read_metrics
from celery_affinity.reports.status import Report
from celery_affinity.reports.tenants import TENANTS

from ..support.asking import why

OF_ACME, OF_BETA = "key=tenant%3Aacme quota=settings preemptible=1", "key=tenant%3Abeta quota=settings"


@pytest.fixture
def claim(fleet):
    """The claim of a running job that was ordered to stop 6 s ago, for a tenant below its minimum."""
    key, client = fleet.scheduler.keys.key, fleet.scheduler.client
    fleet.scheduler.configure({"tenants": "beta=max:none,min:2", "worker_timeout_us": str(10**15)})
    fleet.join("pdf2", "pdf")
    client.hset(key("worker", "pdf2"), "stops", "force")
    fleet.publish("a1$", "pdf", rules=OF_ACME)
    (claim,) = fleet.inbox("pdf2")
    client.hset(key("job", "a1$"), "started", fleet.now_us)
    fleet.publish("b1$", "pdf", rules=OF_BETA)
    fleet.scheduler.advance(20)
    fleet.scheduler.tick()
    fleet.scheduler.advance(6)
    return claim


def lines_of(found):
    """Return what the command prints, by the first word of each line."""
    lines = (line.split(maxsplit=1) for line in click.unstyle(explain_text.explanation_text(found)).splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2}


def test_waiting_job_shows_its_victim_and_the_remaining_grace(reader, claim):
    found = why(reader, "b1$")
    assert found.stops == [StopOrder("task-a1$", "pdf2@host", "beta", 2, 4.0, 10.0)]
    assert found.stopped is None
    assert lines_of(found)["preempting"] == "task-a1$ on pdf2@host, 4 s of 10 s grace left"


def test_victim_shows_the_tenant_it_is_stopped_for(reader, claim):
    found = why(reader, "a1$")
    assert found.stops == [StopOrder("task-a1$", "pdf2@host", "beta", 2, 4.0, 10.0)]
    assert lines_of(found)["stops"] == "for tenant beta, below its minimum of 2: 4 s of 10 s grace left"


def test_remaining_grace_is_never_negative(fleet, reader, claim):
    fleet.scheduler.advance(60)
    assert [each.left_s for each in why(reader, "b1$").stops] == [0.0]


def test_preempted_job_shows_time_worker_duration_and_tenant(fleet, reader, claim):
    at_s = fleet.now_us / SECOND_US
    fleet.end("pdf2", claim, outcome="preempted 41000000")
    found = why(reader, "a1$")
    assert (found.state, found.stops) == ("pending", [])
    assert found.stopped == PreemptedJob(at_s, "pdf2@host", 41.0, "beta", 2, 1, 3)
    on, _, said = lines_of(found)["stopped"].partition(" at ")
    assert on == "on pdf2@host"
    assert said.endswith("(ran 41 s) for tenant beta, below its minimum of 2; 1 of 3")


def test_preempted_job_omits_a_deleted_minimum(fleet, reader, claim):
    fleet.end("pdf2", claim, outcome="preempted 41000000")
    fleet.scheduler.configure({"tenants": ""})
    assert lines_of(why(reader, "a1$"))["stopped"].endswith("(ran 41 s) for tenant beta; 1 of 3")


def test_other_jobs_show_no_preemption(fleet, reader, claim):
    fleet.publish("c1", "pdf")
    fleet.publish("a2$", "pdf", rules=OF_ACME)
    for job in ("c1", "a2$"):
        assert (why(reader, job).stops, why(reader, job).stopped) == ([], None)


def test_corrupt_stop_order_is_not_shown(fleet, reader, claim):
    fleet.scheduler.client.hset(
        fleet.scheduler.keys.key("stop_orders"), mapping={"a1$": "nonsense", "x": "1 2 3 4 x y"}
    )
    assert (why(reader, "a1$").stops, why(reader, "b1$").stops) == ([], [])


def test_metrics_count_preemptions_and_their_lost_seconds(fleet, reader, claim):
    assert "celery_affinity_preempted_total 0" in metrics_text(read_metrics(reader))
    fleet.end("pdf2", claim, outcome="preempted 41500000")
    text = metrics_text(read_metrics(reader))
    assert "celery_affinity_preempted_total 1\n" in text
    assert "celery_affinity_preempted_seconds_total 41.5\n" in text


def test_tenants_report_counts_jobs_being_preempted(fleet, reader, claim):
    (beta,) = (each for each in Report(reader).status().tenants if each.name == "beta")
    assert beta.preempting == 1
    assert "its jobs start first, 1 job of others being stopped" in TENANTS.text([beta])
    fleet.end("pdf2", claim, outcome="preempted 41000000")
    assert [each.preempting for each in Report(reader).status().tenants if each.name == "beta"] == [0]


def test_waiting_job_shows_why_no_job_is_preempted(fleet, reader, claim):
    assert why(reader, "b1$").why_no_stop is None
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key
    client.hdel(key("stop_orders"), "a1$")
    assert "no preemptible job (acme) runs in a slot that serves the type" in why(reader, "b1$").why_no_stop
    fleet.scheduler.configure({"tenants": "beta=max:none,min:2 acme=max:none,min:1"})
    said = "no job: the tenants of preemptible jobs have no more slots than their minimum (acme)"
    assert lines_of(why(reader, "b1$"))["preempting"] == said
    fleet.end("pdf2", claim)
    fleet.publish("a2$", "pdf", rules=OF_BETA)
    assert why(reader, "a2$").why_no_stop is None, "it has not waited for long enough"
    fleet.scheduler.advance(20)
    assert why(reader, "a2$").why_no_stop == "no job: no preemptible job (preemptible=True) has a slot"
