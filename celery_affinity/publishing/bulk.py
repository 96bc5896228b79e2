"""Publishing of many calls: bulk publishing, `Producer.batch`, and the warning about types without live workers.

`publish_many`: creating a message takes Celery longer than the rest of a publish. Here Celery creates only the first
call's message, as a template: its routes, serializer, stamps, headers of ``before_task_publish`` handlers and options
apply to all calls. Only ids, arguments and results differ.

The messages of a ``Producer.batch`` (kombu 5.7 or later) wait here and are sent together, many per round trip. Unlike
kombu's Redis transport, this one can resend jobs after a lost reply: a job keeps its id, so a second copy changes
nothing.
"""

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, overload
from weakref import WeakKeyDictionary

import redis
from celery.app.task import Task
from celery.canvas import Signature
from celery.result import AsyncResult, EagerResult
from celery.utils.saferepr import saferepr
from kombu import compression, exceptions, serialization

from ..broker.inflight import InFlightCommands
from ..errors import OptionError, PublishError, QueueFull
from ..log_limit import limited_logger
from ..options.key_templates import derived_task_id
from ..options.type_names import did_you_mean
from ..scheduler.messages import PublishReply
from ..scheduler.reader import as_text
from ..scheduler.runner import TOGETHER
from ..scheduler.scheduler import Scheduler
from ..schema.job_record import NewJob
from ..schema.values import decode_number, decode_part, without_mark
from .app_config import uses_affinity_transport
from .message import PROPERTY, Message, encode_job, job_id, shorten_message, written_message
from .option_resolution import size_of_call, size_of_task
from .publish_call import Capture, CapturedMessage

logger = limited_logger(__name__)
#: Largest number of types that are remembered, so that a publisher that makes up types does not fill its memory.
_MOST = 10_000

#: Largest number of commands that search for a served type with a similar name, and number of types that each of them
#: reads.
_PAGES = 10
_TYPES = 100
_warned: dict[tuple[object, ...], set[str]] = {}
#: The type in the last call of `warn`, by scheduler: the decision whether to log that type is made.
_last: "WeakKeyDictionary[Scheduler, str]" = WeakKeyDictionary()
_lock = threading.Lock()


def warn_unserved(type_: str, scheduler: Scheduler) -> None:
    """Log that jobs of *type_* wait for a worker, once in a process for each type and each place that has workers."""
    if _last.get(scheduler) == type_:
        return  # the next job is most often of the same type
    _last[scheduler] = type_
    place = _place(scheduler)
    with _lock:
        warned_types = _warned.setdefault(place, set())
        if type_ in warned_types or sum(map(len, _warned.values())) >= _MOST:
            return
        warned_types.add(type_)
    logger.warning(
        "No live worker serves type %r: its jobs wait until one does (start a worker with -Q %s)%s",
        type_,
        type_,
        did_you_mean(type_, _served(scheduler)),
    )


def _served(scheduler: Scheduler) -> set[str]:
    """Return types that live workers serve, as many as a few commands find; none if the server forbids the commands."""
    slots_by_type: dict[str, str] = {}
    with suppress(redis.RedisError, OSError):
        cursor = 0
        for _ in range(_PAGES):
            cursor, page = scheduler.client.hscan(scheduler.keys.key("capacity"), cursor, count=_TYPES)
            slots_by_type.update(as_text(page))
            if cursor == 0:
                break
    return {decode_part(without_mark(type_)) for type_, slots in slots_by_type.items() if decode_number(slots) > 0}


def _place(scheduler: Scheduler) -> tuple[object, ...]:
    """Return the place of a scheduler's jobs: server, database, prefix, namespace and cohort."""
    pool, keys = scheduler.client.connection_pool, scheduler.keys
    server = [pool.connection_kwargs.get(name) for name in ("host", "port", "path", "db")]
    return (*server, getattr(pool, "service_name", None), keys.global_keyprefix, keys.namespace, keys.cohort)


