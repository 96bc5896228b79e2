"""Arrows of a publisher: a job becomes pending, or scheduled."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from ...rules.new_job import NewJob
from .. import calls
from ..connections.in_flight import InFlight
from ..replies import Published
from ..running import Runner, is_missing


class Publishing(Runner):
    """Puts jobs into their lanes, and says what became of each."""

    def publish(self, *jobs: NewJob) -> list[Published]:
        """Put jobs into their lanes, or among the scheduled, in one round trip. A known id changes nothing.

        One call of the arrow takes some of the jobs, and is atomic; if this raises, some jobs may have been published.
        A refused job leaves no trace, and the others are published.
        """
        return self.published(self._run_together(list(calls.publishing(jobs))))

    def send_publish(self, in_flight: InFlight, jobs: Sequence[NewJob]) -> None:
        """Begin a `publish`; `receive_publish` ends it. The server works on the first jobs while others follow."""
        for call in calls.publishing(jobs):
            in_flight.go_on(self._commands([call]))

    def receive_publish(self, in_flight: InFlight) -> list[Published]:
        """End a `send_publish`. An error that the server gave instead of a reply is raised as it came.

        But a server that lacks the arrow is given it, and a redis.ConnectionError has the caller publish again.
        """
        try:
            replies = in_flight.receive()
        except ResponseError as exc:
            if not is_missing(exc):
                raise
            self.load()
            raise redis.ConnectionError(f"the server had lost the functions of celery_affinity: {exc}") from exc
        in_flight.give_back()
        return self.published(replies)

    def published(self, replies: Sequence[Any]) -> list[Published]:
        """Return what replies of the arrow that publishes say, and claim on for what they leave."""
        published = []
        for state, unfilled, served, *further in replies:
            # A user without the right to read messages cannot claim: a worker claims at the next end, or with a sync.
            with suppress(NoPermissionError):
                self._go_on(unfilled)
            pairs = [(state, served), *zip(further[::2], further[1::2], strict=True)]
            published += [Published.parse(*pair) for pair in pairs]
        return published
