"""A pause recalls the claims of its target, up to the fencing token that was current when the pause began."""

import pytest

from celery_affinity.leases.claims import WithdrawnTypes
from celery_affinity.schema.values import encode_part

RARE = "a {rare}: one"


@pytest.mark.parametrize(
    ("target", "claim", "is_recalled"),
    [
        (None, ("job", "pdf", "1"), False),
        (f"type:{encode_part(RARE)}", ("job", RARE, "7"), True),
        (f"type:{encode_part(RARE)}", ("job", RARE, "8"), False),  # granted when the pause was over
        (f"type:{encode_part(RARE)}", ("job", "pdf", "7"), False),
        ("*", ("job", "pdf", "7"), True),
        ("*", ("job", "pdf", "8"), False),
        ("key:city%3AHH", ("job!", "pdf", "7"), True),
        ("key:city%3AHH", ("job", "pdf", "7"), False),  # a job without rules has no key
    ],
)
def test_pause_recalls_earlier_claims_of_its_target(target, claim, is_recalled):
    withdrawn = WithdrawnTypes()
    assert not withdrawn
    if target:
        withdrawn.add(target, 7)
    assert withdrawn.has(*claim) == is_recalled
    withdrawn.clear()  # the worker joins again
    assert not withdrawn.has(*claim)