#: Number of calls per round trip, and of messages held in memory.
_TOGETHER = 500
#: For a type that refuses calls beyond its bound, at most this fraction of the bound is sent in one step: all or
#: nothing.
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
        return derived_task_id(f"{self.publish_id} {number}")

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
        or not uses_affinity_transport(conf.broker_transport)
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
        capture = Capture()  # the messages that Celery makes of the call: one for each queue that it is routed to
        _publish_one(task, first, ids, {**options, "add_to_parent": False, PROPERTY: capture})
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
        together = min((pattern.max_together for pattern in patterns), default=_TOGETHER)
        while some := list(islice(calls, together)):
            jobs = [pattern.job(call, ids) for call in some for pattern in patterns]
            _send(task, producer, jobs, some[0].number, ids, options)
            yield some[-1].number + 1


class _Pattern:
    """The message of the first call, as a pattern for the messages of the other calls."""

    def __init__(self, task: Any, channel: Any, captured: CapturedMessage, options: Mapping[str, Any]) -> None:
        self._channel, self._queue, self._header = channel, captured.queue, captured.header
        self._rule = captured.rule
        self._task, self._has_size = task, size_of_task(task) is not None
        self._job = encode_job(captured.queue, captured.message, captured.header)
        self._message = message = shorten_message(captured.message, captured.header)
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
    def max_together(self) -> int:
        """The number of calls per round trip."""
        bound = self._job.bound
        if bound is None or not bound.refuses:
            return _TOGETHER
        return max(1, min(TOGETHER, bound.most // _PART_OF_BOUND))

    def job(self, call: _CallOfMany, ids: TaskIds) -> NewJob:
        """Return the job of another call."""
        message, header = self._message, self._header
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
        if rules != header.rules:
            properties.pop(PROPERTY, None)
            properties |= header.left(rules)
        return replace(
            self._job,
            id=job_id(publish_id, self._queue, rules),
            message=written_message(
                {**message, "body": self._body(args, kwargs), "headers": headers, "properties": properties}
            ),
            task_id=task_id,
            delay_us=header.delay_us(),
            expires_us=header.expires_us(),
            rules=rules,
            due=header.due_words(size_of_call(self._task, args, kwargs) if self._has_size else None),
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
        for job, reply in zip(jobs, scheduler.publish(*jobs), strict=True):
            reply.check(job)
            if not reply.served:
                warn_unserved(job.type, scheduler)

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


#: Name and arguments of a redis-py command.
Command = tuple[str, tuple[object, ...]]


class _OfMessage(list["NewJob | Command"]):
    """The jobs and commands of one message, while it is routed."""

    def add(self, name: str, *args: object) -> None:
        """Add a command of kombu's."""
        self.append((name, args))


class BatchChannel(Protocol):
    """The part of `transport.channel.Channel` that a batch uses: its connections, and `AffinityChannel`."""

    pool: redis.ConnectionPool
    scheduler: Scheduler
    routes: object | None

    def scheduler_for(self, type_: str) -> Scheduler: ...
    def publish(self, *jobs: NewJob) -> list[PublishReply]: ...
    def basic_publish(self, message: Message, **options: object) -> object: ...
    def conn_or_acquire(self) -> AbstractContextManager[redis.Redis]: ...


class PublishBatch:
    """The jobs that a ``Producer.batch`` publishes on *channel*, and kombu's commands for other messages.

    A batch is sent when it holds *max_size* of both, at each `flush`, and at the end. The reply to a full batch is
    awaited when the next is full: the server works on one while Celery makes the other.
    """

    def __init__(self, channel: BatchChannel, max_size: int) -> None:
        self.channel = channel
        self.max_size = max_size
        self._jobs: list[NewJob] = []
        self._sent: list[NewJob] = []
        self._in_flight = InFlightCommands(channel.pool)
        self._waits = channel.pool.max_connections == 1
        self._commands: list[Command] = []
        self._unusable: str | None = None

    def publish(self, message: Message, **options: object) -> object:
        """Route one message; nothing of a refused message stays in the batch."""
        self._check_usable()
        of_message = _OfMessage()
        result = self.channel.basic_publish(message, _publish_batch=of_message, **options)
        if self._size and self._size + len(of_message) > self.max_size:
            self._send()
        for item in of_message:
            if isinstance(item, NewJob):
                self._jobs.append(item)
            else:
                self._commands.append(item)
        if self._size >= self.max_size:
            self._send()
        return result

    def flush(self) -> None:
        """Send the waiting jobs and commands. Raises BatchPublishError if it is uncertain that the server has them.

        kombu before 5.7 has neither batches nor this error, so it is read from its module where it is raised.

        Jobs then stay in the batch, and another flush sends them under the same ids, so that none is published twice.
        Raises QueueFull for jobs that exceed the bound of their type. They stay in the batch too.
        """
        self._check_usable()
        self._send()
        self._confirm()

    def _send(self) -> None:
        self._confirm()
        if self._jobs:
            self._send_jobs()
        if self._commands:
            self._send_commands()

    def _send_jobs(self) -> None:
        self._sent, self._jobs = self._jobs, []
        if self.channel.routes is not None:
            return  # `_confirm` sends, each job to its cohort
        scheduler = self.channel.scheduler
        scheduler.client.give_back()
        with suppress(redis.RedisError, OSError):  # the connection was idle for too long: `_confirm` sends again
            scheduler.send_publish(self._in_flight, self._sent)
        if self._waits:
            self._confirm()

    def _confirm(self) -> None:
        """Wait for the replies to the jobs that were sent; send the jobs again if no reply comes."""
        if not self._sent:
            return
        try:
            published = self._received() or self.channel.publish(*self._sent)
        except (redis.RedisError, OSError, exceptions.OperationalError) as exc:  # the last: a cohort's server is down
            self._jobs, self._sent = self._sent + self._jobs, []
            raise exceptions.BatchPublishError(
                f"{len(self._jobs)} jobs may have been published, or not: flush again, which repeats none ({exc})"
            ) from exc
        sent, self._sent = self._sent, []
        self._jobs = [job for job, reply in zip(sent, published, strict=True) if reply.full] + self._jobs
        for job, reply in zip(sent, published, strict=True):
            reply.check(job)
            if not reply.served:  # after the lists are consistent, because a log handler can publish in this batch
                warn_unserved(job.type, self.channel.scheduler_for(job.type))

    def _received(self) -> list[PublishReply]:
        """Return the replies for the jobs that were sent; an empty list if there are none."""
        if self._in_flight.is_under_way:
            with suppress(redis.RedisError, OSError):
                return list(self.channel.scheduler.receive_publish(self._in_flight))
        return []

    def _send_commands(self) -> None:
        commands, self._commands = self._commands, []
        try:
            with self.channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                for name, args in commands:
                    getattr(pipe, name)(*args)
                pipe.execute()
        except Exception as exc:
            self._unusable = "failed"
            raise exceptions.BatchPublishError("messages that are no jobs may have been published, or not") from exc

    def discard(self) -> None:
        """Forget the jobs and commands that were not sent. The reply to jobs that were sent is awaited."""
        self._received()
        self._jobs, self._sent, self._commands, self._unusable = [], [], [], "aborted"

    def close(self) -> None:
        """Reject further messages, and return the connection."""
        self._in_flight.give_back()
        self._unusable = "closed"

    @property
    def _size(self) -> int:
        return len(self._jobs) + len(self._commands)

    def _check_usable(self) -> None:
        if self._unusable == "failed":
            raise exceptions.BatchPublishError("the publish batch cannot be used after a failure")
        if self._unusable:
            raise RuntimeError(f"the publish batch is {self._unusable}")
