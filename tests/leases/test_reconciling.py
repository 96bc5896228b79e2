"""A sync compares the claims named with the claims held by then: a claim that came back meanwhile is not void."""

import pytest

from celery_affinity.leases.heartbeat import _void_numbers
from celery_affinity.scheduler.messages import Claim

from ..support.members import claims_of


def claim(fence):
    return Claim("job", str(fence), "pdf", 0, 0, b"")


@pytest.mark.parametrize("both_were_named", [False, True])
def test_a_job_that_came_back_meanwhile_is_not_void(both_were_named):
    claims = claims_of()
    claims.end(claims.hold(claim(1)))  # its release is on its way while a sync names it
    named = claims.running()
    again = claims.hold(claim(2))  # the job came back with the reply
    if both_were_named:
        named = claims.running()
    assert claims.void(_void_numbers(named, ["job"])) == []
    assert not claims.is_void(again)


def test_what_was_named_and_is_another_s_is_void():
    claims = claims_of()
    tag = claims.hold(claim(1))
    assert [held.number for held in claims.void(_void_numbers(claims.running(), ["job"]))] == [("job", "1")]
    assert claims.is_void(tag)
