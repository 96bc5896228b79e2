"""The arrows, one method each, by who calls them. How a script is run is in `running`.

Every call may be repeated after a lost reply: publishing a known id, a stale fencing number and a repeated sequence
number change nothing.
"""

# Longer than 300 lines: one method for each arrow, and no other subject.

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from ..errors import OptionError
from ..rules import keys as key_names
from ..rules.job_fields import Job
from ..rules.keys import Keys
from ..rules.protocol import MOST_ALIKE, MOST_PURGED, MOST_SHARED
from ..rules.rows import number_of, text_of
from ..rules.score import MICRO
from . import calls
from .calls import check_kind, flat, pages
from .connections.in_flight import InFlight
from .reader import Reader
from .replies import (
    Callers,
    Claim,
    DueCall,
    End,
    Ending,
    Joined,
    Joining,
    Moved,
    Published,
    RecurringCall,
    Running,
    Synced,
    Ticked,
    WasFound,
    parsed_claims,
)
from .running import ScriptRunner
from .scripts.assembling import load

#: Arrows that a worker's event loop calls. They are linked when the worker joins: linking takes some 25 ms, for which
#: the loop would not hear what the pool says, so that a cold shutdown waited for tasks that had just begun.
_OF_A_LOOP = ("release", "ack", "sync", "requeue", "claim")


