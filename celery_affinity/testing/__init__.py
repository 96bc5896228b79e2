"""Fixtures for the tests of your own app: a real server, and workers that serve the types you name. No Docker.

    # conftest.py
    pytest_plugins = ["celery_affinity.testing"]

    @pytest.fixture
    def affinity_app():
        return "shop"  # what stands after `celery -A`, or the app itself

    # test_shop.py
    def test_an_invoice_is_rendered(affinity_worker):
        affinity_worker("pdf")
        assert render.delay("invoice").get(timeout=10) == "invoice.pdf"

Tests name this plugin, which is no entry point: pytest would load an entry point in every run on every machine with
this package, and Celery and redis-py with it, before coverage measures, and no line would say where the fixtures come
from.
"""

from collections.abc import Callable, Generator, Iterator

import pytest
import redis
from celery import Celery

from ..embedded.server import EmbeddedServer
from .app import directed_app, load_app
from .workers import WorkerProcess, WorkerThread

__all__ = [
    "WorkerProcess",
    "WorkerThread",
    "affinity_app",
    "affinity_broker",
    "affinity_server",
    "affinity_worker",
    "affinity_worker_process",
    "directed_app",
]

_PROCESSES = pytest.StashKey[list[WorkerProcess]]()


@pytest.fixture(scope="session")
def affinity_server() -> Iterator[EmbeddedServer]:
    """A Valkey server, one for the whole run; with pytest-xdist, one for each of its processes."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def affinity_app() -> Celery | str:
    """Your app: override this fixture. Return the text that stands after ``celery -A``, or the app itself.

    A worker process (`affinity_worker_process`) needs the text.
    """
    raise pytest.UsageError("override the fixture affinity_app: let it return what stands after `celery -A`")


@pytest.fixture
def affinity_broker(affinity_server: EmbeddedServer, affinity_app: Celery | str) -> Iterator[str]:
    """The URL of the server, which is emptied, and to which the app is directed: enough for a test that only publishes.

    A Redis result backend is directed to the server too; a result backend of another kind stays.
    """
    with redis.Redis.from_url(affinity_server.url) as client:
        client.flushall()
    with directed_app(load_app(affinity_app), affinity_server.url):
        yield affinity_server.url


@pytest.fixture
def affinity_worker(
    affinity_broker: str,  # noqa: ARG001  # asked for: it directs the app
    affinity_app: Celery | str,
) -> Iterator[Callable[..., WorkerThread]]:
    """Start a worker in a thread of the tests' process: ``affinity_worker("pdf", "excel", concurrency=1)``.

    The worker's tasks see what the test has patched. A test has one such worker at a time. Without types the worker
    serves the app's default queue. See `WorkerThread`.
    """
    started: list[WorkerThread] = []

    def start(*types: str, concurrency: int = 1) -> WorkerThread:
        worker = WorkerThread(load_app(affinity_app), *types, concurrency=concurrency)
        worker.start()
        started.append(worker)
        return worker

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def affinity_worker_process(
    request: pytest.FixtureRequest,
    affinity_broker: str,  # noqa: ARG001  # asked for: it directs the app
    affinity_app: Celery | str,
) -> Iterator[Callable[..., WorkerProcess]]:
    """Start a real worker: ``affinity_worker_process("pdf", concurrency=1, pool="prefork")``. See `WorkerProcess`.

    A test may have any number of such workers. pytest shows their logs if the test fails.
    """
    started = request.node.stash.setdefault(_PROCESSES, [])

    def start(*types: str, concurrency: int = 1, pool: str = "prefork") -> WorkerProcess:
        worker = WorkerProcess(affinity_app, *types, concurrency=concurrency, pool=pool)
        started.append(worker)  # before the start: the log is shown even if the start fails
        worker.start()
        return worker

    yield start
    for each in started:
        each.terminate()  # all of them before the first wait: a worker takes a while to stop
    for each in started:
        each.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the worker processes of a test that failed."""
    report = yield
    if report.failed:
        for process in item.stash.get(_PROCESSES, []):
            report.sections.append((f"log of {process.name}", process.log()))
    return report
