"""Which of many profiles has the free slot that a job gets, on a real server."""

import random
from dataclasses import replace

import pytest

from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import DEFAULTS, shared_settings

from ..conformance.reference.placement import FreeWorker, choose_by_points, choose_worker, parse_placement
from ..support.counting import Counting

WEIGHTED = {"placement": "weighted"}
SAMPLED = {"placement": "weighted", "sample_size": "3"}
TYPES = [f"own{number}" for number in range(12)]


def joinings(drawn, profiles, free):
    """Yield *profiles* workers of "pdf" and other types, most of them with their own profile.

    *free*: the share of workers with a slot, or a range: workers with that many types have one.
    """
    for number in range(profiles):
        types = ["pdf", *drawn.sample(TYPES, drawn.randint(0, 4))]
        is_free = len(types) in free if isinstance(free, range) else drawn.random() < free
        yield JoinArguments(f"w{number:03}", f"w{number:03}@host", types, int(is_free))


def as_free(joining, since_us):
    return FreeWorker(joining.worker, frozenset(joining.types), since_us, profile=joining.profile)


@pytest.mark.parametrize(
    ("settings", "open_ones"),
    [
        *((settings, each) for settings in ({}, WEIGHTED) for each in (0.0, 0.03, 0.1, 0.5, range(3, 4), range(4, 9))),
        (SAMPLED, range(4, 9)),
    ],
    ids=lambda each: " ".join(each.values()) if isinstance(each, dict) else str(each),
)
@pytest.mark.parametrize("in_one_call", [True, False], ids=["one call", "a call each"])
def test_most_specialised_free_slot_is_found_among_many_profiles(fleet, redis_client, settings, open_ones, in_one_call):
    fleet.scheduler.configure(settings)
    drawn = random.Random(f"{settings} {open_ones} {in_one_call}")
    free = []
    for joining in joinings(drawn, 150, open_ones):
        fleet.scheduler.advance(1)
        fleet.scheduler.join(joining, shared_settings(Settings()))
        if joining.slots:
            free.append(as_free(joining, fleet.scheduler.now_us))
    by = parse_placement({**DEFAULTS, **settings})
    wanted = [drawn.choice(["pdf", drawn.choice(TYPES)]) for _ in range(10)]
    if in_one_call:
        fleet.scheduler.pause("*")
    for number, type_ in enumerate(wanted):
        fleet.scheduler.advance(1)
        fleet.publish(f"job{number}", type_)
    if in_one_call:
        fleet.scheduler.configure({"priority_percentage": "0"})  # the oldest job is first
        fleet.scheduler.resume("*")
    for number, type_ in enumerate(wanted):
        job_id = f"job{number}"
        best = choose_by_points(type_, free, job_id, by) if by else choose_worker(type_, free)
        holder = redis_client.hget(fleet.scheduler.keys.key("job", job_id), "worker")
        assert (holder and holder.decode()) == (best.id if best else None), job_id
        free = [each for each in free if each is not best]


@pytest.mark.parametrize("sample_size", [1, 10, 30, 0])
def test_sample_of_many_equal_workers_is_compared(fleet, redis_client, sample_size):
    settings = {**WEIGHTED, "sample_size": str(sample_size)}
    fleet.scheduler.configure(settings)
    drawn = random.Random(sample_size)
    free = []
    for number in range(45):
        fleet.scheduler.advance(1)
        joining = JoinArguments(
            f"w{number:02}",
            f"w{number:02}@host",
            ["pdf", TYPES[number % 5 * number % 4]],
            1,
            priority=drawn.randrange(9),
        )
        fleet.scheduler.join(joining, shared_settings(Settings(placement="weighted", sample_size=sample_size)))
        free.append(replace(as_free(joining, fleet.scheduler.now_us), priority=joining.priority))
    for number in range(45):
        fleet.scheduler.advance(1)
        fleet.publish(f"job{number}", "pdf")
        best = choose_by_points("pdf", free, f"job{number}", parse_placement({**DEFAULTS, **settings}))
        assert redis_client.hget(fleet.scheduler.keys.key("job", f"job{number}"), "worker").decode() == best.id
        free.remove(best)


def test_many_types_of_many_profiles_cost_a_command_each(redis_client):
    scheduler = Counting(redis_client, Keys())
    drawn = random.Random(1)
    for number in range(400):
        scheduler.join(
            JoinArguments(f"w{number}", f"w{number}@host", drawn.sample(TYPES, 5), 0), shared_settings(Settings())
        )
    scheduler.join(JoinArguments("large", "large@host", TYPES, 0), shared_settings(Settings()))
    jobs = [NewJob(f"job-{type_}", type_, "message") for type_ in TYPES]
    Scheduler(redis_client, scheduler.keys).publish(*jobs)
    scheduler.calls.clear()
    scheduler.sync("large", [], slots=1, other=0, draining=False)
    assert redis_client.hlen(scheduler.keys.key("claims", "large")) == 1
    assert scheduler.most("zmscore") == len(TYPES)
    assert scheduler.most("hgetall") == 2  # one of them for the worker's own claims
    assert scheduler.most("zrange") < 10
    assert scheduler.most("hget") < 30
