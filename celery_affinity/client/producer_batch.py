"""What kombu's ``Producer.batch`` has published, until it is sent (kombu 5.7 and later).

Jobs wait here and go out together, many in one round trip. Unlike those of stock Redis they may be sent again after a
lost reply: each has the id that it got when it was published, so a second copy changes nothing.
"""

from contextlib import suppress
from typing import Any

import redis
from kombu.exceptions import BatchPublishError

from ..server.connections.in_flight import InFlight
from ..server.replies import Job, Published
from . import unserved_warning

#: A command of redis-py by its name, and its arguments.
Command = tuple[str, tuple[Any, ...]]


class _OfMessage(list["Job | Command"]):
    """What is published of one message, while it is routed."""

    def add(self, name: str, *args: Any) -> None:
        """Add a command of kombu's."""
        self.append((name, args))

    def add_job(self, job: Job) -> None:
        self.append(job)


class PublishBatch:
    """What was published on *channel* within one ``Producer.batch``: jobs, and commands of kombu for all else.

    It is sent when it holds *max_size* of them, when somebody flushes it, and at the end. When it is full, nobody waits
    for the reply until it is full again: the server is at work on these while Celery makes the next ones.
    """

    def __init__(self, channel: Any, max_size: int) -> None:
        self.channel = channel
        self.max_size = max_size
        self._jobs: list[Job] = []
        self._sent: list[Job] = []
        self._in_flight = InFlight(channel.pool)
        self._waits = channel.pool.max_connections == 1
        self._commands: list[Command] = []
        self._unusable: str | None = None

    def publish(self, message: Any, **kwargs: Any) -> Any:
        """Route one message; nothing of it is kept if that is refused."""
        self._check_usable()
        of_message = _OfMessage()
        result = self.channel.basic_publish(message, _publish_batch=of_message, **kwargs)
        if self._size and self._size + len(of_message) > self.max_size:
            self._send()
        for each in of_message:
            if isinstance(each, Job):
                self._jobs.append(each)
            else:
                self._commands.append(each)
        if self._size >= self.max_size:
            self._send()
        return result

    def flush(self) -> None:
        """Send what waits. Raises BatchPublishError if it cannot be known whether it arrived.

        Jobs stay then, and another flush sends the very same: those that arrived are not published twice.
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
        scheduler = self.channel.scheduler
        scheduler.client.give_back()
        with suppress(redis.RedisError, OSError):  # the connection was idle for too long: they are sent again
            scheduler.send_publish(self._in_flight, self._sent)
        if self._waits:
            self._confirm()

    def _confirm(self) -> None:
        """Wait until what was sent is known to have arrived."""
        if not self._sent:
            return
        try:
            published = self._received() or self.channel.scheduler.publish(*self._sent)
        except (redis.RedisError, OSError) as exc:
            self._jobs, self._sent = self._sent + self._jobs, []
            raise BatchPublishError(
                f"{len(self._jobs)} jobs may have been published, or not: flush again, which repeats none ({exc})"
            ) from exc
        sent, self._sent = self._sent, []
        for job, each in zip(sent, published, strict=True):
            each.check(job)
            if not each.served:
                unserved_warning.warn(
                    job.type, self.channel.scheduler
                )  # by handlers of the log, which may publish as well

    def _received(self) -> list[Published]:
        """Return what became of the jobs that were sent; nothing if that is not known."""
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
        """Forget what was not sent. What was is waited for, so that it is there."""
        self._received()
        self._jobs, self._sent, self._commands, self._unusable = [], [], [], "aborted"

    def close(self) -> None:
        """Take no more."""
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
