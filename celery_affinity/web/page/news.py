"""How long jobs waited and ran lately: what metrics that only grow have grown by since a few minutes ago.

News of the fleet: read once, whatever the number of viewers, and kept for a quarter of an hour.

The broker is asked every 2 s while somebody looks, and every 10 s else, so that a page that is opened has a past. A
viewer that is slow gets the newest news next, and misses those between.
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
from ...reports.json import as_json
from ...reports.status import Report, Status
from ...reports.type_metrics import TypeMetrics, metrics_of
from ...scheduler.cohorts import CohortAnswers, Cohorts
from ...scheduler.scheduler import Scheduler
from ...schema.bounds import Bound
from ...schema.histograms import TimeHistogram
from ...schema.keys import StockLists
from ..site import Site

#: Shortest time, s, between two looks that are kept: each has a few hundred numbers a type.
_BETWEEN_S = 10.0


class RecentWaits:
    """The times of the last *kept_s* seconds, or since the first look."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._looks: deque[tuple[float, dict[str, TypeMetrics]]] = deque()

    def add(self, at_s: float, metrics: Iterable[TypeMetrics]) -> dict[str, Any]:
        """Add a look. Return the seconds that are compared, and a row for each type and mode: halves and 95 %."""
        now = {each.type: each for each in metrics}
        while len(self._looks) > 1 and at_s - self._looks[1][0] >= self._kept_s:
            self._looks.popleft()
        since_s, before = self._looks[0] if self._looks else (at_s, now)
        rows = [
            row for each in now.values() for row in _rows(each.since(before.get(each.type, TypeMetrics(each.type))))
        ]
        if not self._looks or at_s - self._looks[-1][0] >= _BETWEEN_S:
            self._looks.append((at_s, now))
        return {"seconds": at_s - since_s, "rows": rows}


def _rows(grown: TypeMetrics) -> list[dict[str, Any]]:
    found = []
    if grown.runs.number:
        found.append({"type": grown.type, "what": "run", **_shares(grown.runs)})
    for what, times in (("queued", grown.queued), ("on_demand", grown.on_demand)):
        if times.number:
            found.append({"type": grown.type, "what": what, **_shares(times)})
    return found


def _shares(times: TimeHistogram) -> dict[str, Any]:
    return {"jobs": times.number, "p50_s": times.quantile(0.5), "p95_s": times.quantile(0.95)}


logger = limited_logger(__name__)

#: Interval, s, at which the broker is asked while somebody looks, and while nobody does.
LOOKED_AT_S, ALONE_S = 2.0, 10.0

#: Time, s, of which the history is kept.
KEPT_S = 900.0

#: Largest number of viewers; each holds a connection.
MOST_VIEWERS = 200

#: Jobs that are shown as next, and as claimed, at most.
_NEXT, _CLAIMED = 50, 200

#: Types, the busiest ones, that the history has, at most.
_TYPES = 50

#: Time, s, between two samples in which others are missing: a suspended process, or an answer that took long.
_GAP_S = 3 * ALONE_S

#: Pause, s, after which a viewer hears that there is nothing new: proxies close silent connections.
_SILENCE_S = 15.0


