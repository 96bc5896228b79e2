"""Bounds on a server: how many jobs of one publish are going to wait, when some of them merge."""

import pytest

from celery_affinity.rules.bounds import Bound
from celery_affinity.rules.keys import Keys

from ..support.clocked import ClockedScheduler
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(ClockedScheduler(redis_client, Keys()))


@pytest.mark.parametrize(("number", "is_full"), [(2, False), (3, True), (4, True)])
def test_calls_of_one_publish_that_fill_a_run_make_room_for_no_more(fleet, number, is_full):
    """Two calls are one run, which is all that may wait: a third would be another."""
    ids = [f"{name}+" for name in "abcd"[:number]]
    rules = "merge=city most=2 bytes=1000000"
    jobs = fleet.made(ids, "pdf", task_name="tests.task", rules=rules, bound=Bound(1))
    published = fleet.scheduler.publish(*jobs)
    assert [each.full is not None for each in published] == [is_full] * number
    assert (fleet.state("a+") is None) == is_full


def test_a_job_that_has_expired_when_it_is_published_takes_no_room(fleet):
    (expired,) = fleet.made(["a"], "pdf", expires_us=0, bound=Bound(1))
    (other,) = fleet.made(["b"], "pdf", bound=Bound(1))
    assert [each.full for each in fleet.scheduler.publish(expired, other)] == [None, None]
    assert fleet.state("b") == "pending"
