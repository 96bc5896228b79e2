"""Live data of the fleet, queried every 2 s while there are viewers, regardless of their number.

A slow viewer gets the latest data next, and misses the data in between.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...clock import SECOND_US
from ...log_limit import limited_logger
from ...reports import cohorts
from ...reports.fleet_status import merge_status, with_unserved_lists
from ...reports.history import LONG_S, Base, read_bases
from ...reports.json import as_json
from ...reports.queue_order import next_jobs_of_all
from ...reports.status import Report, Status
from ...reports.type_metrics import TypeMetrics, metrics_of
from ...scheduler.cohorts import CohortAnswers, Cohorts
from ...scheduler.scheduler import Scheduler
from ...schema.bounds import Bound
from ...schema.histograms import TimeHistogram
from ...schema.keys import StockLists
from ..site import Site

#: Minimum seconds between two kept samples, since each has a few hundred numbers per type.
_MIN_INTERVAL_S = 10.0


class RecentWaits:
    """Wait and run times of the last *kept_s* seconds, as differences between samples of metrics that only grow."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._samples: deque[tuple[float, dict[str, TypeMetrics]]] = deque()

    @property
    def is_empty(self) -> bool:
        return not self._samples

    def add(self, at_s: float, metrics: Iterable[TypeMetrics]) -> dict[str, Any]:
        """Add a sample. Return the compared period in seconds, and a row with p50 and p95 per type and mode."""
        latest = {type_metrics.type: type_metrics for type_metrics in metrics}
        while len(self._samples) > 1 and at_s - self._samples[1][0] >= self._kept_s:
            self._samples.popleft()
        since_s, oldest = self._samples[0] if self._samples else (at_s, latest)
        rows = [row for new in latest.values() for row in _rows(new.since(oldest.get(new.type, TypeMetrics(new.type))))]
        if not self._samples or at_s - self._samples[-1][0] >= _MIN_INTERVAL_S:
            self._samples.append((at_s, latest))
        return {"seconds": at_s - since_s, "rows": rows}


def _rows(grown: TypeMetrics) -> list[dict[str, Any]]:
    rows = []
    if grown.runs.number:
        rows.append({"type": grown.type, "what": "run", **_shares(grown.runs)})
    for mode, times in (("queued", grown.queued), ("on_demand", grown.on_demand)):
        if times.number:
            rows.append({"type": grown.type, "what": mode, **_shares(times)})
    return rows


def _shares(times: TimeHistogram) -> dict[str, Any]:
    return {"jobs": times.number, "p50_s": times.quantile(0.5), "p95_s": times.quantile(0.95)}


logger = limited_logger(__name__)

#: Seconds between two queries of the broker.
INTERVAL_S = 2.0

#: Seconds that the wait and run times cover.
KEPT_S = 900.0

#: Maximum number of viewers; each holds a connection.
MAX_VIEWERS = 200

#: Maximum number of next jobs, and of claimed jobs, that are shown.
_MAX_NEXT, _MAX_CLAIMED = 50, 200

#: Maximum number of types, the busiest ones, with wait and run times.
_MAX_TYPES = 50

#: Seconds after which a viewer gets an empty message, because proxies close silent connections.
_SILENCE_S = 15.0


