"""Deadlines of the steps of a canvas: a step has to end so early that the later steps can end before the deadline.

The expected run times of the later steps are subtracted from the deadline that a step inherits. Clients do not learn
run times, so a canvas with a deadline and with later steps reads them once, with one command, when it is published.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from celery import Celery
from celery.canvas import Signature
from kombu.exceptions import OperationalError

from ..clock import SECOND_US
from ..log_limit import limited_logger
from ..options.due_times import DEADLINE, earlier
from ..policy.run_times import RunTime
from ..schema.constants import MAX_TASKS_LEARNED
from ..schema.values import decode_text, encode_part

logger = limited_logger(__name__)
#: Types of several parts. A list that Celery makes from a generator stays unread.
_LISTS = (list, tuple)


#: A signature created by Celery, or a dict read from a message.
Composed = TypeVar("Composed", bound=dict[str, Any])


def copy_with(signature: Composed, **changes: object) -> Composed:
    """Return a shallow copy with *changes*. `Signature.clone` copies all options deeply, which is slow."""
    if not isinstance(signature, Signature):
        return cast(Composed, {**signature, **changes})
    copy = cast(Signature, dict.__new__(type(signature)))
    copy.update(signature)
    copy.update(changes)
    vars(copy).update(vars(signature))  # the app, the task
    return cast(Composed, copy)


def leave_time_for_later_steps(signature: Any, deadline: str, app: Celery) -> Any:
    """Return *signature* with earlier deadlines in the tasks that inherited *deadline* and that other steps follow.

    Without run times, for example because the server does not answer, it stays unchanged.
    """
    names = list(dict.fromkeys(_later_tasks(signature, follows=False)))[:MAX_TASKS_LEARNED]
    if not names or app.conf.task_always_eager:
        return signature
    expected_s = _expected_run_times(app, names)
    return _Steps(deadline, expected_s).leave_time(signature, 0.0)[0] if expected_s else signature


def _later_tasks(part: Any, *, follows: bool) -> Iterator[str]:
    """Yield the names of the tasks in *part* that follow another step; of all tasks if *part* *follows* a step."""
    if type(part) in _LISTS:
        for member in part:
            yield from _later_tasks(member, follows=follows)
    elif isinstance(part, dict) and isinstance(kwargs := part.get("kwargs"), dict):
        kind: object = part.get("subtask_type")
        tasks: Any = kwargs.get("tasks")
        if kind == "chain" and type(tasks) in _LISTS:
            yield from _later_tasks(tasks[:1], follows=follows)
            yield from _later_tasks(tasks[1:], follows=True)
        elif kind == "group":
            yield from _later_tasks(tasks, follows=follows)
        elif kind == "chord":
            yield from _later_tasks(kwargs.get("header"), follows=follows)
            yield from _later_tasks(kwargs.get("body"), follows=True)
        elif follows and isinstance(name := part.get("task"), str):
            yield name


def _expected_run_times(app: Celery, names: Sequence[str]) -> dict[str, float]:
    """Return the expected run times in seconds, by task, as far as they are known."""
    from redis.exceptions import RedisError  # imported here: a process that only imports tasks does not need redis

    try:
        with app.producer_or_acquire() as producer:
            reader = producer.channel.scheduler.reader
            values = reader.ask_one("hmget", reader.key("run_times"), [encode_part(name) for name in names])
    except (RedisError, OperationalError, OSError) as exc:  # without the right to read, or the publish fails as well
        logger.debug("The run times for the deadlines of a canvas cannot be read: %s", exc)
        return {}
    learned = {name: RunTime.parse(decode_text(value)) for name, value in zip(names, values, strict=True) if value}
    return {name: run_time.expected_us() / SECOND_US for name, run_time in learned.items() if run_time is not None}


class _Steps:
    """The steps of a canvas with a deadline."""

    def __init__(self, deadline: str, expected_s: Mapping[str, float]) -> None:
        self._deadline = deadline
        self._expected_s = expected_s

    def leave_time(self, part: Any, later_s: float) -> tuple[Any, float]:
        """Return *part*, which steps of *later_s* seconds follow, with earlier deadlines; and its expected run time."""
        if not isinstance(part, dict) or not isinstance(kwargs := part.get("kwargs"), dict):
            return part, 0.0
        kind = part.get("subtask_type")
        if kind in ("chain", "group"):
            tasks, run_s = self._leave_time_in(kwargs.get("tasks"), later_s, in_turn=kind == "chain")
            return copy_with(part, kwargs={**kwargs, "tasks": tasks}), run_s
        if kind == "chord":
            body, body_s = self._leave_time_in(kwargs.get("body"), later_s)
            header, header_s = self._leave_time_in(kwargs.get("header"), later_s + body_s)
            return copy_with(part, kwargs={**kwargs, "header": header, "body": body}), header_s + body_s
        run_s = self._expected_s.get(str(part.get("task")), 0.0)
        options = part.get("options")
        if later_s and isinstance(options, dict) and options.get(DEADLINE) == self._deadline:
            part = copy_with(part, options={**options, DEADLINE: earlier(self._deadline, later_s)})
        return part, run_s

    def _leave_time_in(self, parts: Any, later_s: float, *, in_turn: bool = False) -> tuple[Any, float]:
        """Apply `leave_time` to one or several parts, which run *in_turn* or at the same time."""
        if type(parts) not in _LISTS:
            return self.leave_time(parts, later_s)
        new, total_s = [], 0.0
        for part in reversed(parts):
            changed, run_s = self.leave_time(part, later_s + total_s if in_turn else later_s)
            total_s = total_s + run_s if in_turn else max(total_s, run_s)
            new.append(changed)
        new.reverse()
        return tuple(new) if isinstance(parts, tuple) else new, total_s
