"""Requests that ask for jobs at the same time share one query of the broker, so each costs less under load."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ..observe.jobs import Job

#: Largest number of jobs of one look.
_MOST = 100


class Together:
    """Asks *look* for jobs by id: at once if no other look is under way, else with all that came meanwhile."""

    def __init__(self, look: Callable[[Sequence[str]], Awaitable[Sequence[Job]]]) -> None:
        self._look = look
        self._asked: list[tuple[str, asyncio.Future[Job]]] = []
        self._looking: asyncio.Task[None] | None = None

    async def get(self, id: str) -> Job:
        """Return a job, as it is now or later. Raises what the look for it raises."""
        future: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        self._asked.append((id, future))
        if self._looking is None:
            self._looking = asyncio.create_task(self._go_on())
        return await future

    async def _go_on(self) -> None:
        try:
            while self._asked:
                some, self._asked = self._asked[:_MOST], self._asked[_MOST:]
                await self._answer(some)
        finally:
            self._looking = None

    async def _answer(self, some: Sequence[tuple[str, "asyncio.Future[Job]"]]) -> None:
        try:
            found = await self._look([asked for asked, _ in some])
        except Exception as exc:
            for _, future in some:
                if not future.done():
                    future.set_exception(exc)
            return
        for (_, future), job in zip(some, found, strict=True):
            if not future.done():  # else its client closed its connection
                future.set_result(job)