class News:
    """The live data of *site*'s fleet, for any number of viewers on one event loop."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._waits = RecentWaits(KEPT_S)
        self._text = ""
        self._number = 0
        self._viewers = 0
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def viewing(self) -> Iterator[bool]:
        """Admit and count a viewer, or yield False if there are already `MAX_VIEWERS`.

        The check and the count run in one step of the event loop, so no other request runs between them.
        """
        is_admitted = self._viewers < MAX_VIEWERS
        self._viewers += is_admitted
        try:
            yield is_admitted
        finally:
            self._viewers -= is_admitted

    async def events(self) -> AsyncIterator[str]:
        """Yield the live data as server-sent events. Call it within `viewing`."""
        seen = 0  # number of the latest data that this viewer has
        if self._task is None or self._task.done():
            seen = self._number  # that data is old: the last viewer left before the next query
            self._task = asyncio.create_task(self._query_periodically())
        while True:
            if seen != self._number:
                seen = self._number
                yield self._text
            elif not await self._has_changed(seen):
                yield ": nothing new\n\n"

    async def _has_changed(self, seen: int) -> bool:
        try:
            async with asyncio.timeout(_SILENCE_S), self._changed:
                await self._changed.wait_for(lambda: self._number != seen)
        except TimeoutError:
            return False
        return True

    async def _query_periodically(self) -> None:
        """Query the broker periodically while there are viewers."""
        self._waits = RecentWaits(KEPT_S)
        while self._viewers:
            await self._query()
            await asyncio.sleep(INTERVAL_S)

    async def _query(self) -> None:
        try:
            settings, lists = self._site.settings, self._site.lists
            snapshot = await self._site.with_fleet(_snapshot, settings.max_pending, lists, self._waits.is_empty)
        except Exception as exc:  # the broker is down, or refuses: the web UI shows that, and this loop continues
            logger.debug("No news: %s", exc)
            await self._publish(_event("down", json.dumps({"at": time.time(), "why": str(exc)}, allow_nan=False)))
            return
        for at_s, metrics in snapshot.pop("before", []):
            self._waits.add(at_s, metrics)
        snapshot["times"] = self._waits.add(snapshot["now_s"], snapshot.pop("metrics", []))
        data = json.dumps(snapshot, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        await self._publish(_event("news", data))

    async def _publish(self, text: str) -> None:
        async with self._changed:
            self._text = text
            self._number += 1
            self._changed.notify_all()


def _event(name: str, data: str) -> str:
    safe = data.encode(errors="replace").decode()  # JSON only has escaped line breaks
    return f"event: {name}\ndata: {safe}\n\n"


def _snapshot(
    fleet: Cohorts, bounds: Mapping[str, int | Bound], lists: StockLists, with_before: bool
) -> dict[str, Any]:
    """Return the state of the fleet. *with_before*: also return metrics of the last 20 minutes, with their times."""
    answers = fleet.each(lambda scheduler: Report(scheduler.reader, bounds).status())
    status = with_unserved_lists(fleet, merge_status(answers), lists)
    upcoming, _ = next_jobs_of_all(fleet, None, _MAX_NEXT)
    now_s = fleet.main.reader.now_us() / SECOND_US
    busiest = sorted(status.types, key=lambda type_: type_.pending + (type_.claimed or 0), reverse=True)[:_MAX_TYPES]
    types = [type_.type for type_ in busiest]

    def metrics_of_cohort(scheduler: Scheduler) -> list[TypeMetrics]:
        cohort = scheduler.keys.cohort
        return metrics_of(scheduler.reader, [type_ for type_ in types if fleet.cohort_of(type_) == cohort])

    metrics = fleet.each(metrics_of_cohort)
    return {
        "status": as_json(status),
        "cohorts": [_cohort_counts(name, answers) for name in fleet.names] if fleet.is_split else [],
        "next": as_json(upcoming),
        "claimed": as_json(cohorts.held_keys(fleet, _MAX_CLAIMED)),
        "now_s": now_s,
        "metrics": [type_metrics for cohort_metrics in metrics.answers.values() for type_metrics in cohort_metrics],
        "before": _metrics_before(fleet) if with_before else [],
    }


def _metrics_before(fleet: Cohorts) -> list[tuple[float, list[TypeMetrics]]]:
    """Return the metrics at the last points of 5 min, with their times, the oldest first."""
    bases = fleet.each(lambda scheduler: read_bases(scheduler.reader, LONG_S))
    by_number: dict[int, list[Base]] = {}
    for cohort_bases in bases.answers.values():
        for base in cohort_bases:
            by_number.setdefault(base.at_us // (LONG_S * SECOND_US), []).append(base)
    return [
        (max(base.at_us for base in cohort_bases) / SECOND_US, [m for b in cohort_bases for m in b.metrics().values()])
        for _, cohort_bases in sorted(by_number.items())
    ]


def _cohort_counts(name: str, answers: CohortAnswers[Status]) -> dict[str, Any]:
    """Return the counts of a cohort, or its error as *down*."""
    status = answers.answers.get(name)
    if status is None:
        return {"cohort": name, "down": answers.down.get(name, "")}
    return {
        "cohort": name,
        "pending": sum(type_.pending for type_ in status.types),
        "claimed": sum(type_.claimed or 0 for type_ in status.types),
        "scheduled": status.scheduled,
        "dead": status.dead,
        "workers": len(status.workers),
        "free": sum(worker.free for worker in status.workers),
        "slots": sum(worker.slots for worker in status.workers),
    }
