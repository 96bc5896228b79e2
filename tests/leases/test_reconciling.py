"""A sync compares the claims it named with the claims held after the reply; a newer claim of a job is not void."""

import pytest

from celery_affinity.leases.heartbeat import _void_numbers
from celery_affinity.scheduler.messages import Claim

from ..support.members import claims_of


def claim(fence):
    return Claim("job", str(fence), "pdf", 0, 0, b"")


@pytest.mark.parametrize("both_were_named", [False, True])
def test_job_claimed_again_during_a_sync_is_not_void(both_were_named):
    claims = claims_of()
    claims.end(claims.hold(claim(1)))  # its release is in flight while a sync names it
    named = claims.running()
    again = claims.hold(claim(2))  # the reply contains the job again
    if both_were_named:
        named = claims.running()
    assert claims.void(_void_numbers(named, ["job"])) == []
    assert not claims.is_void(again)


def test_named_claim_of_another_worker_is_void():
    claims = claims_of()
    tag = claims.hold(claim(1))
    assert [held.number for held in claims.void(_void_numbers(claims.running(), ["job"]))] == [("job", "1")]
    assert claims.is_void(tag)
