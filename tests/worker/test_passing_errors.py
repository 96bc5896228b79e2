"""What a server says in a state that passes, on each connection of a worker: no worker ends, and every job runs."""

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

#: One error of each code, and one without.
ERRORS = tuple({error.split()[0]: error for error in (*PASSING, *REFUSES_WRITES, *LOGIN)}.values())

#: The commands by which a worker waits: for jobs, and for broadcasts once it has subscribed.
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
def test_no_error_of_a_state_that_passes_ends_a_worker(fleet, proxy, pool):
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
def test_a_connection_that_is_cut_on_the_way_up_is_made_again_and_the_end_of_all_tries_is_one(is_connected, raised):
    """Celery connects again after the one error, and ends for the other: `broker_connection_max_retries` counts."""

    class Blueprint(Consumer.Blueprint):
        def start(self, parent):
            raise OperationalError("Connection closed by server.")

    blueprint = derive_consumer(type("Consumer", (Consumer,), {"Blueprint": Blueprint})).Blueprint()
    with pytest.raises(raised, match="closed by server"):
        blueprint.start(SimpleNamespace(connection=object() if is_connected else None))
