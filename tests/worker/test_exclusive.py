"""Exclusive tasks on real workers: jobs of one key run one after another, while jobs of other keys run."""

import time
from itertools import pairwise

import pytest

from celery_affinity import Exclusive, Rate, publish_many

from ..support.processes import start_worker

KEYED = "tests.support.apps.keyed"


@pytest.fixture
def hold(valkey, load_app):
    hold = load_app(KEYED).tasks["keyed.hold"]
    for pool in ("prefork", "threads"):
        start_worker(KEYED, valkey.url, ["celery"], pool=pool, concurrency=3)
    return hold


def ran(results):
    """Return [begin, end] of each call in seconds, by begin."""
    return sorted(result.get(timeout=60) for result in results)


def most_at_once(times):
    return max(sum(began <= at < ended for began, ended in times) for at, _ in times)


def test_jobs_of_one_key_run_one_after_another(hold):
    of_one = publish_many(hold, [("HH",)] * 8).results()
    others = publish_many(hold, [(f"city {number}",) for number in range(8)]).results()
    of_one, others = ran(of_one), ran(others)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(of_one))
    assert max(ended for _, ended in others) < max(ended for _, ended in of_one), "nobody waited for the key"


def test_running_jobs_of_a_key_reach_its_limit(hold):
    times = ran([hold.apply_async(("HH",), exclusive=Exclusive("{city}", 2)) for _ in range(8)])
    assert most_at_once(times) == 2
    assert most_at_once(ran([hold.apply_async(("HH", 1), exclusive=False) for _ in range(6)])) > 2


def test_rate_limited_jobs_of_one_key_never_overlap(hold):
    """The rate allows four starts immediately, and then one every 0.25 s."""
    rate, before = Rate("4/s", "all"), time.monotonic()
    of_cities = [[hold.apply_async((city, 0.2), rate=rate) for _ in range(4)] for city in ("HH", "B", "M")]
    times = [ran(results) for results in of_cities]
    for of_city in times:
        assert all(ended <= began for (_, ended), (began, _) in pairwise(of_city))
    assert max(began for of_city in times for began, _ in of_city) >= before + 8 * 0.25
