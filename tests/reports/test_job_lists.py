"""Lists of jobs in pages: complete, disjoint, and no dearer than a page."""

import base64
import json
import random

import pytest

from celery_affinity.errors import OptionError
from celery_affinity.reports.job_lists import MAX_JOBS_READ, JobFilter, held_jobs, jobs_page
from celery_affinity.reports.jobs import get_jobs


@pytest.fixture
def busy(fleet):
    """Jobs in every place where a job can be."""
    dice = random.Random(7)
    for worker, types in (("one", ("pdf",)), ("two", ("pdf", "excel", "mail")), ("three", ("mail",))):
        fleet.join(worker, *types, slots=4)
    for number in range(3):
        fleet.join(f"undertaker{number}", "tomb")
        fleet.publish(f"buried{number}", "tomb")
        (claim,) = fleet.inbox(f"undertaker{number}")
        fleet.end(f"undertaker{number}", claim, outcome="rejected")
        fleet.scheduler.leave(f"undertaker{number}")
    for number in range(150):
        type_ = dice.choice(["pdf", "excel", "mail", "a type", "nobody's"])
        delay_s = dice.choice([0, 0, 0, 60])
        rules = f"key=k{dice.randrange(3)} limit=1" if number % 5 == 0 else ""
        name = f"job{number}{'!' if rules else ''}"
        priority, on_demand = dice.randrange(11), dice.random() < 0.5
        fleet.publish(name, type_, priority=priority, on_demand=on_demand, delay_s=delay_s, rules=rules)
    fleet.inbox("two")
    return fleet


def all_pages(reader, limit, **which):
    cursor, found, cursors = None, [], set()
    while True:
        page = jobs_page(reader, JobFilter(**which), limit, cursor)
        assert len(page.jobs) <= limit
        assert page.cursor not in cursors, "a page leads back"
        cursors.add(page.cursor)
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            return found


def ids_in_redis(fleet):
    keys = fleet.scheduler.client.scan_iter(fleet.scheduler.keys.key("job", "*"))
    return {key.decode().rpartition("job:")[2] for key in keys}


@pytest.mark.parametrize("limit", [1, 7, 100, MAX_JOBS_READ])
def test_pages_are_complete_and_disjoint(busy, reader, limit):
    found = [each.job_id for each in all_pages(reader, limit)]
    assert len(found) == len(set(found))
    assert set(found) == ids_in_redis(busy)


@pytest.mark.parametrize("limit", [3, 1000])
def test_each_job_is_in_the_list_of_one_state(busy, reader, limit):
    by_state = {
        state: {each.job_id for each in all_pages(reader, limit, state=state)}
        for state in ("scheduled", "pending", "claimed", "running", "dead")
    }
    assert all(by_state.values())
    assert sum(map(len, by_state.values())) == len(set().union(*by_state.values())) == len(ids_in_redis(busy))
    for state, ids in by_state.items():
        assert {get_jobs(reader, [each])[0].state for each in ids} == {state}


def test_a_job_of_a_page_is_as_if_it_were_asked_for(busy, reader):
    for each in all_pages(reader, 50):
        assert each == get_jobs(reader, [each.id])[0]


def test_jobs_of_a_type_and_of_a_task(busy, reader):
    every = all_pages(reader, 100)
    for type_ in ("pdf", "a type", "nobody's", "tomb"):
        assert all_pages(reader, 9, type=type_) == [each for each in every if each.type == type_]
        assert all(each.type == type_ for each in all_pages(reader, 9, type=type_, state="pending"))
    assert len(all_pages(reader, 9, task="tests.*")) == len(every)
    assert all_pages(reader, 9, task="other") == []
    assert all_pages(reader, 9, task="[t]ests.*") == []