class Scheduler(ScriptRunner):
    """The scheduler of one cohort, reached by *client*. `ScriptRunner` has the demands on a client, and the errors."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self.reader = Reader(client, keys)

    def close(self) -> None:
        """Close the connections that no thread is using; one that is in use goes with its last user."""
        self.client.close()
        self.client.connection_pool.disconnect(inuse_connections=False)

    # -- of a publisher

    def publish(self, *jobs: Job) -> list[Published]:
        """Put jobs into their lanes, or among the scheduled, in one round trip. A known id changes nothing.

        One call of the script takes some of the jobs, and is atomic; if this raises, some jobs may have been published.
        A refused job leaves no trace, and the others are published.
        """
        return self.published(self._run_together(list(calls.publishing(jobs))))

    def send_publish(self, in_flight: InFlight, jobs: Sequence[Job]) -> None:
        """Begin a `publish`; `receive_publish` ends it. The server works on the first jobs while others follow."""
        for call in calls.publishing(jobs):
            in_flight.go_on(self._commands([call]))

    def receive_publish(self, in_flight: InFlight) -> list[Published]:
        """End a `send_publish`. An error that the server gave instead of a reply is raised as it came."""
        replies = in_flight.receive()
        in_flight.give_back()
        return self.published(replies)

    def published(self, replies: Sequence[Any]) -> list[Published]:
        """Return what replies of the script that publishes say, and claim on for what they leave."""
        published = []
        for state, more, served, *further in replies:
            # A user without the right to read messages cannot claim: a worker claims at the next end, or with a sync.
            with suppress(NoPermissionError):
                self._go_on(more)
            pairs = [(state, served), *zip(further[::2], further[1::2], strict=True)]
            published += [Published.parse(*pair) for pair in pairs]
        return published

    # -- of a worker

    def join(self, joining: Joining, settings: dict[str, str]) -> Joined:
        """Enter *joining* as a live worker. *settings*: those of its app.conf, as `shared_settings.shared` has them."""
        self.load_for_producers()
        for arrow in _OF_A_LOOP:
            load(arrow)
        more, namesake, replaced, void_up_to, now_us = self._run(
            load("join"),
            worker=joining.worker,
            name=key_names.encode(joining.name),
            slots_in_all=joining.slots,
            other=joining.other,
            profile=joining.profile,
            types=" ".join(joining.encoded_types),
            app=key_names.encode(joining.app),
            rest=flat(settings.items()),
        )
        self._go_on(more)
        return Joined(text_of(namesake) or None, [text_of(name) for name in replaced], int(void_up_to), now_us)

    def tell_ends(
        self,
        worker: str,
        *,
        acks: Sequence[tuple[str, str]],
        ends: Sequence[End],
        sequence: int,
        inline: bool,
        most_ahead: int = 0,
        on_acked: Callable[[int], object] = lambda _: None,
    ) -> list[Claim]:
        """Ack messages, and release the slots of jobs that ended, in one round trip. Return the jobs that follow.

        *acks*: (job id, fencing number). *sequence*: a number that grows with each call that is not a repetition.
        *inline*: whether the worker's next jobs come with the reply; else they go to the inbox. *most_ahead*: largest
        number of jobs that the worker then holds beyond its slots. *on_acked* is called with the number of *acks* whose
        claims the worker holds.
        """
        told = calls.telling(worker, acks, ends, sequence, inline, most_ahead)
        replies = self._run_together(told) if told else []
        if acks:
            on_acked(int(replies[0]))
        return self._settled(replies, bool(ends))

    def send_acks(self, in_flight: InFlight, worker: str, acks: Sequence[tuple[str, str]], *, goes_on: bool) -> None:
        """Begin to ack messages, which `receive_acks` ends. *goes_on*: other calls are on their way already."""
        send = in_flight.go_on if goes_on else in_flight.send
        send(self._commands(calls.telling(worker, acks, (), 0, True, 0)))

    def receive_acks(self, in_flight: InFlight, calls: int) -> list[int]:
        """End so many `send_acks`. Return the numbers of claims that the worker holds. Raises as `receive` does."""
        replies = in_flight.receive(calls)
        for reply in replies:
            check_kind(int, reply, in_flight)
        return replies

    def send_ends(
        self,
        in_flight: InFlight,
        worker: str,
        *,
        acks: Sequence[tuple[str, str]],
        ends: Sequence[End],
        sequence: int,
        most_ahead: int,
        goes_on: bool,
    ) -> None:
        """Begin a `tell_ends` whose jobs come inline, which `receive_ends` ends. *goes_on*: see `send_acks`."""
        send = in_flight.go_on if goes_on else in_flight.send
        send(self._commands(calls.telling(worker, acks, ends, sequence, True, most_ahead)))

    def receive_ends(self, in_flight: InFlight, *, has_ends: bool) -> list[Claim]:
        """End a `send_ends`. Return the jobs that follow. An error of the server is raised as it came."""
        replies = in_flight.receive()
        check_kind(list if has_ends else int, replies[-1] if replies else None, in_flight)
        return self._settled(replies, has_ends)

    def _settled(self, replies: Sequence[Any], has_ends: bool) -> list[Claim]:
        if not has_ends:
            return []
        more, *payloads = replies[-1]
        self._go_on(more)
        return parsed_claims(payloads)

    def requeue(self, worker: str, claims: Iterable[tuple[str, str]], *, counted: bool) -> None:
        """Give *claims* (job id, fencing number) back. *counted*: whether this counts as a delivery."""
        for page in pages(list(claims)):
            (more,) = self._run(load("requeue"), worker=worker, counted=int(counted), rest=flat(page))
            self._go_on(more)

    def sync(self, worker: str, claims: Iterable[Running], *, slots: int, other: int, draining: bool) -> Synced:
        """Beat, and say which *claims* the worker holds."""
        known, ticker, more, asked, void, revision, now_us, returned = self._run(
            load("sync"),
            worker=worker,
            slots_in_all=slots,
            other=other,
            draining=int(draining),
            rest=flat(claims),
        )
        self._go_on(more)
        numbers = [text_of(value) for value in asked]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        void_ids = [text_of(job_id) for job_id in void]
        return Synced(bool(known), bool(ticker), pairs, void_ids, number_of(revision), now_us, int(returned))

    def beat(self, worker: str, *, turns: bool) -> bool:
        """Say that a worker lives, and whether its event loop *turns*. Return whether the worker is known.

        While the loop does not turn, the worker gets no job, and the jobs in its inbox go back.
        """
        while True:
            known, again, more = self._run(load("beat"), worker=worker, turns=int(turns))
            self._go_on(more)
            if not again:
                return bool(known)

    def leave(self, worker: str) -> int:
        """Take a worker out. Return how many jobs it still held, which are pending again."""
        returned, unfinished = 0, True
        while unfinished:
            more, unfinished, count = self._run(load("leave"), worker=worker)
            returned += int(count)
            self._go_on(more)
        return returned

    # -- of a dispatcher

    def tick(self, lists: Sequence[str] = ()) -> Ticked:
        """Make all jobs pending that are due, or that dead workers held.

        *lists*: stock Celery's lists in which to look for messages, some hundred at most.
        """
        due = recovered = dead = 0
        while True:
            again, next_due_us, *counts, untold, recurring, filled, more = self._run(load("tick"), lists)
            due, recovered, dead = due + counts[0], recovered + counts[1], dead + counts[2]
            self._go_on(more)
            if not again:
                break
        due_in_us = number_of(next_due_us, -1)
        next_due_s = None if due_in_us < 0 else due_in_us / 1e6
        filled = [text_of(name) for name in filled]
        return Ticked(next_due_s, due, recovered, dead, bool(untold), bool(recurring), filled)

    def recover(self, worker: str) -> int:
        """Take back all jobs of a worker that is known to be dead. Return how many there were."""
        recovered = 0
        while True:
            again, count, more = self._run(load("recover"), worker=worker)
            recovered += int(count)
            self._go_on(more)
            if not again:
                return recovered

    def ingest(self, list_: str, jobs: Sequence[Job]) -> int:
        """Move messages from a list of stock Celery into their lanes. Return how many of *jobs* were still there.

        *jobs*: ten at most, of one type, in the order of their messages in the list.
        """
        replies = self._run_together(calls.ingesting(list_, jobs))
        self._go_on(b" ".join(more for _, more, _ in replies))
        for job, (state, _, bad) in zip(jobs, replies, strict=True):
            Published.parse(state, bad).check(job)
        return sum(state > 0 for state, _, _ in replies)

    def announce(self, app: str, *, again_s: float, telling: Collection[str] = ()) -> Ending | None:
        """Return an end to be told to its caller, or None. An end that is not `told` comes again.

        The first pause is *again_s*, each further one twice as long. *app*: the app of the process that asks; an end
        that this app has left to others comes only after they had their time. *telling*: ids of jobs whose ends the
        process is about to tell.
        """
        row = self._run(load("announce"), telling, again_us=round(again_s * 1e6), app=key_names.encode(app))
        return Ending.parse(row) if row else None

    def callers(self, batch: str, *, fence: str = "", after: int = 0, most: int = MOST_SHARED) -> Callers | None:
        """Return calls of *batch* that do not know its result, in their order, without the one whose message was run.

        *fence*: the number of the caller's claim of the batch; "": the batch was announced. None: it is neither.
        *after*: what the last page said, 0 for the first one. *most*: calls on a page, which may have fewer.
        """
        after, *found = self._run(load("callers"), batch=batch, fence=fence, after=after, most=most) or [None]
        return None if after is None else Callers.parse(after, found)

    def part(self, batch: str, callers: Sequence[str], *, fence: str) -> int:
        """Have these calls of *batch*, in their order, wait again as a run of their own. Return how many there were.

        *fence*: the number of the caller's claim of the batch; -1: the batch is not the caller's, and nothing changed.
        A repeated call changes nothing. Those that have ended, or were parted before, count for none.
        """
        parted, more = self._run(load("part"), batch=batch, fence=fence, rest=callers)
        self._go_on(more)
        return int(parted)

    def shared(self, batch: str, callers: Sequence[str], *, fence: str = "", outcome: str = "acked") -> int:
        """Say that these calls of *batch* know its result. Return how many others do not; -1: see below.

        Those of a batch that is no dead letter end as *outcome* says: "acked", or "failed" and why, in words. *fence*:
        as in `callers`; -1 means what None does there. An announced batch of which all know is told of, as by `told`.
        """
        left = -1
        for page in pages(callers, MOST_SHARED):
            left = int(self._run(load("shared"), batch=batch, fence=fence, outcome=outcome, rest=page))
        return left

    def told(self, job_ids: Sequence[str]) -> None:
        """Say that the callers of these jobs know how they ended. Batches of which calls do not know stay untold."""
        self._run(load("told"), how="told", app="", rest=job_ids)

    def leave_to_others(self, app: str, job_ids: Sequence[str]) -> None:
        """Say that *app* cannot tell the callers of these jobs, since it does not know their tasks."""
        self._run(load("told"), how="left", app=key_names.encode(app), rest=job_ids)

    def set_aside(self, job_ids: Sequence[str]) -> None:
        """Let nobody tell the ends of these jobs, of which nothing can be read. The jobs' keys stay as they are."""
        self._run(load("told"), how="aside", app="", rest=job_ids)

    def recur(self, entries: Sequence[RecurringCall], *, app: str = "") -> list[str]:
        """Declare recurring calls: all that the app.conf of *app* has; or, for "", some at run time.

        A call that the app.conf had before, and alike, changes nothing: what changed last counts. Those that it had
        before, and has no more, are stopped, unless they were declared elsewhere since. Return the names of those that
        another app, or somebody at run time, had declared otherwise. Raises OptionError if too many match the same.
        """
        encoded, replaced, refused = key_names.encode(app), [], []
        for arguments in calls.declaring(entries):
            some_replaced, some_refused = self._run(load("recur"), arguments, app=encoded)
            replaced += [key_names.decode(text_of(name)) for name in some_replaced]
            refused += [key_names.decode(text_of(name)) for name in some_refused]
        if app:
            named = {key_names.encode(entry.name) for entry in entries}
            gone = sorted(self.reader.large_hash("recurring_of", encoded).keys() - named)
            for page in pages(gone):
                self._run(load("stop"), page, app=encoded)
        if refused:
            accepted = f"among the first {MOST_ALIKE} that match the same task, type and merge key"
            raise OptionError(f"recurring calls must be {accepted}, got also: {', '.join(map(repr, refused))}")
        return replaced

    def due(self, identity: str, *, again_s: float) -> DueCall | None:
        """Hand out a recurring call that is due, or None. If it is not made, it is handed out again after *again_s*.

        *identity*: the app of the process that asks; what it left to others (`leave_due`) comes to it after a while.
        """
        row = self._run(load("due"), again_us=round(again_s * MICRO), app=key_names.encode(identity))
        return DueCall.parse(row) if row else None

    def leave_due(self, identity: str, name: str) -> None:
        """Say that *identity* does not know the task of a recurring call: others may have it at once."""
        self._run(load("leave_due"), name=key_names.encode(name), app=key_names.encode(identity))

    def fire(self, name: str, due: str, job: Job) -> Published | None:
        """Publish the *job* of a recurring call, and set the next time. None if the call is not due any more.

        *due*: as the call was handed out; "": a person makes the call, whenever it is due, also while it is suspended.
        """
        script = load("fire")
        reply = self._run(script, job.arguments, name=key_names.encode(name), due=due)
        return self.published([reply])[0] if reply else None

    # -- of an operator

    def stop(self, name: str) -> bool:
        """Make a recurring call no more. Return whether there was one."""
        return bool(self._run(load("stop"), [key_names.encode(name)], app=""))

    def suspend(self, name: str, suspended: bool) -> bool:
        """Keep a recurring call, and let it never be due; or let it go on. Return whether there is one."""
        return bool(self._run(load("suspend"), name=key_names.encode(name), suspended=int(suspended)))

    def revoke(self, task_ids: Sequence[str], stamps: Sequence[str], *, keep_s: int) -> int:
        """End the waiting jobs of these tasks, and those that bear one of these stamps. Return how many there were.

        Jobs that are published with these ids or stamps within *keep_s* seconds end as well.
        """
        revoked = 0
        tasks = [key_names.encode(task_id) for task_id in task_ids]
        for by, names in (("task", tasks), ("stamp", stamps)):
            for page in pages(names):
                left, after = page, 0
                while left:
                    count, others, after = self._run(load("revoke"), by=by, keep_s=keep_s, after=after, rest=left)
                    left = left[len(left) - others :]
                    revoked += int(count)
        return revoked

    def purge(self, type_: str) -> int:
        """Delete the waiting jobs of a type: pending ones, and those that wait for their time. Return how many."""
        encoded = key_names.encode(type_)
        deleted, again = 0, 1
        while again:
            count, again = self._run(load("purge"), type=encoded)
            deleted += int(count)
        for waiting in self.reader.scheduled(type_, MOST_PURGED):
            count, _ = self._run(load("purge"), type=encoded, rest=waiting)
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
            "new_type": "" if type_ is None else key_names.encode(type_),
            "new_mode": "" if on_demand is None else "demand" if on_demand else "queued",
            "new_priority": "" if priority is None else priority,
        }
        for page in pages(job_ids):
            more, served, *states = self._run(load("move"), rest=page, **wanted)
            found += [
                WasFound(text_of(state), int(calls)) for state, calls in zip(states[::2], states[1::2], strict=True)
            ]
            self._go_on(more)
        return Moved(bool(served), found)

    def replay(self, job_ids: Sequence[str]) -> list[str]:
        """Have dead letters run again, as if published now. Return the ids of those that still have a message."""
        replayed: list[str] = []
        for page in pages(job_ids):
            left = list(page)
            while left:
                more, others, *ids = self._run(load("replay"), rest=left)
                left = left[len(left) - others :]
                replayed += [job_id.decode() for job_id in ids]
                self._go_on(more)
        return replayed

    def drop(self, job_ids: Sequence[str]) -> int:
        """Delete dead letters. Return how many there were. A batch goes when all of its callers have been told."""
        return sum(int(self._run(load("drop"), rest=page)) for page in pages(job_ids))

    def pause(self, what: str, *, for_s: float | None = None, why: str = "") -> bool:
        """Let no job of *what* start: "type:T" or "key:K", encoded, or "*" for all; for ever, or for a time.

        Return whether it was not paused before. What runs goes on running.
        """
        for_us = "" if for_s is None else round(for_s * MICRO)
        return bool(self._run(load("pause"), what=what, for_us=for_us, why=why))

    def resume(self, what: str) -> bool:
        """End the pause of *what*. Return whether it was paused."""
        resumed, more = self._run(load("resume"), what=what)
        self._go_on(more)
        return bool(resumed)

    def configure(self, changes: dict[str, str]) -> int:
        """Change settings at run time, by their name in Redis; "" resets one. Return the revision of the settings."""
        revision, more = self._run(load("configure"), rest=flat(changes.items()))
        self._go_on(more)
        return int(revision)
