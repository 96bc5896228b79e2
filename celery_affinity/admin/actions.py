"""Move waiting jobs, find workers that cannot terminate tasks, and filter jobs as requested by users."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery
from kombu import Connection

from ..clock import SECOND_US
from ..errors import OptionError, refuse
from ..options.affinity import check_bool, check_priority
from ..options.key_templates import CallArguments, TemplateField, arguments_read_by, parse_template
from ..options.type_names import ACCEPTED, did_you_mean, is_type_name
from ..policy.score import Weights
from ..publishing.app_config import settings_of
from ..publishing.message import decode_message
from ..publishing.message_body import read_body
from ..publishing.option_resolution import arguments_in
from ..reports.job_lists import JobFilter
from ..reports.jobs import settings_command
from ..scheduler.messages import JobState
from ..scheduler.reader import Reader
from ..scheduler.scheduler import Scheduler
from ..schema.untrusted import is_too_deep
from ..schema.values import SECONDS_OR_0, decode_part, is_readable, matches, without_mark


@dataclass(frozen=True)
class MoveTarget:
    """New type, priority and mode of jobs. None: unchanged. *priority*: 0 to 10, 10 is the highest.

    Raises OptionError for an invalid value, or if all three are None.
    """

    type: str | None = None
    priority: int | None = None
    on_demand: bool | None = None

    def __post_init__(self) -> None:
        if self.type is None and self.priority is None and self.on_demand is None:
            raise OptionError("give the jobs a new type, priority or mode")
        if self.type is not None and not is_type_name(self.type):
            raise refuse("type", ACCEPTED, self.type)
        if self.priority is not None:
            check_priority(self.priority)
        if self.on_demand is not None:
            check_bool("on_demand", self.on_demand)

    def __str__(self) -> str:
        words = [f"type {self.type!r}"] if self.type is not None else []
        words += [f"priority {self.priority}"] if self.priority is not None else []
        words += [("on demand" if self.on_demand else "queued")] if self.on_demand is not None else []
        return ", ".join(words)


@dataclass(frozen=True)
class MoveResult:
    """The outcome of a move. *found*: the previous state of each job. *warning*: about the type, or None."""

    found: list[JobState]
    warning: str | None


def move_job(app: Celery, scheduler: Scheduler, job_ids: Sequence[str], target: MoveTarget) -> MoveResult:
    """Apply *target* to the waiting jobs among *job_ids*. They keep their enqueue time.

    Raises OptionError for a type that *app* does not schedule.
    """
    if target.type is not None and not settings_of(app).schedules(target.type):
        raise refuse("type", "the name of a queue that is scheduled (affinity_queues)", target.type)
    check_target_cohort(app, target, [scheduler.keys.cohort])
    priority = target.priority
    if priority is not None:  # with 10 as the highest: server functions can have another order
        is_reversed, _ = scheduler.reader.ask_one(*settings_command(scheduler.reader))
        priority = Weights(priority_reversed=is_reversed == b"1").read(int(priority))
    moved = scheduler.move(job_ids, type_=target.type, on_demand=target.on_demand, priority=priority)
    warning = None
    if target.type is not None and not moved.served and any(job.waits for job in moved.found):
        served = {decode_part(without_mark(type_)) for type_ in scheduler.reader.capacity()}
        warning = f"no live worker serves type {target.type!r}{did_you_mean(target.type, served)}"
    return MoveResult(moved.found, warning)


def check_target_cohort(app: Celery, target: MoveTarget | None, names: Iterable[str]) -> None:
    """Raise OptionError if *target* has a type of another cohort than the jobs' cohorts *names*."""
    settings = settings_of(app)
    if target is None or target.type is None or not settings.cohorts:
        return
    others = [name for name in names if name != settings.cohort_of(target.type)]
    if others:
        other = settings.cohort_of(target.type)
        raise OptionError(
            f"type must be one of cohort {others[0]!r}, in which the jobs are, got: {target.type!r} of cohort {other!r}"
        )


#: Pools that cannot terminate a task: Celery's implementation -> name.
_POOLS_WITHOUT_TERMINATE = {"celery.concurrency.thread:TaskPool": "threads", "celery.concurrency.solo:TaskPool": "solo"}

