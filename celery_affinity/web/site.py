"""State shared by all routes: the app, its jobs, its broker, the request threads, and the right to see values."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
from ..reports.report import Source
from ..scheduler.cohorts import Cohorts
from ..schema import values
from ..schema.keys import StockLists
from ..settings.table import Settings
from ..transport.app_api import stock_lists_of
from .auth import SEES_AS
from .broker import Broker, RequestThreads
from .replies import RefusedError
from .traces import Traces

#: Maximum number of jobs per query.
_MAX_JOBS = 100


class CoalescedReads:
    """Reads jobs by id with *look*. Requests that arrive during a query share the next one, which saves load."""

    def __init__(self, look: Callable[[Sequence[str]], Awaitable[Sequence[Job]]]) -> None:
        self._look = look
        self._pending: list[tuple[str, asyncio.Future[Job]]] = []
        self._task: asyncio.Task[None] | None = None

    async def get(self, id: str) -> Job:
        """Return the current or a later state of a job. Raises the errors of its query."""
        future: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        self._pending.append((id, future))
        if self._task is None:
            self._task = asyncio.create_task(self._read_all())
        return await future

    async def _read_all(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending[:_MAX_JOBS], self._pending[_MAX_JOBS:]
                await self._answer(batch)
        finally:
            self._task = None

    async def _answer(self, batch: Sequence[tuple[str, "asyncio.Future[Job]"]]) -> None:
        try:
            jobs = await self._look([job_id for job_id, _ in batch])
        except Exception as exc:
            for _, future in batch:
                if not future.done():
                    future.set_exception(exc)
            return
        for (_, future), job in zip(batch, jobs, strict=True):
            if not future.done():  # otherwise its client closed the connection
                future.set_result(job)


T = TypeVar("T")

#: Number of threads, and maximum seconds of a request in one: for the broker, and for untrusted code.
_OF_BROKER, _BROKER_S = 8, 10.0
_OF_FOREIGN, _FOREIGN_S = 8, 10.0


@dataclass
class Site:
    """The HTTP interface of *app*."""

    app: Celery
    #: Patterns of the tasks that can be submitted.
    allow: tuple[str, ...]
    traces: Traces
    broker: Broker = field(init=False)
    jobs: Jobs = field(init=False)
    settings: Settings = field(init=False)
    #: Redis lists to which stock Celery's producers of the app publish.
    lists: StockLists = field(init=False)
    listening: InboxPoller = field(init=False)
    dispatcher_duty: DispatcherDuty = field(init=False)

    def __post_init__(self) -> None:
        self.broker = Broker(self.app)
        self.settings = settings_of(self.app)
        self.lists = stock_lists_of(self.app)
        self.listening = InboxPoller(lambda: self.broker.call(self.broker.opened), self.settings.heartbeat_interval)
        self.dispatcher_duty = DispatcherDuty(self.app, self.broker.opened)
        self.jobs = Jobs(self.app, self.broker.reach)
        self._threads = RequestThreads("affinity-web", _OF_BROKER, _BROKER_S)
        self._together = CoalescedReads(lambda ids: self.ask(self.jobs.known_many, ids))
        self._broker_of_foreign = Broker(self.app)  # one connection per thread, and few more
        self._foreign = RequestThreads("affinity-web-foreign", _OF_FOREIGN, _FOREIGN_S)

    async def job(self, id: str) -> Job:
        """Return a job's state in Redis. Simultaneous requests share a query: see `CoalescedReads`."""
        return await self._together.get(id)

    async def ask(self, function: Callable[..., T], *args: object) -> T:
        """Run *function* on the broker and return its result. Raises BrokerDownError, BusyError and its errors."""
        return await self._threads.run(self.broker.call, function, *args)

    async def with_scheduler(self, function: Callable[..., T], *args: object) -> T:
        """Run *function* with the scheduler of `default` as its first argument."""
        return await self.with_fleet(lambda fleet: function(fleet.main, *args))

    async def with_fleet(self, function: Callable[..., T], *args: object) -> T:
        """Run *function* with the cohorts as its first argument."""
        return await self.ask(self.broker.with_fleet, function, *args)

    async def run_untrusted(self, function: Callable[..., T], *args: object) -> T:
        """Run *function*, which executes code of users, of Celery or of a result backend, and can block."""
        return await self._foreign.run(self.broker.call, function, *args)

    async def foreign_with_scheduler(self, function: Callable[..., T], *args: object) -> T:
        """Run *function*, which executes untrusted code, with the scheduler as its first argument."""
        broker = self._broker_of_foreign
        return await self._foreign.run(broker.call, broker.with_fleet, lambda fleet: function(fleet.main, *args))

    def source(self, fleet: Cohorts, hidden_reason: str | None = None) -> Source:
        """Return what a report of *fleet* is read from."""
        return Source(fleet, self.settings, lambda: self.lists, hidden_reason)

    @property
    def is_split(self) -> bool:
        """True if there are cohorts other than `default`."""
        return bool(self.settings.cohorts)

    def allows(self, task: str) -> bool:
        return task in self.app.tasks and any(values.matches(pattern, task) for pattern in self.allow)


def values_hidden_reason(site: Site, request: Request) -> str | None:
    """Return the reason why *request* gets no values (arguments, results, tracebacks), or None if it does."""
    return job_values.hidden_reason(site.app, request.scope.get(SEES_AS, "admin"))


def check_values_setting(site: Site, request: Request, needs_values: bool) -> None:
    """Raise RefusedError for a request that reads or filters values without the right to see them."""
    hidden = values_hidden_reason(site, request) if needs_values else None
    if hidden:
        raise RefusedError(403, hidden)
