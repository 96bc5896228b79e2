"""Requests that ask for jobs at the same time share one query of the broker, so each costs less under load.

What all routes share: the app, its jobs, its broker, and the threads in which requests wait.

Who sees arguments, results and tracebacks: the setting `affinity_show_values_to`, and the role of the token.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from celery import Celery
from fastapi import Request

from ..admin import job_values
from ..admin.jobs import Jobs
from ..http_workers.handout import InboxPoller
from ..http_workers.heartbeat import DispatcherDuty
from ..publishing.app_config import settings_of
from ..reports.jobs import Job
from ..schema import values
from ..schema.bounds import Bound
from ..schema.keys import StockLists
from ..transport.app_api import stock_lists_of
from .auth import SEES_AS
from .broker import Broker, RequestThreads
from .replies import RefusedError
from .traces import Traces

#: Largest number of jobs of one look.
_MOST = 100


class CoalescedReads:
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


T = TypeVar("T")

#: Number of threads, and the longest time of a request in one, s: for the broker, and for what runs foreign code.
_OF_BROKER, _BROKER_S = 8, 10.0
_OF_FOREIGN, _FOREIGN_S = 8, 10.0


@dataclass
class Site:
    """The HTTP interface of *app*. *allow*: patterns of the tasks that can be submitted.

    *traces*: for the lab. *bounds*: the setting ``affinity_max_pending``. *lists*: where stock Celery's producers of
    the app put messages.
    """

    app: Celery
    allow: tuple[str, ...]
    traces: Traces
    broker: Broker = field(init=False)
    jobs: Jobs = field(init=False)
    bounds: Mapping[str, int | Bound] = field(init=False)
    lists: StockLists = field(init=False)
    listening: InboxPoller = field(init=False)
    duty: DispatcherDuty = field(init=False)

    def __post_init__(self) -> None:
        self.broker = Broker(self.app)
        self.bounds = settings_of(self.app).max_pending
        self.lists = stock_lists_of(self.app)
        self.listening = InboxPoller(
            lambda: self.broker.call(self.broker.opened), settings_of(self.app).heartbeat_interval
        )
        self.dispatcher_duty = DispatcherDuty(self.app, self.broker.opened)
        self.jobs = Jobs(self.app, self.broker.reach)
        self._threads = RequestThreads("affinity-web", _OF_BROKER, _BROKER_S)
        self._together = CoalescedReads(lambda ids: self.ask(self.jobs.known_many, ids))
        self._broker_of_foreign = Broker(self.app)  # its pool of connections has one for each thread, and few more
        self._foreign = RequestThreads("affinity-web-foreign", _OF_FOREIGN, _FOREIGN_S)

    async def job(self, id: str) -> Job:
        """Return what Redis knows of a job. Requests that come together are one look: see `Together`."""
        return await self._together.get(id)

    async def ask(self, function: Callable[..., T], *args: object) -> T:
        """Return what *function* learns on the broker. Raises BrokerDownError, BusyError, or what it raises."""
        return await self._threads.run(self.broker.call, function, *args)

    async def with_scheduler(self, function: Callable[..., T], *args: object) -> T:
        """Return what *function*, which takes the scheduler of `default` first, does."""
        return await self.ask(_with_scheduler, self.broker, function, *args)

    async def with_fleet(self, function: Callable[..., T], *args: object) -> T:
        """Return what *function*, which takes the cohorts first, does."""
        return await self.ask(_with_fleet, self.broker, function, *args)

    async def run_untrusted(self, function: Callable[..., T], *args: object) -> T:
        """Return what *function* does, which runs code of users, of Celery or of a result backend, and may hang."""
        return await self._foreign.run(self.broker.call, function, *args)

    async def foreign_with_scheduler(self, function: Callable[..., T], *args: object) -> T:
        """Return what *function*, which takes the scheduler first and runs foreign code, does."""
        return await self._foreign.run(
            self._broker_of_foreign.call, _with_scheduler, self._broker_of_foreign, function, *args
        )

    @property
    def is_split(self) -> bool:
        """Whether there are other cohorts than `default`."""
        return bool(settings_of(self.app).cohorts)

    def allows(self, task: str) -> bool:
        """Return whether *task* can be submitted."""
        return task in self.app.tasks and any(values.matches(pattern, task) for pattern in self.allow)


def _with_scheduler(broker: Broker, function: Callable[..., T], *args: object) -> T:
    with broker.reach() as fleet:
        return function(fleet.main, *args)


def _with_fleet(broker: Broker, function: Callable[..., T], *args: object) -> T:
    with broker.reach() as fleet:
        return function(fleet, *args)


def values_hidden_reason(site: Site, request: Request) -> str | None:
    """Return why *request* gets no values, in words; None if it does."""
    return job_values.hidden_reason(site.app, request.scope.get(SEES_AS, "admin"))


def check_values_setting(site: Site, request: Request, is_asked: bool) -> None:
    """Raise RefusedError for a request that asks for values, or by values, without the right to see them."""
    hidden = values_hidden_reason(site, request) if is_asked else None
    if hidden:
        raise RefusedError(403, hidden)
