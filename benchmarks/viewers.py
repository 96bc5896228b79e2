"""Measures the broker load of the web UI for different numbers of viewers, and the rate of job queries by id."""

import asyncio
import itertools
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis

from celery_affinity.reports.history import KEPT, SHORT_S, Point, TypePoint, checksum_of
from celery_affinity.schema.keys import Keys
from tests.support.apps import APP
from tests.support.processes import Process, wait_until
from tests.whole.large.fleet import LargeFleet

from .bench import Bench, print_progress
from .meter import Meter
from .results import Named, Part

#: Numbers of types and workers for which the goals are defined.
TYPES, WORKERS = 20, 100

#: Numbers of browsers with an open page.
VIEWERS = (1, 50)

#: Number of simultaneous connections that query jobs, and number of queried jobs.
_CLIENTS, _JOBS = 32, 1000

#: Seconds after the pages are opened until the measurement begins, because a new page reads more at first.
_SETTLES_S = 5.0

_BOOT_S = 60.0

#: Seconds between two reads of the charts by a browser.
_CHARTS_EVERY_S = 10.0


def viewers_name(number: int) -> str:
    return f"the page, {number} viewer{'' if number == 1 else 's'}"


BY_ID = "jobs by id"


def page(seconds: float, pending: int, executable: str | None) -> Part:
    """Return the share of a core in % that the pages cost the broker, and the rate of job queries by id."""
    part = Part()
    with Bench(executable) as bench:
        print_progress(f"filling: {pending:,} jobs of {TYPES} types, {WORKERS} workers")
        fleet = LargeFleet(bench.client, TYPES)
        fleet.crowd(WORKERS)
        fleet.fill(pending)
        _fill_history(bench.client)
        web = _serve(bench)
        try:
            host, port = wait_until(lambda: re.search(r"http://([\d.]+):(\d+)", web.log()), _BOOT_S, web.log()).groups()
            meter = bench.meter(web.pid)
            for number in VIEWERS:
                part.add(Named(viewers_name(number)), asyncio.run(_page_load(meter, host, int(port), number, seconds)))
            part.add(Named(BY_ID), asyncio.run(_query_rate(meter, host, int(port), min(pending, _JOBS), seconds)))
        finally:
            web.end()
    return part


def _fill_history(client: redis.Redis) -> None:
    """Store one hour of history."""
    names = {checksum_of(type_): type_ for type_ in (f"type-{number}" for number in range(TYPES))}
    client.hset(Keys().key("history_names"), mapping=names)
    now = int(client.time()[0]) // SHORT_S
    for ago in range(KEPT[SHORT_S][0]):
        rows = {checksum: TypePoint(ago, ago % 7, checksum % (ago + 1), 0.5, 9.0) for checksum in names}
        point = Point(now - ago, WORKERS, WORKERS - ago % 9, 10**9, 0.5, 9.0, rows)
        client.rpush(Keys().key("history", str(SHORT_S)), point.packed())


def _serve(bench: Bench) -> Process:
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "web", "--port", "0"]
    return Process("web", command, {"BROKER_URL": bench.url(), "LEDGER": os.devnull, "PYTHONUNBUFFERED": "1"})


async def _page_load(meter: Meter, host: str, port: int, number: int, seconds: float) -> dict[str, float]:
    async with _open_pages(host, port, number):
        await asyncio.sleep(_SETTLES_S)
        before = meter.read()
        await asyncio.sleep(seconds)
        figures = meter.read().a_second_since(before)
    return {
        "broker_percent": figures["server_us"] / 1e4,
        "web_percent": figures["worker_us"] / 1e4,
        "requests": figures["requests"],
    }


@asynccontextmanager
async def _open_pages(host: str, port: int, number: int) -> AsyncIterator[None]:
    """Simulate *number* viewers, who read the event stream, and the charts every 10 s."""
    viewers = [asyncio.create_task(_read_events(host, port)) for _ in range(number)]
    viewers += [asyncio.create_task(_read_charts(host, port, number)) for number in range(number)]
    try:
        yield
    finally:
        failed = [viewer for viewer in viewers if viewer.done()]
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)
        if failed:
            raise RuntimeError(f"the event stream ended for {len(failed)} of {number} viewers")


async def _read_events(host: str, port: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    while await reader.read(65_536):
        pass


async def _read_charts(host: str, port: int, number: int) -> None:
    await asyncio.sleep(_CHARTS_EVERY_S * (number * 0.618 % 1))  # browsers are opened at different times
    while True:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /api/history?period=15m HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"no history: {head[:100]!r}")
        while await reader.read(65_536):
            pass
        writer.close()
        await asyncio.sleep(_CHARTS_EVERY_S)


async def _query_rate(meter: Meter, host: str, port: int, jobs: int, seconds: float) -> dict[str, float]:
    """Query jobs for *seconds* with several clients at the same time."""
    numbers = itertools.cycle(range(jobs))
    until_s = asyncio.get_running_loop().time() + seconds
    before = meter.read()
    counts = await asyncio.gather(*(_query_jobs(host, port, numbers, until_s) for _ in range(_CLIENTS)))
    after = meter.read()
    rate = sum(counts) / (after.seconds - before.seconds)
    # The CPU time has a resolution of one clock tick. A very short run counts as one tick.
    core_s = max(after.worker_cpu_s - before.worker_cpu_s, 1 / os.sysconf("SC_CLK_TCK"))
    return {"rate": rate, "rate_of_a_core": sum(counts) / core_s}


async def _query_jobs(host: str, port: int, numbers: "itertools.cycle[int]", until_s: float) -> int:
    reader, writer = await asyncio.open_connection(host, port)
    count = 0
    while asyncio.get_running_loop().time() < until_s:
        writer.write(f"GET /api/jobs/task-{next(numbers)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"job not found: {head[:100]!r}")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length, "each reply has a content length"
        await reader.readexactly(int(length[1]))
        count += 1
    writer.close()
    return count
