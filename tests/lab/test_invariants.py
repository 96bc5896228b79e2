"""What holds of each claim of a trace, whatever comes: looked up in the schedule, and not asked of any engine."""

from dataclasses import replace

import pytest

from celery_affinity.lab import scripts_engine
from celery_affinity.lab.scenario import scenario_of

from .traces import flood, heavy_tail, tenants, workers

WEIGHTED = {"placement": "weighted"}

#: For each trace several workers of each profile, with more slots or fewer.
FLEETS = {
    flood: workers(("pdf", 1), ("pdf", 2), ("report", 1), ("report", 2), ("pdf report", 1), ("pdf report", 3)),
    heavy_tail: workers(("thumb", 3), ("thumb", 1), ("video", 2), ("video", 2), ("thumb video", 1), ("thumb video", 4)),
}
NO_WEIGHTS = {f"placement_{each}_weight": "0" for each in ("priority", "locality", "free")}


@pytest.fixture
def judged(valkey, redis_client):
    def schedule(trace, **settings):
        redis_client.flushdb()
        return scripts_engine.schedule_exact(replace(scenario_of(trace), settings=settings), client=redis_client)

    return schedule


class Moments:
    """The claims of a *schedule*, in their order, and what held when each of them was made."""

    def __init__(self, schedule):
        self.runs = schedule.runs
        self.workers = {each.name: each for each in schedule.scenario.workers}
        self.arrivals = {each.number: each for each in schedule.scenario.arrivals}

    def running(self, nth):
        """Return the runs that have a slot when the claim *nth* is made."""
        now_us = self.runs[nth].claimed_us
        return [each for each in self.runs[:nth] if each.ended_us > now_us]

    def waiting(self, nth):
        """Return the jobs that wait when the claim *nth* is made, without its own."""
        now_us = self.runs[nth].claimed_us
        later = [self.arrivals[each.number] for each in self.runs[nth + 1 :]]
        return [each for each in later if each.since_us < now_us]


@pytest.mark.parametrize("make", FLEETS)
def test_points_of_no_weight_choose_as_idleness_does(judged, make):
    trace = replace(make(200), workers=tuple(FLEETS[make]))
    idle = judged(trace).runs
    assert judged(trace, **WEIGHTED, **NO_WEIGHTS).runs == idle
    assert judged(trace, **WEIGHTED).runs != idle


@pytest.mark.parametrize("make", FLEETS)
def test_no_versatile_worker_gets_a_job_while_a_specialist_is_free(judged, make):
    moments = Moments(judged(replace(make(200), workers=tuple(FLEETS[make])), **WEIGHTED))
    for nth, run in enumerate(moments.runs):
        type_, busy = moments.arrivals[run.number].type, [each.worker for each in moments.running(nth)]
        free = {
            len(each.types)
            for each in moments.workers.values()
            if type_ in each.types and busy.count(each.name) < each.slots
        }
        assert len(moments.workers[run.worker].types) == min(free), run


def test_nobody_goes_before_a_tenant_below_its_minimum(judged):
    minima = {"t1": 1, "t2": 1}
    moments = Moments(
        judged(tenants(300), tenants=" ".join(f"{name}=max:none,min:{least}" for name, least in minima.items()))
    )
    passed_over = 0
    for nth, run in enumerate(moments.runs):
        held = [moments.arrivals[each.number].tenant for each in moments.running(nth)]
        who = moments.arrivals[run.number].tenant
        if held.count(who) >= minima.get(who, 0):
            waiting = {each.tenant for each in moments.waiting(nth)}
            assert not [name for name, least in minima.items() if name in waiting and held.count(name) < least], run
        else:
            passed_over += len(moments.waiting(nth)) > 0
    assert passed_over > 10, "somebody waits meanwhile, or this says nothing"
