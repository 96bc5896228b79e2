"""pytest fixtures for tests of an app: a real server, and workers that serve the requested types. No Docker.

    # conftest.py
    pytest_plugins = ["celery_affinity.testing"]

    @pytest.fixture
    def affinity_app():
        return "shop"  # the argument of `celery -A`, or the app itself

    # test_shop.py
    def test_an_invoice_is_rendered(affinity_worker):
        affinity_worker("pdf")
        assert render.delay("invoice").get(timeout=10) == "invoice.pdf"

Tests must name this plugin. pytest would load an entry point, with Celery and redis-py, in all runs on a machine with
this package and before coverage starts, and the tests would not show where the fixtures come from.
"""

from collections.abc import Callable, Generator, Iterator

import pytest
import redis
from celery import Celery

from ..embedded.server import EmbeddedServer
from .app import directed, load_app
from .workers import WorkerProcess, WorkerThread

__all__ = [
    "WorkerProcess",
    "WorkerThread",
    "affinity_app",
    "affinity_broker",
    "affinity_server",
    "affinity_worker",
    "affinity_worker_process",
    "directed",
]

_PROCESSES = pytest.StashKey[list[WorkerProcess]]()


@pytest.fixture(scope="session")
def affinity_server() -> Iterator[EmbeddedServer]:
    """A Valkey server for the whole run. With pytest-xdist, each process has its own server."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def affinity_app() -> Celery | str:
    """Your app: override this fixture. Return the argument of ``celery -A`` as a string, or the app itself.

    A worker process (`affinity_worker_process`) needs the string.
    """
    raise pytest.UsageError("override the fixture affinity_app: let it return what stands after `celery -A`")


@pytest.fixture
def affinity_broker(affinity_server: EmbeddedServer, affinity_app: Celery | str) -> Iterator[str]:
    """The URL of the emptied server, which the app uses during the test: enough for a test that only publishes.

    A Redis result backend also uses this server; other result backends are unchanged.
    """
    with redis.Redis.from_url(affinity_server.url) as client:
        client.flushall()
    with directed(load_app(affinity_app), affinity_server.url):
        yield affinity_server.url


@pytest.fixture
def affinity_worker(
    affinity_broker: str,  # noqa: ARG001  # points the app at the server
    affinity_app: Celery | str,
) -> Iterator[Callable[..., WorkerThread]]:
    """Start a worker in a thread of the tests' process: ``affinity_worker("pdf", "excel", concurrency=1)``.

    The worker's tasks see the test's patches. A test can run one such worker at a time. Without types, the worker
    serves the app's default queue. See `WorkerThread`.
    """
    started: list[WorkerThread] = []

    def start(*types: str, concurrency: int = 1) -> WorkerThread:
        worker = WorkerThread(load_app(affinity_app), *types, concurrency=concurrency)
        worker.start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def affinity_worker_process(
    request: pytest.FixtureRequest,
    affinity_broker: str,  # noqa: ARG001  # points the app at the server
    affinity_app: Celery | str,
) -> Iterator[Callable[..., WorkerProcess]]:
    """Start a real worker: ``affinity_worker_process("pdf", concurrency=1, pool="prefork")``. See `WorkerProcess`.

    A test can have any number of such workers. pytest shows their logs if the test fails.
    """
    started = request.node.stash.setdefault(_PROCESSES, [])

    def start(*types: str, concurrency: int = 1, pool: str = "prefork") -> WorkerProcess:
        worker = WorkerProcess(affinity_app, *types, concurrency=concurrency, pool=pool)
        started.append(worker)  # before the start, so that the log is shown even if the start fails
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.terminate()  # all of them before the first wait, because a worker takes a while to stop
    for worker in started:
        worker.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of a failed test's worker processes."""
    report = yield
    if report.failed:
        for process in item.stash.get(_PROCESSES, []):
            report.sections.append((f"log of {process.name}", process.log()))
    return report
