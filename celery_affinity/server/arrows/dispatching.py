"""Arrows of a dispatcher, which no event triggers: what is due, and who is to be told of an end."""

from collections.abc import Collection, Sequence

from ...clock import SECOND_US, now_s
from ...lua.library import arrow
from ...rules.clock_step import ServerTime
from ...rules.encoding import encode
from ...rules.new_job import NewJob
from ...rules.protocol import MOST_SHARED
from ...rules.rows import number_of, text_of
from .. import calls
from ..calls import pages
from ..replies import Callers, Ending, Published, Ticked
from ..running import Runner


class Dispatching(Runner):
    """Makes jobs pending whose time has come, and has callers told of the ends of jobs."""

    def tick(self, lists: Sequence[str] = ()) -> Ticked:
        """Make all jobs pending that are due, or that dead workers held.

        *lists*: stock Celery's lists in which to look for messages, a few hundred at most.
        """
        due = recovered = dead = 0
        time: ServerTime | None = None
        while True:
            began_s = now_s()
            again, next_due_us, *counts, untold, recurring, filled, unfilled, now_us, ticked = self._run(
                arrow("tick"), lists
            )
            time = time or ServerTime(number_of(now_us), began_s, now_s(), number_of(ticked) or None)
            due, recovered, dead = due + counts[0], recovered + counts[1], dead + counts[2]
            self._go_on(unfilled)
            if not again:
                break
        due_in_us = number_of(next_due_us, -1)
        next_due_s = None if due_in_us < 0 else due_in_us / SECOND_US
        filled = [text_of(name) for name in filled]
        return Ticked(next_due_s, due, recovered, dead, bool(untold), bool(recurring), filled, time)

    def ingest(self, list_: str, jobs: Sequence[NewJob]) -> int:
        """Move messages from a list of stock Celery into their lanes. Return how many of *jobs* were still there.

        *jobs*: ten at most, of one type, in the order of their messages in the list.
        """
        replies = self._run_together(calls.ingesting(list_, jobs))
        self._go_on(b" ".join(unfilled for _, unfilled, _ in replies))
        for job, (state, _, bad) in zip(jobs, replies, strict=True):
            Published.parse(state, bad).check(job)
        return sum(state > 0 for state, _, _ in replies)

    def announce(self, app: str, *, again_s: float, telling: Collection[str] = ()) -> Ending | None:
        """Return an end to be told to its caller, or None. An end that is not `told` comes again.

        The first pause is *again_s*, each further one twice as long. *app*: the app of the process that asks; an end
        that this app has left to others comes only after they had their time. *telling*: ids of jobs whose ends the
        process is about to tell.
        """
        row = self._run(arrow("announce"), telling, again_us=round(again_s * SECOND_US), app=encode(app))
        return Ending.parse(row) if row else None

    def callers(self, batch: str, *, fence: str = "", after: int = 0, most: int = MOST_SHARED) -> Callers | None:
        """Return calls of *batch* that do not know its result, in their order, without the one whose message was run.

        *fence*: the number of the caller's claim of the batch; "": the batch was announced. None: it is neither.
        *after*: what the last page said, 0 for the first one. *most*: calls on a page, which may have fewer.
        """
        page = self._run(arrow("callers"), batch=batch, fence=fence, after=after, most=most)
        return Callers.parse(*page) if page else None

    def part(self, batch: str, callers: Sequence[str], *, fence: str) -> int:
        """Have these calls of *batch*, in their order, wait again as a run of their own. Return how many there were.

        *fence*: the number of the caller's claim of the batch; -1: the batch is not the caller's, and nothing changed.
        A repeated call changes nothing. Those that have ended, or were parted before, count for none.
        """
        parted, unfilled = self._run(arrow("part"), batch=batch, fence=fence, rest=callers)
        self._go_on(unfilled)
        return int(parted)

    def shared(self, batch: str, callers: Sequence[str], *, fence: str = "", outcome: str = "acked") -> int:
        """Say that these calls of *batch* know its result. Return how many others do not; -1: see below.

        Those of a batch that is no dead letter end as *outcome* says: "acked", or "failed" and why, in words. *fence*:
        as in `callers`; -1 means what None does there. An announced batch of which all know is told of, as by `told`.
        """
        left = -1
        for page in pages(callers, MOST_SHARED):
            left = int(self._run(arrow("shared"), batch=batch, fence=fence, outcome=outcome, rest=page))
        return left

    def told(self, job_ids: Sequence[str]) -> None:
        """Say that the callers of these jobs know how they ended. Batches of which calls do not know stay untold."""
        self._run(arrow("told"), how="told", app="", rest=job_ids)

    def leave_to_others(self, app: str, job_ids: Sequence[str]) -> None:
        """Say that *app* cannot tell the callers of these jobs, since it does not know their tasks."""
        self._run(arrow("told"), how="left", app=encode(app), rest=job_ids)

    def set_aside(self, job_ids: Sequence[str]) -> None:
        """Let nobody tell the ends of these jobs, of which nothing can be read. The jobs' keys stay as they are."""
        self._run(arrow("told"), how="aside", app="", rest=job_ids)
