"""Buffered claims keep their jobs without occupying slots, and end only after a sync has reported the free slots."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.leases.capacity import Capacity
from celery_affinity.leases.held_claim import ACKED, REJECTED, RETURNED, UNSETTLED
from celery_affinity.policy import slot_math
from celery_affinity.scheduler.messages import Claim

from ..support.members import Pool, claims_of, reporting_of


def request(name="task"):
    return SimpleNamespace(id="id", name=name, size=None)


def hold(claims, number, type_="pdf"):
    return claims.hold(Claim(f"job{number}", str(number), type_, 0, 0, b""))


def buffer(claims, number, type_="pdf"):
    tag = hold(claims, number, type_)
    claims.bind(tag, request())
    claims.buffer(tag, request())
    return tag


def test_buffered_claims_take_no_slot_and_are_reported_as_lent():
    claims = claims_of()
    capacity = Capacity(Pool(2), claims)
    tags = [buffer(claims, number) for number in range(1, 6)]
    assert (capacity.room(), capacity.tell()) == (2, (2, -5))
    claims.take_back(tags[0], request())
    assert (capacity.room(), capacity.tell()) == (1, (2, -4))


def test_acked_claim_ends_after_the_next_sync():
    reporting = reporting_of()
    claims = reporting.claims
    capacity = Capacity(Pool(2), claims)
    tag = buffer(claims, 1)
    reporting.set_outcome(tag, ACKED)
    reporting._heartbeats.wake.assert_called()
    acks, ends = claims.pending_reports(10)
    assert (set(acks), set(ends)) == ({tag}, set()), "the ack is sent immediately"
    assert (capacity.room(), capacity.tell()) == (2, (2, 0))
    assert claims.running() != [], "the next sync still names the claim"
    end_all(reporting, claims.settled_in_buffer())
    assert set(claims.pending_reports(10)[1]) == {tag}
    claims.forget({tag: claims.find(tag)})
    assert (claims.held_claims(), claims.settled_in_buffer()) == ([], frozenset())


@pytest.mark.parametrize(("closed", "outcome"), [(False, UNSETTLED), (True, RETURNED)])
def test_dropped_claim_is_requeued(closed, outcome):
    claims = claims_of()
    tag = buffer(claims, 1)
    if closed:
        claims.close()
    claims.drop_from_buffer(tag)
    claims.set_outcome(tag, ACKED)
    assert claims.settled_in_buffer() == {tag}
    assert claims.end(tag).outcome == outcome


def test_reconnect_and_drain_keep_buffered_claims():
    claims = claims_of()
    kept = request("kept")
    tags = [hold(claims, number) for number in range(1, 4)]
    claims.buffer(tags[0], kept)
    claims.buffer(tags[1], request())
    claims.set_outcome(tags[1], ACKED)
    pool = Pool(has=lambda each: each is kept)
    assert claims.drop_unstarted(pool) == [("job3", "3")]
    assert claims.drain(pool) == []
    assert [held.job_id for held in claims.held_claims()] == ["job1", "job2"]


def test_full_buffer_withdraws_only_its_own_types(monkeypatch):
    monkeypatch.setattr(slot_math, "MAX_BUFFERED", 3)
    for multiplier, most in ((0, 3), (1, 3), (4, 8)):
        claims = claims_of()
        capacity = Capacity(Pool(2), claims)
        capacity.types, capacity.prefetch_multiplier = ("pdf", "mail", "excel"), multiplier
        tags = [buffer(claims, number, "pdf" if number > 1 else "mail") for number in range(1, most + 1)]
        assert capacity.unwanted == {"pdf", "mail"}
        claims.set_outcome(tags[-1], REJECTED)
        assert capacity.unwanted == frozenset(), "the buffer has capacity again"


STEPS = ("hold", "buffer", "sync", "ack", "drop", "end", "back", "void")


def end_all(reporting, tags):
    for tag in tags:
        reporting.end(tag)


@given(st.integers(0, 2**32))
def test_server_never_sees_more_free_slots_than_exist(seed):
    """The server counts the slots from the last sync and the claims whose ends have not been reported.

    The next sync reports claims that occupy their slots again, and claims that another worker has taken over.
    """
    reporting = reporting_of(pool=(pool := Pool(3)))
    claims = reporting.claims
    capacity = Capacity(pool, claims)
    held, told, number, unknown = [], 0, 0, 0
    draw = random.Random(seed)
    for step in draw.choices(STEPS, k=40):
        tag = draw.choice(held) if held else None
        match step:
            case "hold":
                number += 1
                held.append(hold(claims, number))
                claims.bind(held[-1], request())
            case "sync":
                settled = claims.settled_in_buffer()
                told, unknown = capacity.tell()[1], 0
                end_all(reporting, settled)
            case "buffer" if tag:
                claims.buffer(tag, request())
            case "back" if tag:
                claims.take_back(tag, request())
                unknown += 1
            case "ack" if tag:
                claims.set_outcome(tag, ACKED)
            case "drop" if tag:
                claims.drop_from_buffer(tag)
            case "void" if tag:
                claims.void([claims.find(tag).number])
                unknown += 1
            case "end" if tag and not claims.find(tag).is_buffered:
                claims.end(tag)
        ends = claims.pending_reports(100)[1]
        claims.forget(ends)
        held = [each for each in held if each not in ends]
        free_at_the_server = pool.size() - told - sum(not each.void for each in claims.held_claims())
        assert free_at_the_server <= capacity.room() + unknown
