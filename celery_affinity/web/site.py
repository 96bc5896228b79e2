"""What all routes share: the app, its jobs, its broker, and the threads in which requests wait."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from celery import Celery

from ..client.of_app import settings_of
from ..client.stock_lists_of import stock_lists_of
from ..observe.jobs import Job
from ..operate.jobs import Jobs
from ..remote.duty import Duty
from ..remote.listening import Listening
from ..rules import patterns
from ..rules.bounds import Bound
from ..rules.stock_lists import StockLists
from .broker import Broker
from .threads import Threads
from .together import Together
from .traces import Traces

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
    listening: Listening = field(init=False)
    duty: Duty = field(init=False)

    def __post_init__(self) -> None:
        self.broker = Broker(self.app)
        self.bounds = settings_of(self.app).max_pending
        self.lists = stock_lists_of(self.app)
        self.listening = Listening(
            lambda: self.broker.call(self.broker.opened), settings_of(self.app).heartbeat_interval
        )
        self.duty = Duty(self.app, self.broker.opened)
        self.jobs = Jobs(self.app, self.broker.reach)
        self._threads = Threads("affinity-web", _OF_BROKER, _BROKER_S)
        self._together = Together(lambda ids: self.ask(self.jobs.known_many, ids))
        self._broker_of_foreign = Broker(self.app)  # its pool of connections has one for each thread, and few more
        self._foreign = Threads("affinity-web-foreign", _OF_FOREIGN, _FOREIGN_S)

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

    async def foreign(self, function: Callable[..., T], *args: object) -> T:
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
        return task in self.app.tasks and any(patterns.matches(pattern, task) for pattern in self.allow)


def _with_scheduler(broker: Broker, function: Callable[..., T], *args: object) -> T:
    with broker.reach() as fleet:
        return function(fleet.main, *args)


def _with_fleet(broker: Broker, function: Callable[..., T], *args: object) -> T:
    with broker.reach() as fleet:
        return function(fleet, *args)
