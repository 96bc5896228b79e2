"""Measure the time that observers take, and how long they block the server, with a large backlog.

The measured time begins with the observer's first command and ends with the finished output. It excludes the start of
an interpreter.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass

import redis
from kombu import Connection

from celery_affinity.cli import explain_text
from celery_affinity.embedded import EmbeddedServer
from celery_affinity.reports.explain import explain
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.flower import FleetObserver, merge_flower_rows
from celery_affinity.reports.job_lists import JobFilter, jobs_page
from celery_affinity.reports.json import as_json
from celery_affinity.reports.metrics import metrics_text, read_metrics
from celery_affinity.reports.queue_order import NEXT_JOBS, next_jobs
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.transport.app_api import fleet_on, scheduler_on
from tests.whole.large.fleet import NOTED_FROM_US, LargeFleet

from .bench import print_progress

OBSERVERS = ("status", "pending", "explain", "metrics", "Flower's page", "a page of jobs")

#: Number of types at the scale for which the goals are defined.
USUAL_TYPES = 20

_TRANSPORT = "celery_affinity:Transport"

#: Commands that the benchmark itself sends.
_OWN = (b"CONFIG", b"SLOWLOG")


@dataclass(frozen=True)
class Pending:
    """The number of pending jobs and the number of types. Each type has 22 lanes."""

    jobs: int
    types: int

    @property
    def name(self) -> str:
        return f"{self.jobs:,} of {self.types:,} types"

    @property
    def baseline(self) -> str | None:
        return None


def scales(jobs: int) -> list[Pending]:
    return [Pending(jobs, USUAL_TYPES), Pending(jobs, 1000)]


@dataclass(frozen=True)
class Look:
    """An observer with a client of the observed server."""

    name: str
    call: Callable[[], object]
    client: redis.Redis
    baseline: str | None = None

    def costs(self, calls: int) -> dict[str, float]:
        """Return the median and the maximum time of *calls* looks in ms, and the same for their longest commands.

        The server measures the command times. An expensive command is slow in every look. A command that waited for a
        CPU core is slow in only one look.
        """
        self.call()  # opens the connection
        looks = [self._look() for _ in range(calls)]
        took_ms, commands_ms = zip(*looks, strict=True)
        return {
            "median_ms": statistics.median(took_ms),
            "longest_ms": max(took_ms),
            "command_ms": statistics.median(commands_ms),
            "longest_command_ms": max(commands_ms),
        }

    def _look(self) -> tuple[float, float]:
        """Return the duration of a look and the duration of its longest command, both in ms."""
        self.client.slowlog_reset()
        began_s = time.perf_counter()
        self.call()
        took_ms = (time.perf_counter() - began_s) * 1000
        durations_us = [
            entry["duration"] for entry in self.client.slowlog_get(10_000) if entry["command"].split()[0] not in _OWN
        ]
        return took_ms, max(durations_us, default=NOTED_FROM_US) / 1000


@contextmanager
def looks(pending: Pending, executable: str | None) -> Iterator[list[Look]]:
    """Fill a server on which a specialist worker and a versatile worker are busy, and yield the observers."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(executable=executable))
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, server.pid, -20)  # other processes must not disturb the measurement
        client = stack.enter_context(redis.Redis.from_url(server.url))
        connection = stack.enter_context(Connection(server.url, transport=_TRANSPORT))
        loop = stack.enter_context(closing(asyncio.new_event_loop()))
        print_progress(f"filling: {pending.name}")
        fleet = LargeFleet(client, pending.types)
        fleet.join("specialist", fleet.types[:1], 8)
        fleet.join("versatile", fleet.served, 100)
        fleet.fill(pending.jobs)
        client.config_set("slowlog-log-slower-than", NOTED_FROM_US)
        client.config_set("slowlog-max-len", 10_000)
        reader = scheduler_on(connection, _TRANSPORT).reader
        task = _in_the_middle(fleet, pending.jobs)
        observer = FleetObserver(connection, fleet_on)
        cursor = jobs_page(reader, JobFilter("pending"), min(1000, pending.jobs // 2)).cursor
        calls: dict[str, Callable[[], object]] = {
            "status": lambda: status_text(Report(reader).status()),
            "pending": lambda: NEXT_JOBS.text(next_jobs(reader, None, 20)),
            "explain": lambda: explain_text.explanation_text(explain(reader, task)),
            "metrics": lambda: metrics_text(read_metrics(reader)),
            "Flower's page": lambda: _rows(loop, observer),
            "a page of jobs": lambda: as_json(jobs_page(reader, JobFilter("pending"), 100, cursor)),
        }
        yield [Look(f"{name}, {pending.name}", calls[name], client) for name in OBSERVERS]


def _in_the_middle(fleet: LargeFleet, jobs: int) -> str:
    """Return the first pending task of a served type in the second half of the published tasks."""
    reader: Reader = fleet.reader
    return next(
        f"task-{number}"
        for number in range(jobs // 2, jobs)
        if (row := reader.hash("job", f"job{number}"))["state"] == "pending" and row["type"] in fleet.served
    )


def _rows(loop: asyncio.AbstractEventLoop, observer: FleetObserver) -> list[dict[str, object]]:
    """Return the rows of Flower's broker page and API, without the list lengths that Flower itself reads."""
    status = loop.run_until_complete(observer.read())
    assert status is not None, "the server answers"
    ours = {row.type: row for row in status.types}
    return merge_flower_rows([{"name": type_, "messages": 0} for type_ in ours], ours, status)
