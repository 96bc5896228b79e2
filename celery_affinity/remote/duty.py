"""What a process does for the fleet whose workers it stands for: it ticks, as each of Celery's workers does.

A fleet may have no other workers. The duty begins with the first request of a worker, and ends with the event loop.
"""

import asyncio
import socket
from collections.abc import Callable

from celery import Celery

from ..callers import chord_parts
from ..callers.announcer import Announcer
from ..callers.teller import Teller
from ..dispatcher.dispatcher import Dispatcher
from ..dispatcher.ingest import Ingest
from ..dispatcher.recurring_calls import RecurringCalls
from ..server.scheduler import Scheduler

#: Pause, s, after a broker that did not answer.
_PAUSE_S = 1.0


class Duty:
    """A dispatcher for *app*, while the event loop runs that began it. *opened* returns a scheduler of its own."""

    def __init__(self, app: Celery, opened: Callable[[], Scheduler]) -> None:
        self._app, self._opened = app, opened
        self._task: asyncio.Task[None] | None = None
        self._dispatcher: Dispatcher | None = None

    def begin(self) -> None:
        """Begin, unless that is done."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._until_the_loop_ends())

    def tick(self) -> None:
        """Tick now: something is due sooner than the next tick."""
        if self._dispatcher is not None:
            self._dispatcher.wake()

    async def _until_the_loop_ends(self) -> None:
        scheduler = None
        while scheduler is None:
            try:
                scheduler = await asyncio.to_thread(self._opened)
            except Exception:  # the broker is down: requests say so
                await asyncio.sleep(_PAUSE_S)
        chord_parts.install()
        teller = Teller(self._app, f"web@{socket.gethostname()}", lambda: None)
        recurring = RecurringCalls(self._app, teller)
        self._dispatcher = Dispatcher(scheduler, Announcer(teller), Ingest(self._app), recurring)
        self._dispatcher.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._dispatcher.stop()
            scheduler.close()
