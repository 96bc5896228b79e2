"""Transient server errors on each connection of a worker: no worker ends, and every job runs."""

from types import SimpleNamespace

import pytest
import redis
from celery.worker.consumer import Consumer
from kombu.exceptions import OperationalError

from celery_affinity.worker.consumer import derive_consumer

from ..support.apps import APP
from ..support.fleet import POOLS_IN_TIME
from ..support.passing_errors import LOGIN, PASSING, REFUSES_WRITES
from ..support.processes import start_worker, wait_until

pytestmark = pytest.mark.whole

#: One error per code, including the error without a code.
ERRORS = tuple({error.split()[0]: error for error in (*PASSING, *REFUSES_WRITES, *LOGIN)}.values())

#: The command that a worker uses to wait for jobs, and for broadcasts once it has subscribed.
WAITS = "BRPOP"


def worker_behind(proxy, fleet, pool):
    env = {"LEDGER": str(fleet.ledger.path), "RESULT_URL": fleet.url, "HEARTBEAT_INTERVAL": "0.5"}
    worker = start_worker(APP, proxy.url, ["pdf"], pool=pool, concurrency=2, name="behind", env=env)
    worker.wait_ready(60)
    return worker


def runs(fleet, job, worker):
    fleet.tasks["late"].delay(job)
    wait_until(lambda: str(job) in fleet.ledger.ends(), 40, f"{job} runs\n{worker.log()[-6000:]}")
    assert worker.is_running, worker.log()[-6000:]


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_transient_error_ends_no_worker(fleet, proxy, pool):
    worker = worker_behind(proxy, fleet, pool)
    runs(fleet, "first", worker)
    for number, error in enumerate(ERRORS):
        names = {name for name in proxy.seen if name.startswith(("EVALSHA", "FCALL"))} | {WAITS}
        fleet.tasks["late"].delay(number)
        proxy.refused.update(dict.fromkeys(names, error))
        wait_until(lambda: WAITS not in proxy.refused, 30, f"{error} is said\n{worker.log()[-6000:]}")
        assert worker.is_running, worker.log()[-6000:]
    runs(fleet, "last", worker)
    assert {error for name, error in proxy.said if name == WAITS} == set(ERRORS)
    wait_until(fleet.all_slots_are_free, 30, f"all slots are free\n{worker.log()[-6000:]}")
    assert fleet.ledger.starts() == dict.fromkeys(("first", "last", *map(str, range(len(ERRORS)))), 1)


@pytest.mark.parametrize(("is_connected", "raised"), [(True, redis.ConnectionError), (False, OperationalError)])
def test_connection_cut_during_start_is_retried_until_the_limit(is_connected, raised):
    """Celery reconnects after one error, and ends after the other because of `broker_connection_max_retries`."""

    class Blueprint(Consumer.Blueprint):
        def start(self, parent):
            raise OperationalError("Connection closed by server.")

    blueprint = derive_consumer(type("Consumer", (Consumer,), {"Blueprint": Blueprint})).Blueprint()
    with pytest.raises(raised, match="closed by server"):
        blueprint.start(SimpleNamespace(connection=object() if is_connected else None))
