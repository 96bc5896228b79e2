"""Many calls of one task, published together: Celery makes the message of the first, a pattern for the others.

Celery's own way from a call to its message takes longer than all the rest of a publish. Here that way is gone once:
routes, serializer, stamps, headers of ``before_task_publish`` handlers and all options of the first call hold for all.
Only ids, arguments and results are each call's own.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple, overload

from celery.app.task import Task
from celery.canvas import Signature
from celery.result import AsyncResult, EagerResult
from celery.utils.saferepr import saferepr
from kombu import compression, serialization

from ..errors import OptionError, PublishError, QueueFull
from ..rules.made_ids import made_task_id
from ..rules.new_job import NewJob
from ..server.calls import TOGETHER
from . import unserved_warning
from .envelope import as_job, shortened, written
from .of_app import is_ours
from .stamp import PROPERTY, job_id
from .stamping import Capture, Captured

#: Number of calls that are sent in one round trip, and of messages that are held in memory at a time.
_TOGETHER = 500

#: Of calls to a type that may refuse them, at most this part of its bound is sent at a time: each time all, or none.
_PART_OF_BOUND = 4


class TaskIds(Sequence[str]):
    """The task ids of the calls that `publish_many` published, in the order of the calls.

    Each id is computed from *publish_id* and the number of its call, so a million of them take no memory.
    """

    def __init__(self, task: Task, publish_id: str, count: int, eager: Sequence[EagerResult] = ()) -> None:
        self._task = task
        self.publish_id = publish_id
        self._count = count
        self._eager = eager

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.of(number) for number in range(self._count)[index]]
        return self.of(range(self._count)[index])

    def __len__(self) -> int:
        return self._count

    def of(self, number: int) -> str:
        """Return the id of call *number*, counted from 0, whether it is published or not."""
        return made_task_id(f"{self.publish_id} {number}")

    def results(self) -> Iterator[AsyncResult | EagerResult]:
        """Yield the result of each call: what ``apply_async`` returns, an AsyncResult or an EagerResult."""
        return iter(self._eager) if self._eager else map(self._task.AsyncResult, self)


class _CallOfMany(NamedTuple):
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def publish_many(
    task: Task, calls: Iterable[object], *, resume: PublishError | None = None, **options: object
) -> TaskIds:
    """Call *task* once for each of *calls*, 500 in one round trip. Return the task ids.

    *calls*: for each call a tuple or list of positional arguments, a mapping of keyword arguments, or a signature of
    *task* without options. The calls are read as they are needed, so a generator may yield millions. *options*: the
    options of ``apply_async`` except ``task_id``, for all calls; ``countdown`` counts in s from now.

    Raises PublishError, with the number of published calls, if publishing fails midway. Pass that error as *resume*,
    with the same calls, to publish the remaining calls, and no call twice. Errors before the first call is sent are
    raised unchanged: OptionError for invalid *options* or calls, and any error of ``apply_async`` or *calls*.
    """
    if not isinstance(task, Task):
        raise OptionError(f"publish_many takes a task, got: {task!r}")
    if "task_id" in options:
        raise OptionError("publish_many makes the ids of its calls: task_id cannot be one of its options")
    publish_id, published = (resume.publish_id, resume.published) if resume else (str(uuid.uuid4()), 0)
    ids, eager = TaskIds(task, publish_id, 0), list[EagerResult]()
    ours = islice((_read(task, number, call) for number, call in enumerate(calls)), published, None)
    try:
        if _needs_each_call(task):
            for call in ours:
                eager.append(_publish_one(task, call, ids, options))
                published = call.number + 1
        else:
            for published in _publish_together(task, ours, ids, options):  # noqa: B007 (how far it came)
                pass
    except PublishError:
        raise
    except Exception as exc:
        if not published:
            raise
        raise PublishError(
            f"{published} calls of {task.name} were published, then: {exc}", publish_id, published
        ) from exc
    return TaskIds(task, publish_id, published, eager if task.app.conf.task_always_eager else ())


def _read(task: Any, number: int, call: object) -> _CallOfMany:
    if isinstance(call, Signature):  # a dict as well
        if call.task != task.name or call.options:
            raise OptionError(f"call {number} must be a signature of {task.name} without options, got: {call!r}")
        return _CallOfMany(number, tuple(call.args), dict(call.kwargs))
    if isinstance(call, Mapping):
        return _CallOfMany(number, (), dict(call))
    if isinstance(call, (tuple, list)):
        return _CallOfMany(number, tuple(call), {})
    raise OptionError(f"call {number} must be a tuple of arguments, a mapping or a signature, got: {call!r}")


def _needs_each_call(task: Any) -> bool:
    """Return whether Celery has to make every message of *task*: the messages may differ in more than arguments."""
    conf, own = task.app.conf, task.__class__  # ``__class__``, not ``type()``: a task may be a proxy
    return bool(
        conf.task_always_eager
        or conf.task_protocol != 2
        or not is_ours(conf.broker_transport)
        or own.apply_async is not Task.apply_async
        or own.shadow_name is not Task.shadow_name
    )


def _publish_one(task: Any, call: _CallOfMany, ids: TaskIds, options: dict[str, Any]) -> Any:
    return task.apply_async(call.args, call.kwargs, task_id=ids.of(call.number), **options)


def _publish_together(task: Any, calls: Iterator[_CallOfMany], ids: TaskIds, options: dict[str, Any]) -> Iterator[int]:
    """Publish *calls*. Yield after each round trip the number of calls that are published, from the first of all."""
    first = next(calls, None)
    if first is None:
        return
    with task.app.producer_or_acquire(options.get("producer")) as producer:
        options = {**options, "producer": producer}
        capture = _capture(task, first, ids, options)
        patterns = [_Pattern(task, producer.channel, each, options) for each in capture]
        if capture.published or not capture:  # the first call went to a queue that is not scheduled
            if patterns:  # and to a scheduled queue as well
                _send(task, producer, [pattern.job(first, ids) for pattern in patterns], first.number, ids, options)
            yield first.number + 1
            for call in calls:
                _publish_one(task, call, ids, options)
                yield call.number + 1
            return
        calls = chain([first], calls)
        together = min((pattern.most_together for pattern in patterns), default=_TOGETHER)
        while some := list(islice(calls, together)):
            jobs = [pattern.job(call, ids) for call in some for pattern in patterns]
            _send(task, producer, jobs, some[0].number, ids, options)
            yield some[-1].number + 1


def _capture(task: Any, call: _CallOfMany, ids: TaskIds, options: dict[str, Any]) -> Capture:
    """Return the messages that Celery makes of a call: one for each queue that the call is routed to."""
    capture = Capture()
    _publish_one(task, call, ids, {**options, "add_to_parent": False, PROPERTY: capture})
    return capture


class _Pattern:
    """The message of the first call, as a pattern for the messages of the other calls."""

    def __init__(self, task: Any, channel: Any, captured: Captured, options: Mapping[str, Any]) -> None:
        self._channel, self._queue, self._stamp = channel, captured.queue, captured.stamp
        self._rule = captured.rule
        self._job = as_job(captured.queue, captured.message, captured.stamp)
        self._message = message = shortened(captured.message, captured.stamp)
        headers, properties = message["headers"], message["properties"]
        self._is_root = headers["root_id"] == headers["id"]
        self._compression = headers.get("compression")
        self._encoding = properties["body_encoding"]
        self._serializer = serialization.registry.type_to_name[message["content-type"]]
        body = channel.decode_body(message["body"], self._encoding)
        if self._compression:
            body = compression.decompress(body, self._compression)
        content = message["content-type"], message["content-encoding"]
        self._embedded = serialization.loads(body, *content, accept={content[0]})[2]
        # Looked up once: the lookup takes as long as the making of a message.
        self._check = task.__header__ if task.typing else None
        # Celery before 5.7 dumps such arguments in the worker alone.
        self._dump = None if self._serializer == "pickle" else getattr(task, "_dump_pydantic_arguments", None)
        self._levels = task.app.conf.get("task_repr_maxlevels", 3)
        self._longest_args = None if "argsrepr" in options else task.app.amqp.argsrepr_maxsize
        self._longest_kwargs = None if "kwargsrepr" in options else task.app.amqp.kwargsrepr_maxsize

    @property
    def most_together(self) -> int:
        """How many calls are sent at a time."""
        bound = self._job.bound
        if bound is None or not bound.refuses:
            return _TOGETHER
        return max(1, min(TOGETHER, bound.most // _PART_OF_BOUND))

    def job(self, call: _CallOfMany, ids: TaskIds) -> NewJob:
        """Return the job of another call."""
        message, stamp = self._message, self._stamp
        task_id, publish_id = ids.of(call.number), f"{ids.publish_id} {call.number}"
        headers = {**message["headers"], "id": task_id}
        if self._is_root:
            headers["root_id"] = task_id
        if self._longest_args is not None:
            headers["argsrepr"] = saferepr(call.args, self._longest_args, maxlevels=self._levels)
        if self._longest_kwargs is not None:
            headers["kwargsrepr"] = saferepr(call.kwargs, self._longest_kwargs, maxlevels=self._levels)
        properties = {**message["properties"], "correlation_id": task_id, "delivery_tag": task_id}
        args, kwargs = self._arguments(call)
        rules = "" if self._rule is None else self._rule.text(args, kwargs)
        if rules != stamp.rules:
            properties.pop(PROPERTY, None)
            properties |= stamp.left(rules)
        return replace(
            self._job,
            id=job_id(publish_id, self._queue, rules),
            message=written(
                {**message, "body": self._body(args, kwargs), "headers": headers, "properties": properties}
            ),
            task_id=task_id,
            delay_us=stamp.delay_us(),
            expires_us=stamp.expires_us(),
            rules=rules,
        )

    def _arguments(self, call: _CallOfMany) -> tuple[Any, Any]:
        if self._check:
            self._check(*call.args, **call.kwargs)
        return self._dump(call.args, call.kwargs) if self._dump else (call.args, call.kwargs)

    def _body(self, args: Any, kwargs: Any) -> Any:
        _, _, body = serialization.dumps((args, kwargs, self._embedded), serializer=self._serializer)
        if self._compression:
            body, _ = compression.compress(body, self._compression)
        return self._channel.encode_body(body, self._encoding)[0]


def _send(task: Any, producer: Any, jobs: list[NewJob], published: int, ids: TaskIds, options: dict[str, Any]) -> None:
    """Publish jobs, and again after a lost connection, by the app's ``task_publish_retry``. Raises PublishError."""
    conf = task.app.conf
    retry = conf.task_publish_retry if options.get("retry") is None else options["retry"]
    policy = {**conf.task_publish_retry_policy, **(options.get("retry_policy") or {})} if retry else {"max_retries": 0}

    def send() -> None:
        scheduler = producer.channel.scheduler_for(jobs[0].type, publishes=True)  # one task's calls have one type
        for job, each in zip(jobs, scheduler.publish(*jobs), strict=True):
            each.check(job)
            if not each.served:
                unserved_warning.warn(job.type, scheduler)

    try:
        producer.connection.ensure(producer, send, **policy)()
    except QueueFull as exc:
        if not published:
            raise
        raise PublishError(
            f"{published} calls of {task.name} were published: {exc}", ids.publish_id, published
        ) from exc
    except Exception as exc:
        raise PublishError(
            f"{published} calls of {task.name} were published, and perhaps some of the next {len(jobs)}: {exc}",
            ids.publish_id,
            published,
        ) from exc
