"""Requests that wait until a job ends: one look at the broker for all of them, five times a second."""

import asyncio
from collections import Counter
from contextlib import suppress

from ..observe import jobs
from ..server.fleet import WholeFleet
from .broker import BrokerDownError
from .replies import RefusedError
from .site import Site
from .threads import BusyError

#: Pause, s, between two looks; largest number of requests that wait at a time.
_PAUSE_S, _MOST = 0.2, 1000


class WaitsForJobs:
    """Wait for jobs of *site*."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._live: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    async def until_ended(self, id: str, seconds: float) -> None:
        """Return when the job *id* has ended, or after *seconds*."""
        if self._waiting.total() >= _MOST:
            raise RefusedError(503, f"{_MOST:,} requests wait already")
        self._waiting[id] += 1
        self._live.add(id)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds), self._changed:
                    await self._changed.wait_for(lambda: id not in self._live)
        finally:
            self._waiting[id] -= 1
            if not self._waiting[id]:
                del self._waiting[id]

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(_PAUSE_S)
            asked = list(self._waiting)
            with suppress(BrokerDownError, BusyError):  # by the next look it may answer
                live = await self._site.with_fleet(_live, asked)
                self._live = (self._live - set(asked)) | live
                async with self._changed:
                    self._changed.notify_all()


def _live(fleet: WholeFleet, ids: list[str]) -> set[str]:
    asked = fleet.each(lambda scheduler: jobs.live(scheduler.reader, ids))
    return set().union(*asked.answers.values())
