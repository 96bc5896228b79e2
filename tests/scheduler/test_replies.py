"""Claims and ends parsed from arbitrary bytes: each is valid, or raises a ValueError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.scheduler.messages import Claim, UnreportedEnd

from ..support.from_outside import SCALARS
from ..support.members import claims_of


@given(st.binary() | st.builds(lambda *words: " ".join(map(str, words)).encode("utf-8", "replace"), *[SCALARS] * 5))
def test_claim_is_valid_or_a_value_error(payload):
    try:
        claim = Claim.parse(payload)
    except ValueError:
        return
    claims = claims_of()
    assert claims.hold(claim)
    assert claims.void_up_to(2**63)


@pytest.mark.parametrize("fence", ["x", "", "0", "-1", "1_0", "٣", "9" * 20, "9" * 5000])
def test_fencing_token_must_be_a_redis_number(fence):
    with pytest.raises(ValueError, match="fencing number"):
        Claim.parse(f"job {fence} pdf 0 0\n{{}}".encode())


def test_claim_contains_its_jobs_preemptions():
    facts = ("", " 900", " - demand.5")
    claims = [Claim.parse(f"job 7 pdf 1 5{before} preempted:3\n{{}}".encode()) for before in facts]
    assert [each.preemptions for each in claims] == [3, 3, 3]
    assert [(each.expires_us, each.urgency) for each in claims] == [(None, None), (900, None), (None, (True, 5))]
    assert Claim.parse(b"job 7 pdf 1 5 900\n{}").preemptions == 0
    with pytest.raises(ValueError, match="invalid literal"):
        Claim.parse(b"job 7 pdf 1 5 preempted:x\n{}")


@given(st.binary(), st.lists(st.none() | st.integers() | st.binary() | st.just(b"7"), max_size=9))
def test_end_is_parsed_from_any_row(job_id, row):
    ending = UnreportedEnd.parse([job_id, *row])
    assert isinstance(ending.task_id, str)
    assert ending.job_id.encode(errors="surrogateescape") == job_id
