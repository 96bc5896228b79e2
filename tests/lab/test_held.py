"""Jobs that held slots when a record began: small fleets with claims calculated by hand, in both engines."""

import pytest

from celery_affinity.lab import fast_engine, scripts_engine
from celery_affinity.lab.replay import comparable_jobs, decided_jobs, recorded_jobs
from celery_affinity.lab.scenario import scenario_of
from celery_affinity.lab.trace import Trace

from ..support.lab_scenarios import S, claims, traced, worker

RESERVE = {"reserve": "video:queued=1", "rarity_weight": "0"}


@pytest.fixture
def replayed(valkey, redis_client):
    """Return a function that replays jobs in an engine and returns the replayed and the recorded claims."""

    def replay(engine, workers, *jobs, **settings):
        trace = Trace(100 * S, tuple(workers), jobs, settings)
        scenario = scenario_of(trace)
        if engine == "twin":
            schedule = fast_engine.schedule_fast(scenario)
        else:
            schedule = scripts_engine.schedule_exact(scenario, client=redis_client)
        decided = decided_jobs(comparable_jobs(schedule, set(range(len(jobs))), trace.length_us))
        return claims(decided), claims(decided_jobs(recorded_jobs(trace, scenario)))

    return replay


def on(name, type_, since_s, claimed_s, ended_s, **fields):
    """Return a job that the worker *name* ran from *claimed_s* to *ended_s*."""
    return traced(type_, since_s, claimed_s, ended_s, worker=name, **fields)


@pytest.mark.parametrize("engine", ["twin", "judge"])
def test_key_is_held_by_a_job_older_than_the_record(replayed, engine):
    jobs = [
        on("a", "pdf", -9, -3, 2, exclusive="k"),  # has the key and a slot of a until 2
        on("b", "xls", -9, -1, 4),  # has the only slot of b
        on("a", "pdf", -2, 2, 3, exclusive="k"),  # a has a free slot, but the key is held: not before 2
        on("a", "pdf", 0, 0, 3),  # takes the free slot of a on arrival
        on("a", "pdf", 1, 3, 4),  # all slots are taken; at 2 the older third job is claimed first; at 3 two end
    ]
    fleet = [worker("a", slots=2), worker("b", "pdf", "xls")]
    theirs, ours = replayed(engine, fleet, *jobs)
    assert theirs == [(3, "a", 0, 3), (2, "a", 2, 3), (4, "a", 3, 4)]
    assert sorted(theirs) == sorted(ours)


@pytest.mark.parametrize("engine", ["twin", "judge"])
def test_rate_counts_a_start_before_the_record(replayed, engine):
    rate = {"rate": "r", "rate_limit": "1/s"}
    jobs = [
        on("w", "pdf", -9, -0.4, 0.2, **rate),  # the next job can start one second later, at 0.6
        on("w", "pdf", 0, 0.6, 0.7, **rate),
        on("w", "pdf", 0, 1.6, 1.7, **rate),  # and so on
    ]
    theirs, _ = replayed(engine, [worker("w", slots=2)], *jobs)
    assert theirs == [(1, "w", 0.6, 0.7), (2, "w", 1.6, 1.7)]


@pytest.mark.parametrize("engine", ["twin", "judge"])
def test_type_limit_takes_no_slot_from_running_jobs(replayed, engine):
    jobs = [
        on("w", "pdf", -9, -3, 2),
        on("w", "pdf", -9, -2, 4),  # both run, though the limit is now one
        on("w", "pdf", 1, 4, 5),  # a slot is free all the time; at 2 one still runs, at 4 none does
    ]
    theirs, _ = replayed(engine, [worker("w", slots=3)], *jobs, limits="type%3Apdf=1")
    assert theirs == [(2, "w", 4, 5)]


def test_reserve_blocks_new_jobs_but_not_running_ones(replayed):
    jobs = [
        on("v", "video", -9, -5, 2),  # had its slot while three were free
        on("a", "video", -9, -4, 3),  # and this one while two were
        on("v", "video", -3, 2, 4),  # the reserve keeps the only free slot of a; at 2 two slots are free
        on("a", "pdf", 1, 1, 1.5),  # takes the reserved slot immediately
    ]
    fleet = [worker("v", "video"), worker("a", "video", "pdf", slots=2)]
    theirs, _ = replayed("judge", fleet, *jobs, **RESERVE)
    assert theirs == [(3, "a", 1, 1.5), (2, "v", 2, 4)]


def test_slots_freed_in_one_call_become_free_together(replayed):
    jobs = [
        on("v", "video", -9, -5, 9),
        on("a", "pdf", -9, -4, 2),
        on("a", "pdf", -9, -3, 2),  # both slots of a are free at 2: one more than the reserve keeps
        on("a", "video", -1, 2, 3),  # so the video starts; it would not after two separate ends
        on("a", "pdf", 1, 2, 3),  # takes the slot that is reserved for its type
    ]
    fleet = [worker("v", "video"), worker("a", "video", "pdf", slots=2)]
    theirs, _ = replayed("judge", fleet, *jobs, **RESERVE)
    assert theirs == [(3, "a", 2, 3), (4, "a", 2, 3)]
    apart = [*jobs[:2], on("a", "pdf", -9, -3, 2.000001), *jobs[3:]]
    theirs, _ = replayed("judge", fleet, *apart, **RESERVE)
    assert [claim[0] for claim in theirs] == [4, 3], "the video has to wait until the pdf has ended as well"
