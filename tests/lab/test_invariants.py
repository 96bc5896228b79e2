"""Invariants of every claim in a schedule, checked from the schedule only."""

from dataclasses import replace

import pytest

from celery_affinity.lab import scripts_engine
from celery_affinity.lab.scenario import scenario_of

from .traces import flood, heavy_tail, tenants, workers

WEIGHTED = {"placement": "weighted"}

#: For each trace, several workers per profile with different numbers of slots.
FLEETS = {
    flood: workers(("pdf", 1), ("pdf", 2), ("report", 1), ("report", 2), ("pdf report", 1), ("pdf report", 3)),
    heavy_tail: workers(("thumb", 3), ("thumb", 1), ("video", 2), ("video", 2), ("thumb video", 1), ("thumb video", 4)),
}
NO_WEIGHTS = {f"placement_{each}_weight": "0" for each in ("priority", "locality", "free")}


@pytest.fixture
def exact_schedule(valkey, redis_client):
    def schedule(trace, **settings):
        redis_client.flushdb()
        return scripts_engine.schedule_exact(replace(scenario_of(trace), settings=settings), client=redis_client)

    return schedule


class Moments:
    """The claims of a *schedule* in order, and the running and waiting jobs at each claim."""

    def __init__(self, schedule):
        self.runs = schedule.runs
        self.workers = {each.name: each for each in schedule.scenario.workers}
        self.arrivals = {each.number: each for each in schedule.scenario.arrivals}

    def running(self, nth):
        """Return the runs that hold a slot at claim *nth*."""
        now_us = self.runs[nth].claimed_us
        return [each for each in self.runs[:nth] if each.ended_us > now_us]

    def waiting(self, nth):
        """Return the jobs that wait at claim *nth*, without the claimed job."""
        now_us = self.runs[nth].claimed_us
        later = [self.arrivals[each.number] for each in self.runs[nth + 1 :]]
        return [each for each in later if each.since_us < now_us]


@pytest.mark.parametrize("make", FLEETS)
def test_zero_placement_weights_equal_placement_by_idleness(exact_schedule, make):
    trace = replace(make(200), workers=tuple(FLEETS[make]))
    idle = exact_schedule(trace).runs
    assert exact_schedule(trace, **WEIGHTED, **NO_WEIGHTS).runs == idle
    assert exact_schedule(trace, **WEIGHTED).runs != idle


@pytest.mark.parametrize("make", FLEETS)
def test_specialist_gets_the_job_before_versatile_workers(exact_schedule, make):
    moments = Moments(exact_schedule(replace(make(200), workers=tuple(FLEETS[make])), **WEIGHTED))
    for nth, run in enumerate(moments.runs):
        type_, busy = moments.arrivals[run.number].type, [each.worker for each in moments.running(nth)]
        free = {
            len(each.types)
            for each in moments.workers.values()
            if type_ in each.types and busy.count(each.name) < each.slots
        }
        assert len(moments.workers[run.worker].types) == min(free), run


def test_tenant_below_its_minimum_is_claimed_first(exact_schedule):
    minima = {"t1": 1, "t2": 1}
    quotas = " ".join(f"{name}=max:none,min:{least}" for name, least in minima.items())
    moments = Moments(exact_schedule(tenants(300), tenants=quotas))
    passed_over = 0
    for nth, run in enumerate(moments.runs):
        held = [moments.arrivals[each.number].tenant for each in moments.running(nth)]
        tenant = moments.arrivals[run.number].tenant
        if held.count(tenant) >= minima.get(tenant, 0):
            waiting = {each.tenant for each in moments.waiting(nth)}
            assert not [name for name, least in minima.items() if name in waiting and held.count(name) < least], run
        else:
            passed_over += len(moments.waiting(nth)) > 0
    assert passed_over > 10, "other jobs wait while a tenant is below its minimum"