def test_jobs_of_one_moment_are_all_listed(fleet, reader):
    fleet.scheduler.client.zadd(fleet.scheduler.keys.key("scheduled"), {f"job{number}": 5e15 for number in range(20)})
    for number in range(20):
        row = {"state": "scheduled", "type": "pdf", "lane": "queued.0", "enqueued": int(5e15)}
        fleet.scheduler.client.hset(fleet.scheduler.keys.key("job", f"job{number}"), mapping=row)
    assert len({each.job_id for each in all_pages(reader, 3)}) == 20


@pytest.mark.parametrize("rules", ["", "key=k limit=1"], ids=["lanes", "kept back"])
def test_jobs_of_more_types_than_are_read_together_are_all_listed(fleet, reader, rules):
    fleet.join("worker", "busy")
    fleet.publish("holder!", "busy", rules="key=k limit=1")
    mark = "!" if rules else ""
    ids = [f"job{number}{mark}" for number in range(600)]  # so many that the server scans their index in parts
    for first in range(0, 600, 50):
        jobs = [job for each in ids[first : first + 50] for job in fleet.made([each], f"type {each}", rules=rules)]
        fleet.scheduler.publish(*jobs)
    assert sorted(each.job_id for each in all_pages(reader, MAX_JOBS_READ, state="pending")) == sorted(ids)


def test_a_filter_reads_a_thousand_jobs_at_most(fleet, reader):
    for first in range(0, 2_500, 500):
        names = [f"job{number}" for number in range(first, first + 500)]
        fleet.scheduler.publish(*fleet.made(names, "pdf"))
    fleet.publish("wanted", "pdf")
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("job", "wanted"), "name", "wanted.task")
    pages, cursor = [], None
    while not pages or cursor:
        pages.append(jobs_page(reader, JobFilter(task="wanted.*"), 10, cursor))
        cursor = pages[-1].cursor
    assert [page.partial for page in pages] == [True, True, False]
    assert [each.job_id for page in pages for each in page.jobs] == ["wanted"]


def test_merged_calls_are_one_run(fleet, reader):
    for name in ("a+", "b+", "c+"):
        fleet.publish(name, "pdf", rules="merge=city most=100 bytes=10000")
    (found,) = all_pages(reader, 10)
    assert (found.id, found.calls, found.state) == ("task-a+", 3, "pending")


@pytest.mark.parametrize("state", ["done", "failed", "revoked", "expired"])
def test_a_state_without_a_list_is_refused(reader, state):
    with pytest.raises(OptionError, match=r"scheduled.*affinity_keep is above 60 s\), got: '" + state):
        jobs_page(reader, JobFilter(state=state))


def written(*position):
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


SPOILED = [
    (3, 0, "", "nan", 0),
    (3, 0, "", "1 2", 0),
    (9, 0, "", "", 0),
    (0, -1, "", "", 0),
    (0, 0, "\udc80", "", 0),
    (0,),
]


@pytest.mark.parametrize("cursor", ["", "x", "W10", "ä", "[]", "W1tdXQ", *(written(*each) for each in SPOILED)])
def test_a_cursor_is_one_that_a_page_said(reader, cursor):
    with pytest.raises(OptionError, match="cursor must be the cursor of a page"):
        jobs_page(reader, JobFilter(), 10, cursor)


@pytest.mark.parametrize("limit", [0, 1001, -1, "7", 1.5])
def test_a_limit_is_refused(reader, limit):
    with pytest.raises(OptionError, match="limit must be a whole number from 1 to 1,000"):
        jobs_page(reader, JobFilter(), limit)


def test_what_workers_hold_is_read_once(busy, commands_sent):
    reader = busy.scheduler.reader
    by_state = {
        each.id: each for state in ("claimed", "running") for each in all_pages(reader, MAX_JOBS_READ, state=state)
    }
    before = commands_sent()
    found = held_jobs(reader, 200)
    assert {each.id for each in found} == by_state.keys()
    assert len(found) > 5
    assert commands_sent() - before < 3 * len(found) + 20
    assert len(held_jobs(reader, 2)) == 2


@pytest.fixture
def commands_sent(redis_client):
    return lambda: redis_client.info("stats")["total_commands_processed"]
