"""Jobs that a worker holds beyond its slots: how many, in which order, and which of them go back."""

import sys
import threading
from types import SimpleNamespace

import pytest

from celery_affinity.leases.prefetch import STARTS_WITHIN_S, Prefetch
from celery_affinity.policy.slot_math import NOTHING, PrefetchLimit
from celery_affinity.scheduler.messages import Claim
from celery_affinity.settings.table import AUTO

from ..support.members import reporting_of

WORK_S = 0.02


def claim(job, type_="pdf", fence=1):
    return Claim(job, str(fence), type_, 0, 0, b"")


def test_long_tasks_are_not_taken_ahead():
    ahead = Prefetch(8, WORK_S)
    assert ahead.room(slots=1) == PrefetchLimit(8)
    for _ in range(30):
        ahead.note_length("pdf", 0.1)
    assert ahead.room(slots=1).jobs in (4, 5)
    assert ahead.room(slots=2) == PrefetchLimit(8)
    for _ in range(60):
        ahead.note_length("pdf", 2.0)
    assert ahead.room(slots=1) == PrefetchLimit(0) == NOTHING


def test_by_work_jobs_of_known_short_types_are_taken_ahead_until_they_take_that_long():
    ahead = Prefetch(AUTO, WORK_S)
    assert ahead.room(slots=1) == NOTHING, "of no type it is known how long its jobs take"
    ahead.note_length("pdf", 0.005)
    ahead.note_length("excel", 0.5)
    assert ahead.room(slots=1) == PrefetchLimit(0, 20_000, {"pdf": 5_000})
    assert ahead.room(slots=2) == PrefetchLimit(0, 20_000, {"pdf": 2_500}), "two slots work at a time"
    for job in "abc":
        ahead.add(claim(job), job)
    assert ahead.room(slots=1) == PrefetchLimit(0, 5_000, {"pdf": 5_000})
    ahead.add(claim("d"), "d")
    assert ahead.room(slots=1) == NOTHING
    ahead.give_back({"pdf"}, 4)
    for _ in range(30):
        ahead.note_length("pdf", 0.1)
    assert ahead.room(slots=4) == NOTHING, "the type is slow by now"
    assert ahead.room(slots=10).costs.keys() == {"pdf"}, "but one of ten slots is free after 10 ms"
    assert ahead.room(slots=100).costs.keys() == {"pdf", "excel"}
    for _ in range(30):
        ahead.note_length("excel", 1.0)
    assert ahead.room(slots=100).costs.keys() == {"pdf"}, "slots that are all free at a time would keep it too long"


def test_by_work_the_time_between_starts_counts_if_it_is_longer_than_a_slots_part_of_a_task(monkeypatch):
    now = 0.0
    monkeypatch.setattr("celery_affinity.leases.prefetch.time.monotonic", lambda: now)
    ahead = Prefetch(AUTO, WORK_S)
    ahead.note_length("pdf", 0.001)
    for job in range(60):
        ahead.add(claim(str(job), fence=job), str(job))
    for _ in range(60):
        now += 0.002
        ahead.next()
    assert 1_900 < ahead.room(slots=8).costs["pdf"] <= 2_000, "eight threads share one interpreter"


def test_by_work_the_types_are_those_that_ended_last():
    ahead = Prefetch(AUTO, WORK_S)
    for number in range(30):
        ahead.note_length(f"type{number}", 0.001)
    assert list(ahead.room(slots=1).costs) == [f"type{number}" for number in range(10, 30)]


@pytest.mark.parametrize(("is_limited", "ahead"), [(False, {"pdf": 1_000}), (True, {})])
def test_by_work_a_type_whose_task_has_a_rate_limit_is_not_taken_ahead(is_limited, ahead, monkeypatch):
    reporting = reporting_of(lookahead=AUTO)
    reporting.lookahead.note_length("pdf", 0.001)
    tag = reporting.claims.hold(claim("a"))
    reporting.claims.bind(tag, SimpleNamespace(name="mail", id="one"))
    reporting.claims.start(tag).started_s = 0.0
    monkeypatch.setattr("celery_affinity.leases.outbox.time.monotonic", lambda: 0.001)
    monkeypatch.setattr(reporting._host, "limits_rate_of", lambda task: is_limited)
    reporting.end(tag)
    assert reporting.lookahead.room(slots=1).costs == ahead


def test_pool_threads_note_lengths_while_the_loop_asks_for_the_room():
    """Tasks end in the threads of a pool: an average that changes in the middle must not end the event loop."""
    ahead = Prefetch(AUTO, WORK_S)
    is_over = threading.Event()

    def end_tasks(first):
        while not is_over.is_set():
            for number in range(first, first + 30):
                ahead.note_length(f"type{number}", 0.001)
                ahead.forget(f"type{number - 3}")

    pool = [threading.Thread(target=end_tasks, args=(first,)) for first in (0, 10)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in pool:
            thread.start()
        for _ in range(3_000):
            ahead.room(slots=2)
    finally:
        is_over.set()
        for thread in pool:
            thread.join()
        sys.setswitchinterval(interval_s)
    assert len(ahead.room(slots=2).costs) <= 20


def test_no_work_ahead_is_off():
    assert Prefetch(AUTO, 0).is_off
    assert Prefetch(0, WORK_S).is_off
    assert not Prefetch(AUTO, WORK_S).is_off


def test_what_could_not_start_in_time_goes_back(monkeypatch):
    now = 0.0
    monkeypatch.setattr("celery_affinity.leases.prefetch.time.monotonic", lambda: now)
    ahead = Prefetch(AUTO, WORK_S)
    ahead.add(claim("a"), "a")
    now = STARTS_WITHIN_S * 0.9
    ahead.add(claim("b", fence=2), "b")
    assert ahead.give_back_what_is_late() == []
    now = STARTS_WITHIN_S * 1.1
    assert ahead.give_back_what_is_late() == ["a"]
    assert ahead.next()[1] == "b"


def test_those_that_came_last_are_given_back_of_the_types_that_are_asked_for():
    ahead = Prefetch(8, WORK_S)
    for job, type_ in (("a", "pdf"), ("b", "excel"), ("c", "pdf"), ("d", "pdf")):
        ahead.add(claim(job, type_), job)
    assert ahead.give_back({"pdf"}, 2) == ["d", "c"]
    assert [ahead.next()[1] for _ in range(len(ahead))] == ["a", "b"]


def test_what_a_reply_carries_does_not_pass_what_was_claimed_before():
    ahead = Prefetch(8, WORK_S)
    for job, fence in (("a", 9), ("c", 11), ("d", 12), ("b", 10)):
        ahead.add(claim(job, fence=fence), job)
    assert [ahead.next()[1] for _ in range(len(ahead))] == ["a", "b", "c", "d"]