class News:
    """The news of *site*'s fleet, for any number of viewers on one event loop."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._history: deque[dict[str, Any]] = deque()
        self._waits = RecentWaits(KEPT_S)
        self._is_gap = False
        self._text = ""
        self._number = 0
        self._viewers = 0
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def viewing(self) -> Iterator[bool]:
        """Admit and count a viewer, or yield False if there are already `MOST_VIEWERS`.

        Check and count run in one step of the event loop, so no other request runs between them.
        """
        is_admitted = self._viewers < MOST_VIEWERS
        self._viewers += is_admitted
        try:
            yield is_admitted
        finally:
            self._viewers -= is_admitted

    async def events(self) -> AsyncIterator[str]:
        """Yield the history and then the news as server-sent events. Call it within `viewing`."""
        self._start()
        yield _event("history", json.dumps(list(self._history), allow_nan=False))
        seen = 0  # the number of the news that are none yet
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

    def _start(self) -> None:
        self._wanted.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._go_on())

    async def _go_on(self) -> None:
        """Look again and again; nobody looks for long after the last viewer has gone."""
        alone_since_s = time.monotonic()
        while time.monotonic() - alone_since_s < KEPT_S:
            self._wanted.clear()
            if self._viewers:
                alone_since_s = time.monotonic()
            await self._look()
            if self._viewers:
                await asyncio.sleep(LOOKED_AT_S)
            else:
                try:
                    async with asyncio.timeout(ALONE_S):
                        await self._wanted.wait()
                except TimeoutError:
                    continue
        self._history.clear()
        self._waits = RecentWaits(KEPT_S)

    async def _look(self) -> None:
        try:
            found = await self._site.with_fleet(_snapshot, self._site.bounds, self._site.lists)
        except Exception as exc:  # the broker is down, or says no: the page says so, and this goes on
            logger.debug("No news: %s", exc)
            self._is_gap = True
            await self._tell(_event("down", json.dumps({"at": time.time(), "why": str(exc)}, allow_nan=False)))
            return
        self._remember(found["sample"])
        found["times"] = self._waits.add(found["sample"]["at"], found.pop("metrics", []))
        data = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        await self._tell(_event("news", data))

    def _remember(self, sample: dict[str, Any]) -> None:
        """Add *sample* to the history. One before which others are missing says so: a plot draws no line to it."""
        if self._history and (self._is_gap or sample["at"] - self._history[-1]["at"] > _GAP_S):
            sample["gap"] = True
        self._is_gap = False
        self._history.append(sample)
        while sample["at"] - self._history[0]["at"] > KEPT_S:
            self._history.popleft()

    async def _tell(self, text: str) -> None:
        async with self._changed:
            self._text = text
            self._number += 1
            self._changed.notify_all()


def _event(name: str, data: str) -> str:
    safe = data.encode(errors="replace").decode()  # JSON has no line breaks but escaped ones
    return f"event: {name}\ndata: {safe}\n\n"


def _snapshot(fleet: Cohorts, bounds: Mapping[str, int | Bound], lists: StockLists) -> dict[str, Any]:
    asked = fleet.each(lambda scheduler: Report(scheduler.reader, bounds).status())
    status = cohorts.with_unserved_lists(fleet, cohorts.merge_status(asked), lists)
    upcoming, _ = cohorts.next_jobs_of_all(fleet, None, _NEXT)
    now_s = fleet.main.reader.now_us() / SECOND_US
    sample = _sample(status, now_s)
    metrics = fleet.each(
        lambda one: metrics_of(one.reader, [type_ for type_ in sample["types"] if _is_of(type_, one, fleet)])
    )
    return {
        "status": as_json(status),
        "cohorts": [_of_cohort(name, asked) for name in fleet.names] if fleet.is_split else [],
        "next": as_json(upcoming),
        "claimed": as_json(cohorts.held_keys(fleet, _CLAIMED)),
        "now_s": now_s,
        "sample": sample,
        "metrics": [each for its in metrics.answers.values() for each in its],
    }


def _of_cohort(name: str, asked: CohortAnswers[Status]) -> dict[str, Any]:
    """Return the counts of a cohort; *down*: the error, if there are none."""
    its = asked.answers.get(name)
    if its is None:
        return {"cohort": name, "down": asked.down.get(name, "")}
    return {
        "cohort": name,
        "pending": sum(each.pending for each in its.types),
        "claimed": sum(each.claimed or 0 for each in its.types),
        "scheduled": its.scheduled,
        "dead": its.dead,
        "workers": len(its.workers),
        "free": sum(each.free for each in its.workers),
        "slots": sum(each.slots for each in its.workers),
    }


def _is_of(type_: str, scheduler: Scheduler, fleet: Cohorts) -> bool:
    return not fleet.is_split or fleet.cohort_of(type_) == scheduler.keys.cohort


def _sample(status: Status, now_s: float) -> dict[str, Any]:
    busiest = sorted(status.types, key=lambda each: each.pending + (each.claimed or 0), reverse=True)[:_TYPES]
    return {"at": now_s, "types": {each.type: [each.pending, each.claimed] for each in busiest}}
