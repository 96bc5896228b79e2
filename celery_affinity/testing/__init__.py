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

This is a plugin to name, not an entry point, which pytest would load in every run of everybody who has this package:
with Celery and redis-py behind it, before coverage measures, and with no word in it that says where fixtures come from.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from ..embedded import EmbeddedServer
from .app import directed, load
from .process import WorkerProcess
from .thread import WorkerThread

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
    """A Valkey server, one for the whole run; with pytest-xdist, one for each of its processes."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def affinity_app() -> Celery | str:
    """Override it: return your app, or what stands after ``celery -A``, which `affinity_worker_process` needs."""
    raise pytest.UsageError("override the fixture affinity_app: let it return what stands after `celery -A`")


@pytest.fixture
def affinity_broker(affinity_server: EmbeddedServer, affinity_app: Celery | str) -> Iterator[str]:
    """The URL of the server, which is empty and to which the app is directed; enough for a test that only publishes.

    The result backend is directed there too if it is a Redis; with another one, or none, the app keeps what it has.
    """
    with redis.Redis.from_url(affinity_server.url) as client:
        client.flushall()
    with directed(load(affinity_app), affinity_server.url):
        yield affinity_server.url


@pytest.fixture
def affinity_worker(
    affinity_broker: str,  # noqa: ARG001  # asked for: it directs the app
    affinity_app: Celery | str,
) -> Iterator[Callable[..., WorkerThread]]:
    """Start a worker in a thread of the test: ``affinity_worker("pdf", "excel", concurrency=1)``.

    Its tasks see what the test has patched. A test has one such worker at a time; without types it serves the app's
    default queue. See `WorkerThread`.
    """
    started: list[WorkerThread] = []

    def start(*types: str, concurrency: int = 1) -> WorkerThread:
        worker = WorkerThread(load(affinity_app), *types, concurrency=concurrency)
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

    A test may have any number of them. If it fails, their logs are shown.
    """
    started = request.node.stash.setdefault(_PROCESSES, [])

    def start(*types: str, concurrency: int = 1, pool: str = "prefork") -> WorkerProcess:
        worker = WorkerProcess(affinity_app, *types, concurrency=concurrency, pool=pool)
        started.append(worker)  # before its start: should that fail, its log is shown
        worker.start()
        return worker

    yield start
    for each in started:
        each.terminate()  # all at once: a worker takes a while to stop
    for each in started:
        each.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Show the logs of the worker processes of a test that failed."""
    report = yield
    if report.failed:
        for process in item.stash.get(_PROCESSES, []):
            report.sections.append((f"log of {process.name}", process.log()))
    return report
