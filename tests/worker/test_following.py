"""Control messages from other processes are obeyed or logged."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.worker.job_feed import JobFeed

from ..support.from_outside import TEXTS


class Ahead:
    """Eight prefetched jobs."""

    def __init__(self, did):
        self._did = did

    def __len__(self):
        return 8

    def give_back(self, types, at_most):
        self._did.append(at_most)
        return []


@given(st.lists(TEXTS | st.sampled_from(["tick", "back", "paused", "preempt", "5", "pdf", "*", "type:pdf", "key:k"])))
def test_control_message_is_obeyed_or_logged(words):
    did = []
    following = JobFeed.__new__(JobFeed)
    recalled = SimpleNamespace(add=lambda what, fence: did.append((what, fence)))
    capacity = SimpleNamespace(types=("pdf",))
    following.member = SimpleNamespace(tick=lambda: did.append("tick"), capacity=capacity)
    following.reporter = SimpleNamespace(claims=SimpleNamespace(withdrawn_types=recalled))
    following._lookahead = Ahead(did)
    following._prebuilt = SimpleNamespace(drop=lambda tags: None)
    following._preemption = SimpleNamespace(order=lambda *ordered: did.append(ordered) or [])
    following.obey(words)
    match words:
        case ["tick"]:
            assert did == ["tick"]
        case ["back", number, *_] if number.isdecimal() and len(number) < 10:
            assert did == [int(number)]
        case ["paused", what, number] if number.isdecimal() and len(number) < 20:
            assert did == [(what, int(number)), 8]
        case ["preempt", job_id, fence, grace_ms] if (
            fence.isdecimal() and len(fence) < 20 and grace_ms.isdecimal() and len(grace_ms) < 10
        ):
            assert did == [(job_id, fence, int(grace_ms) / 1000)]
        case _:
            assert did == []
