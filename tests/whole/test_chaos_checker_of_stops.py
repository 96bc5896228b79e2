"""The checker of the chaos suite finds wrong preemptions of running jobs in synthetic histories."""

import pytest

from .chaos.synthetic import OTHER, WORKER, SyntheticHistory

BATCH = "tenant:batch"


class Stops(SyntheticHistory):
    """Two jobs of a tenant with a minimum of 1 run; at 20 s, one must stop for a job of another tenant."""

    def __init__(self, *, tenants="acme=max:none,min:1 batch=max:none,min:1", others=1, waits=True):
        super().__init__()
        self.happen("limits", "none", 1, tenants=tenants, began=0.9, before=0, fence=0)
        for number in range(others):
            self.publish(f"other{number}", at=10, tenant="batch")
            self.run(f"other{number}", 11, 40, keys=BATCH, fence=10 + number)
        if waits:
            self.publish("waits", at=12, tenant="acme")
            self.run("waits", 21, 22, keys="tenant:acme", fence=50)
        self.publish("victim", at=10, name="stoppable", tenant="batch")

    def stop(self, fence, start, asked, end, outcome="Preempted", **facts):
        self.run("victim", start, end, **{"keys": BATCH, "fence": fence, "preemptible": 1, "outcome": outcome, **facts})
        run = next(each.facts["run"] for each in reversed(self.events) if each.kind == "start")
        self.happen("asked", run, asked)

    def violations(self, **remains):
        return self.checked(**{"preemptions": {}, **remains}).violations


def rerun(history):
    history.run("victim", 30, 35, keys=BATCH, fence=60, preemptible=1)
    return history


@pytest.mark.parametrize(
    ("end", "outcome"), [(20.1, "Preempted"), (20.7, "GreenletExit"), (None, ""), (20.7, "done"), (20.2, "done")]
)
def test_allowed_stop_explains_a_second_run(end, outcome):
    history = Stops()
    history.stop(20, 15, 20, end, outcome)
    if end != 20.2:
        rerun(history)
    verdict = history.checked()
    assert (verdict.stops, verdict.violations) == (1, [])
    if end != 20.2:
        assert verdict.again == {"it was stopped for another tenant": 1}


def test_stopped_job_must_run_again():
    history = Stops()
    history.stop(20, 15, 20, 20.1)
    (violation,) = history.violations()
    assert "neither ended nor pending" in violation
    (violation,) = history.violations(states={"victim": "dead"}, reasons={"victim": "lost"})
    assert "neither ended nor pending" in violation


def test_run_preempted_without_request_is_a_violation():
    history = Stops()
    history.run("victim", 15, 20, keys=BATCH, fence=20, preemptible=1, outcome="Preempted")
    violations = rerun(history).violations()
    assert any("a task ended in {'Preempted'}" in each for each in violations)


@pytest.mark.parametrize("facts", [{"keys": ""}, {"keys": "one"}])
def test_job_without_tenant_must_not_be_stopped(facts):
    history = Stops()
    history.stop(20, 15, 20, 20.1, **facts)
    assert any("without preemptible=True and a tenant" in each for each in rerun(history).violations())


def test_stop_must_not_bring_a_tenant_below_its_minimum():
    history = Stops(others=0)
    history.stop(20, 15, 20, 20.1)
    (violation,) = rerun(history).violations()
    assert violation.startswith("its tenant had 1 runs at most, with a minimum of 1")
    history.happen("limits", "none", 18, tenants="acme=max:none,min:1", began=17.9, before=0, fence=0)
    assert history.violations() == []


def test_runs_of_a_dead_worker_may_still_count():
    history = Stops(others=0)
    history.publish("lost", at=10, tenant="batch")
    history.run("lost", 11, keys=BATCH, fence=11, worker=OTHER, pid=OTHER)
    history.happen("kill", "worker", 17, target=OTHER)
    history.run("lost", 24, 25, keys=BATCH, fence=61, worker=WORKER)
    history.stop(20, 15, 20, 20.1)
    assert rerun(history).violations() == []


@pytest.mark.parametrize(
    "more", [{"waits": False}, {"tenants": "batch=max:none,min:1"}, {"tenants": "acme=max:none,min:0"}]
)
def test_stop_needs_a_waiting_tenant_below_its_minimum(more):
    history = Stops(**more)
    history.stop(20, 15, 20, 20.1)
    (violation,) = rerun(history).violations()
    assert violation.startswith("no other tenant was below its minimum with a waiting job")


def test_stop_for_a_tenant_at_its_minimum_is_a_violation():
    history = Stops()
    history.publish("has", at=10, tenant="acme")
    history.run("has", 11, 40, keys="tenant:acme", fence=19)
    history.stop(20, 15, 20, 20.1)
    (violation,) = rerun(history).violations()
    assert violation.startswith("no other tenant was below its minimum")


def test_stops_are_limited_and_not_counted_as_deliveries():
    history = Stops()
    for number in range(3):
        history.stop(20 + number, 18 + number / 5, 18.1 + number / 5, 18.15 + number / 5)
    rerun(history)
    assert history.violations(preemptions={"victim": 3}, deliveries={"victim": 0}) == []
    (violation,) = history.violations(preemptions={"victim": 3}, deliveries={"victim": 1})
    assert violation.startswith("a stop counts as a delivery: 1")
    (violation,) = history.violations(preemptions={"victim": 2})
    assert violation.startswith("3 stops, but 2 counted by the server")
    history.stop(30, 19, 19.1, 19.15)
    (violation,) = history.violations(preemptions={"victim": 4})
    assert violation.startswith("stopped 4 times")


def test_stopped_job_must_not_fail():
    history = Stops()
    history.stop(20, 15, 20, None, "")
    history.happen("failed", "victim", 21, error="WorkerLostError")
    (violation,) = rerun(history).violations()
    assert violation.startswith("failed with WorkerLostError, but was only stopped")


@pytest.mark.parametrize(("known", "is_fine"), [(1, True), (2, False)])
def test_run_that_succeeds_after_its_grace_is_not_stopped(known, is_fine):
    history = Stops()
    history.stop(20, 15, 20, 20.1)
    history.stop(30, 20.5, 21, 23, "done")
    assert (history.violations(preemptions={"victim": known}) == []) is is_fine
