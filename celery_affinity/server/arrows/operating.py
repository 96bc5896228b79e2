"""Arrows of an operator: what is done to jobs, types and settings by name."""

from collections.abc import Sequence

from ...clock import SECOND_US
from ...lua.library import arrow
from ...rules.encoding import encode
from ...rules.lanes import DEMAND, QUEUED
from ...rules.protocol import MOST_PURGED
from ...rules.rows import text_of
from ..calls import flat, pages
from ..replies import Moved, WasFound
from ..running import Runner


class Operating(Runner):
    """Ends, moves and replays jobs, pauses types and keys, changes settings."""

    def revoke(self, task_ids: Sequence[str], stamps: Sequence[str], *, keep_s: int) -> int:
        """End the waiting jobs of these tasks, and those that bear one of these stamps. Return how many there were.

        Jobs that are published with these ids or stamps within *keep_s* seconds end as well.
        """
        revoked = 0
        tasks = [encode(task_id) for task_id in task_ids]
        for by, names in (("task", tasks), ("stamp", stamps)):
            for page in pages(names):
                left, after = page, 0
                while left:
                    count, others, after = self._run(arrow("revoke"), by=by, keep_s=keep_s, after=after, rest=left)
                    left = left[len(left) - others :]
                    revoked += int(count)
        return revoked

    def purge(self, type_: str) -> int:
        """Delete the waiting jobs of a type: pending ones, and those that wait for their time. Return how many."""
        encoded = encode(type_)
        deleted, again = 0, 1
        while again:
            count, again = self._run(arrow("purge"), type=encoded)
            deleted += int(count)
        for waiting in self.reader.scheduled(type_, MOST_PURGED):
            count, _ = self._run(arrow("purge"), type=encoded, rest=waiting)
            deleted += int(count)
        return deleted

    def move(
        self,
        job_ids: Sequence[str],
        *,
        type_: str | None = None,
        on_demand: bool | None = None,
        priority: int | None = None,
    ) -> Moved:
        """Give jobs that wait another type, mode or priority; None: the one that each has. They stay as old as before.

        *priority*: 10 is the highest by the order of the app.conf. Calls that were merged move with their run.
        """
        served, found = True, list[WasFound]()
        wanted = {
            "new_type": "" if type_ is None else encode(type_),
            "new_mode": "" if on_demand is None else DEMAND if on_demand else QUEUED,
            "new_priority": "" if priority is None else priority,
        }
        for page in pages(job_ids):
            unfilled, served, *states = self._run(arrow("move"), rest=page, **wanted)
            found += [
                WasFound(text_of(state), int(calls)) for state, calls in zip(states[::2], states[1::2], strict=True)
            ]
            self._go_on(unfilled)
        return Moved(bool(served), found)

    def replay(self, job_ids: Sequence[str]) -> list[str]:
        """Have dead letters run again, as if published now. Return the ids of those that still have a message."""
        replayed: list[str] = []
        for page in pages(job_ids):
            left = list(page)
            while left:
                unfilled, others, *ids = self._run(arrow("replay"), rest=left)
                left = left[len(left) - others :]
                replayed += [job_id.decode() for job_id in ids]
                self._go_on(unfilled)
        return replayed

    def drop(self, job_ids: Sequence[str]) -> int:
        """Delete dead letters. Return how many there were. A batch goes when all of its callers have been told."""
        return sum(int(self._run(arrow("drop"), rest=page)) for page in pages(job_ids))

    def pause(self, what: str, *, for_s: float | None = None, why: str = "") -> bool:
        """Let no job of *what* start: "type:T" or "key:K", encoded, or "*" for all; for ever, or for a time.

        Return whether it was not paused before. What runs goes on running.
        """
        for_us = "" if for_s is None else round(for_s * SECOND_US)
        return bool(self._run(arrow("pause"), what=what, for_us=for_us, why=why))

    def resume(self, what: str) -> bool:
        """End the pause of *what*. Return whether it was paused."""
        resumed, unfilled = self._run(arrow("resume"), what=what)
        self._go_on(unfilled)
        return bool(resumed)

    def configure(self, changes: dict[str, str]) -> int:
        """Change settings at run time, by their name in Redis; "" resets one. Return the revision of the settings."""
        revision, unfilled = self._run(arrow("configure"), rest=flat(changes.items()))
        self._go_on(unfilled)
        return int(revision)
