"""The messages of a ``Producer.batch`` of kombu 5.7 or later, until they are sent.

Jobs wait here and go out together, many in one round trip. Unlike kombu's Redis transport, this one may send jobs again
after a lost reply: a job keeps its id from its publish on, so a second copy changes nothing.
"""

from contextlib import AbstractContextManager, suppress
from typing import Protocol

import redis
from kombu.exceptions import BatchPublishError, OperationalError

from ..rules.new_job import NewJob
from ..server.connections.in_flight import InFlight
from ..server.replies import Published
from ..server.scheduler import Scheduler
from . import unserved_warning
from .stamp import Message

#: The name of a command of redis-py, and the arguments.
Command = tuple[str, tuple[object, ...]]


class _OfMessage(list["NewJob | Command"]):
    """The jobs and commands of one message, while it is routed."""

    def add(self, name: str, *args: object) -> None:
        """Add a command of kombu's."""
        self.append((name, args))

    def add_job(self, job: NewJob) -> None:
        self.append(job)


class BatchChannel(Protocol):
    """The part of `transport.channel.Channel` that a batch uses: its connections, and `PublishingChannel`."""

    pool: redis.ConnectionPool
    scheduler: Scheduler
    routes: object | None

    def scheduler_for(self, type_: str) -> Scheduler: ...
    def publish(self, *jobs: NewJob) -> list[Published]: ...
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
        self._in_flight = InFlight(channel.pool)
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
        for each in of_message:
            if isinstance(each, NewJob):
                self._jobs.append(each)
            else:
                self._commands.append(each)
        if self._size >= self.max_size:
            self._send()
        return result

    def flush(self) -> None:
        """Send the jobs and commands that wait. Raises BatchPublishError if the server may or may not have them.

        Jobs then stay in the batch, and another flush sends them under the same ids: none is published twice. Raises
        QueueFull for jobs that find no room: these stay as well.
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
        except (redis.RedisError, OSError, OperationalError) as exc:  # the last: the server of a cohort is down
            self._jobs, self._sent = self._sent + self._jobs, []
            raise BatchPublishError(
                f"{len(self._jobs)} jobs may have been published, or not: flush again, which repeats none ({exc})"
            ) from exc
        sent, self._sent = self._sent, []
        self._jobs = [job for job, each in zip(sent, published, strict=True) if each.full] + self._jobs
        for job, each in zip(sent, published, strict=True):
            each.check(job)
            if not each.served:  # a handler of the log may publish in this batch: its lists are in order by now
                unserved_warning.warn(job.type, self.channel.scheduler_for(job.type))

    def _received(self) -> list[Published]:
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
            raise BatchPublishError("messages that are no jobs may have been published, or not") from exc

    def discard(self) -> None:
        """Forget the jobs and commands that were not sent. The reply to jobs that were sent is awaited."""
        self._received()
        self._jobs, self._sent, self._commands, self._unusable = [], [], [], "aborted"

    def close(self) -> None:
        """Refuse whatever is published from now on, and give the connection back."""
        self._in_flight.give_back()
        self._unusable = "closed"

    @property
    def _size(self) -> int:
        return len(self._jobs) + len(self._commands)

    def _check_usable(self) -> None:
        if self._unusable == "failed":
            raise BatchPublishError("the publish batch cannot be used after a failure")
        if self._unusable:
            raise RuntimeError(f"the publish batch is {self._unusable}")
