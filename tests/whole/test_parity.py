"""Scenarios on stock Celery and on this transport, with equal outcomes."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
from kombu import pools

from celery_affinity.embedded import EmbeddedServer

from ..support.processes import running_processes
from .scenarios import SCENARIOS, canvas, control, ends, lifecycle, messages
from .scenarios.side import TRANSPORT, Side

assert all((canvas, control, ends, lifecycle, messages))  # these modules fill SCENARIOS


# Celery leaves sockets to the garbage collector, for example those of result backends.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def sides():
    """Both sides, each with a server, an app and a worker that serves all scenarios."""
    servers = {name: EmbeddedServer() for name in TRANSPORT}
    for each in servers.values():
        each.start()
    sides = [Side(name, server) for name, server in servers.items()]
    try:
        for side in sides:
            side.worker = side.start_worker("shared", env={"RECORD_SIGNALS": "1"}, ready=False)
        for side in sides:
            side.worker.wait_ready(60)
        yield sides
    finally:
        gc.collect()  # results unsubscribe when collected, which must happen while the servers run
        for side in sides:
            if side.worker:
                side.worker.end()
            side.close()
        for each in servers.values():
            each.stop()


@pytest.fixture(autouse=True)
def worker_processes_end(sides):
    """End the processes of a scenario, except the shared workers."""
    yield
    for process in running_processes():
        if process not in [side.worker for side in sides]:
            process.end()


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            each,
            id=str(each),
            marks=[pytest.mark.xfail(strict=True, reason=why) for why in (each.differs, each.stock_fails) if why],
        )
        for each in SCENARIOS
    ],
)
def test_scenario_has_the_same_outcome_as_on_stock(sides, scenario):
    pools.set_limit(
        sides[0].app.conf.broker_pool_limit
    )  # otherwise both threads set it simultaneously, and kombu has no lock
    with ThreadPoolExecutor(len(sides)) as threads:
        outcomes = [threads.submit(_play, scenario, side) for side in sides]
    stock, ours = (each.result() for each in outcomes)
    assert ours == stock


def _play(scenario, side):
    side.app.set_current()  # for this thread
    try:
        return scenario.function(side)
    except BaseException as exc:
        exc.add_note(f"on {side.name}")
        raise
