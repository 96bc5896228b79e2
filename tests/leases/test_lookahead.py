"""A worker prefetches jobs: how many, in which order they start, and which of them it requeues."""

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


def test_long_tasks_are_not_prefetched():
    prefetch = Prefetch(8, WORK_S)
    assert prefetch.room(slots=1) == PrefetchLimit(8)
    for _ in range(30):
        prefetch.note_length("pdf", 0.1)
    assert prefetch.room(slots=1).jobs in (4, 5)
    assert prefetch.room(slots=2) == PrefetchLimit(8)
    for _ in range(60):
        prefetch.note_length("pdf", 2.0)
    assert prefetch.room(slots=1) == PrefetchLimit(0) == NOTHING


def test_auto_prefetch_takes_short_types_up_to_the_work_limit():
    prefetch = Prefetch(AUTO, WORK_S)
    assert prefetch.room(slots=1) == NOTHING, "no type has a known task length"
    prefetch.note_length("pdf", 0.005)
    prefetch.note_length("excel", 0.5)
    assert prefetch.room(slots=1) == PrefetchLimit(0, 20_000, {"pdf": 5_000})
    assert prefetch.room(slots=2) == PrefetchLimit(0, 20_000, {"pdf": 2_500}), "two slots work in parallel"
    for job in "abc":
        prefetch.add(claim(job), job)
    assert prefetch.room(slots=1) == PrefetchLimit(0, 5_000, {"pdf": 5_000})
    prefetch.add(claim("d"), "d")
    assert prefetch.room(slots=1) == NOTHING
    prefetch.give_back({"pdf"}, 4)
    for _ in range(30):
        prefetch.note_length("pdf", 0.1)
    assert prefetch.room(slots=4) == NOTHING, "the type is slow now"
    assert prefetch.room(slots=10).costs.keys() == {"pdf"}, "but one of ten slots is free after 10 ms"
    assert prefetch.room(slots=100).costs.keys() == {"pdf", "excel"}
    for _ in range(30):
        prefetch.note_length("excel", 1.0)
    assert prefetch.room(slots=100).costs.keys() == {"pdf"}, "a slot frees too late for the type excel"


def test_auto_prefetch_uses_the_start_interval_when_it_is_longer(monkeypatch):
    now = 0.0
    monkeypatch.setattr("celery_affinity.leases.prefetch.time.monotonic", lambda: now)
    prefetch = Prefetch(AUTO, WORK_S)
    prefetch.note_length("pdf", 0.001)
    for job in range(60):
        prefetch.add(claim(str(job), fence=job), str(job))
    for _ in range(60):
        now += 0.002
        prefetch.next()
    assert 1_900 < prefetch.room(slots=8).costs["pdf"] <= 2_000, "eight threads share one interpreter"


def test_auto_prefetch_keeps_the_types_that_ended_last():
    prefetch = Prefetch(AUTO, WORK_S)
    for number in range(30):
        prefetch.note_length(f"type{number}", 0.001)
    assert list(prefetch.room(slots=1).costs) == [f"type{number}" for number in range(10, 30)]


@pytest.mark.parametrize(("is_limited", "costs"), [(False, {"pdf": 1_000}), (True, {})])
def test_auto_prefetch_skips_types_with_a_rate_limit(is_limited, costs, monkeypatch):
    reporting = reporting_of(lookahead=AUTO)
    reporting.lookahead.note_length("pdf", 0.001)
    tag = reporting.claims.hold(claim("a"))
    reporting.claims.bind(tag, SimpleNamespace(name="mail", id="one"))
    reporting.claims.start(tag).started_s = 0.0
    monkeypatch.setattr("celery_affinity.leases.outbox.time.monotonic", lambda: 0.001)
    monkeypatch.setattr(reporting._host, "limits_rate_of", lambda task: is_limited)
    reporting.end(tag)
    assert reporting.lookahead.room(slots=1).costs == costs


def test_pool_threads_note_lengths_while_the_loop_reads_them():
    """Tasks end in the threads of a pool: an average that changes during a read must not end the event loop."""
    prefetch = Prefetch(AUTO, WORK_S)
    is_over = threading.Event()

    def end_tasks(first):
        while not is_over.is_set():
            for number in range(first, first + 30):
                prefetch.note_length(f"type{number}", 0.001)
                prefetch.forget(f"type{number - 3}")

    pool = [threading.Thread(target=end_tasks, args=(first,)) for first in (0, 10)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in pool:
            thread.start()
        for _ in range(3_000):
            prefetch.room(slots=2)
    finally:
        is_over.set()
        for thread in pool:
            thread.join()
        sys.setswitchinterval(interval_s)
    assert len(prefetch.room(slots=2).costs) <= 20


def test_prefetch_is_off_without_work_or_jobs():
    assert Prefetch(AUTO, 0).is_off
    assert Prefetch(0, WORK_S).is_off
    assert not Prefetch(AUTO, WORK_S).is_off


def test_prefetched_job_is_returned_when_it_waits_too_long(monkeypatch):
    now = 0.0
    monkeypatch.setattr("celery_affinity.leases.prefetch.time.monotonic", lambda: now)
    prefetch = Prefetch(AUTO, WORK_S)
    prefetch.add(claim("a"), "a")
    now = STARTS_WITHIN_S * 0.9
    prefetch.add(claim("b", fence=2), "b")
    assert prefetch.give_back_what_is_late() == []
    now = STARTS_WITHIN_S * 1.1
    assert prefetch.give_back_what_is_late() == ["a"]
    assert prefetch.next()[1] == "b"


def test_newest_jobs_of_requested_types_are_returned_first():
    prefetch = Prefetch(8, WORK_S)
    for job, type_ in (("a", "pdf"), ("b", "excel"), ("c", "pdf"), ("d", "pdf")):
        prefetch.add(claim(job, type_), job)
    assert prefetch.give_back({"pdf"}, 2) == ["d", "c"]
    assert [prefetch.next()[1] for _ in range(len(prefetch))] == ["a", "b"]


def test_prefetched_jobs_start_in_fencing_token_order():
    prefetch = Prefetch(8, WORK_S)
    for job, fence in (("a", 9), ("c", 11), ("d", 12), ("b", 10)):
        prefetch.add(claim(job, fence=fence), job)
    assert [prefetch.next()[1] for _ in range(len(prefetch))] == ["a", "b", "c", "d"]