#: Seconds to wait for workers. A worker with a solo pool does not answer while a task runs.
_ANSWER_TIMEOUT_S = 1.0


def can_terminate_error(
    app: Celery, workers: Iterable[str | None], connection: Connection | None = None
) -> dict[str, str | None]:
    """Return worker -> its pool's name if the pool cannot terminate a task, or None, for each answering worker.

    *workers*: node names.
    """
    names = sorted({name for name in workers if name})
    if not names:
        return {}
    inspect = app.control.inspect(destination=names, timeout=_ANSWER_TIMEOUT_S, connection=connection)
    pools: dict[str, str | None] = {}
    for name, stats in (inspect.stats() or {}).items():
        pool = stats.get("pool") if isinstance(stats, dict) else None
        implementation = pool.get("implementation") if isinstance(pool, dict) else None
        if isinstance(implementation, str):
            pools[name] = _POOLS_WITHOUT_TERMINATE.get(implementation)
    return pools


_CALL_ARGUMENTS = CallArguments()


@dataclass(frozen=True)
class JobFilters:
    """Filters of jobs. A job must match all given filters.

    *state*, *type*, *task*, *stamp*, *key*: as in `JobFilter`. *older_than_s*, *newer_than_s*: only jobs enqueued at
    least, or at most, this many seconds ago. *argument*: "name=value". The name is written as in a key template
    (``customer``, or ``args[0]`` by position), the value as by ``str``. A ``*`` in it matches any characters.
    """

    state: str | None = None
    type: str | None = None
    task: str | None = None
    stamp: str | None = None
    key: str | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    argument: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == JobFilters()

    def of(self, app: Celery, reader: Reader) -> JobFilter:
        """Return the filter of lists, as of now. *app*: defines the tasks, and so the names of arguments.

        Raises OptionError.
        """
        older_s, newer_s = _age("older_than", self.older_than_s), _age("newer_than", self.newer_than_s)
        if older_s is not None and newer_s is not None and newer_s <= older_s:
            raise refuse("newer_than", f"a longer time than older_than ({older_s:g} s)", newer_s)
        now_s = 0.0 if older_s is newer_s is None else reader.now_us() / SECOND_US
        return JobFilter(
            state=self.state,
            type=self.type,
            task=self.task,
            stamp=self.stamp,
            key=self.key,
            before_s=None if older_s is None else now_s - older_s,
            since_s=None if newer_s is None else now_s - newer_s,
            holds=None if self.argument is None else ArgumentFilter(app, self.argument),
        )


def _age(name: str, given_s: float | None) -> float | None:
    accepted = None if given_s is None else SECONDS_OR_0(given_s)
    if accepted is not None:
        raise refuse(name, accepted, given_s)
    return given_s


class ArgumentFilter:
    """Admits messages with the argument in *text*, "name=value". Raises OptionError for an invalid *text*.

    Messages with unreadable arguments (not JSON, or very large) do not match.
    """

    def __init__(self, app: Celery, text: str) -> None:
        name, equals, value = text.partition("=")
        if not (equals and name and is_readable(text)):
            raise refuse("argument", "a name and a value, name=value, such as customer=17 or args[0]=17", text)
        self._field = _parse_field(name)
        self._value = value
        self._app = app

    def __call__(self, task_name: str, message: bytes) -> bool:
        """Return True if *message*, a call of the task, has the argument with the value."""
        try:
            args, kwargs = arguments_in(task_name, read_body(decode_message(message)))
            task: Any = self._app.tasks.get(task_name)
            arguments = _CALL_ARGUMENTS if task is None else arguments_read_by(task.run)
            value = arguments.value(self._field, args, kwargs)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False
        return not is_too_deep(value) and matches(self._value, str(value))


def _parse_field(name: str) -> TemplateField:
    try:
        (field,) = parse_template("argument", "{" + name + "}")
    except ValueError:
        field = name
    if not isinstance(field, TemplateField) or field.is_task:
        raise OptionError(f"argument must begin with the name of an argument or args[0], then =, got: {name[:100]!r}")
    return field
