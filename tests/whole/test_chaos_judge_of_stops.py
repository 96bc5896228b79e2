"""The judge of the chaos suite sees stops of running jobs that should not have been, in stories that never were."""

import pytest

from .chaos.story import OTHER, WORKER, Story

BATCH = "tenant:batch"


class Stops(Story):
    """Two jobs of a tenant with a minimum of one run; at 20 one of them is asked to stop for a job of another."""

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
        return self.judged(**{"preemptions": {}, **remains}).violations


def goes_on(story):
    story.run("victim", 30, 35, keys=BATCH, fence=60, preemptible=1)
    return story


@pytest.mark.parametrize(
    ("end", "outcome"), [(20.1, "Preempted"), (20.7, "GreenletExit"), (None, ""), (20.7, "done"), (20.2, "done")]
)
def test_a_just_stop_is_fine_and_explains_another_run_but_one_that_ended_before(end, outcome):
    story = Stops()
    story.stop(20, 15, 20, end, outcome)
    if end != 20.2:
        goes_on(story)
    verdict = story.judged()
    assert (verdict.stops, verdict.violations) == (1, [])
    if end != 20.2:
        assert verdict.again == {"it was stopped for another tenant": 1}


def test_a_job_that_was_stopped_and_never_ran_again_is_lost():
    story = Stops()
    story.stop(20, 15, 20, 20.1)
    (violation,) = story.violations()
    assert "neither ended nor pending" in violation
    (violation,) = story.violations(states={"victim": "dead"}, reasons={"victim": "lost"})
    assert "neither ended nor pending" in violation


def test_a_run_that_ends_as_stopped_and_was_not_asked_is_a_violation():
    story = Stops()
    story.run("victim", 15, 20, keys=BATCH, fence=20, preemptible=1, outcome="Preempted")
    violations = goes_on(story).violations()
    assert any("a task ended in {'Preempted'}" in each for each in violations)


@pytest.mark.parametrize("facts", [{"keys": ""}, {"keys": "one"}])
def test_a_job_without_a_tenant_is_never_asked(facts):
    story = Stops()
    story.stop(20, 15, 20, 20.1, **facts)
    assert any("without preemptible=True and a tenant" in each for each in goes_on(story).violations())


def test_no_tenant_is_brought_below_its_minimum():
    story = Stops(others=0)
    story.stop(20, 15, 20, 20.1)
    (violation,) = goes_on(story).violations()
    assert violation.startswith("its tenant had 1 runs at most, with a minimum of 1")
    story.happen("limits", "none", 18, tenants="acme=max:none,min:1", began=17.9, before=0, fence=0)
    assert story.violations() == []


def test_a_dead_workers_runs_may_count_for_the_server_still():
    story = Stops(others=0)
    story.publish("lost", at=10, tenant="batch")
    story.run("lost", 11, keys=BATCH, fence=11, worker=OTHER, pid=OTHER)
    story.happen("kill", "worker", 17, target=OTHER)
    story.run("lost", 24, 25, keys=BATCH, fence=61, worker=WORKER)
    story.stop(20, 15, 20, 20.1)
    assert goes_on(story).violations() == []


@pytest.mark.parametrize(
    "more", [{"waits": False}, {"tenants": "batch=max:none,min:1"}, {"tenants": "acme=max:none,min:0"}]
)
def test_nobody_is_stopped_for_nobody(more):
    story = Stops(**more)
    story.stop(20, 15, 20, 20.1)
    (violation,) = goes_on(story).violations()
    assert violation.startswith("no other tenant was below its minimum, with a job that waited")


def test_nobody_is_stopped_for_a_tenant_that_has_its_minimum():
    story = Stops()
    story.publish("has", at=10, tenant="acme")
    story.run("has", 11, 40, keys="tenant:acme", fence=19)
    story.stop(20, 15, 20, 20.1)
    (violation,) = goes_on(story).violations()
    assert violation.startswith("no other tenant was below its minimum")


def test_no_job_is_stopped_more_often_than_the_setting_says_and_no_stop_counts_as_a_delivery():
    story = Stops()
    for number in range(3):
        story.stop(20 + number, 18 + number / 5, 18.1 + number / 5, 18.15 + number / 5)
    goes_on(story)
    assert story.violations(preemptions={"victim": 3}, deliveries={"victim": 0}) == []
    (violation,) = story.violations(preemptions={"victim": 3}, deliveries={"victim": 1})
    assert violation.startswith("a stop counts as a delivery: 1")
    (violation,) = story.violations(preemptions={"victim": 2})
    assert violation.startswith("3 stops, of which the server knows 2")
    story.stop(30, 19, 19.1, 19.15)
    (violation,) = story.violations(preemptions={"victim": 4})
    assert violation.startswith("stopped 4 times")


def test_nobody_hears_of_a_stop():
    story = Stops()
    story.stop(20, 15, 20, None, "")
    story.happen("failed", "victim", 21, error="WorkerLostError")
    (violation,) = goes_on(story).violations()
    assert violation.startswith("failed with WorkerLostError, and was only stopped")


@pytest.mark.parametrize(("known", "is_fine"), [(1, True), (2, False)])
def test_a_run_that_goes_on_beyond_its_grace_and_ends_well_is_no_stop(known, is_fine):
    story = Stops()
    story.stop(20, 15, 20, 20.1)
    story.stop(30, 20.5, 21, 23, "done")
    assert (story.violations(preemptions={"victim": known}) == []) is is_fine
