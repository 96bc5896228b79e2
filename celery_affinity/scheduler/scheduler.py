"""Arrows of a publisher: a job becomes pending, or scheduled.

Arrows of a worker's life: from its join to its leave, or to the moment when it is known to be dead.

Arrows of a dispatcher, which no event triggers: what is due, and who is to be told of an end.

Arrows of an operator: what is done to jobs, types and settings by name.

Arrows of recurring calls: declared, due, made, suspended, stopped.

The scheduler: all arrows, which `arrows` has by what they are for. How an arrow is run is in `running`.

Every call may be repeated after a lost reply: publishing a known id, a stale fencing number and a repeated sequence
number change nothing.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from ..broker.inflight import InFlightCommands
from ..clock import SECOND_US, ServerTime, now_s
from ..errors import OptionError
from ..lua.library import server_function
from ..options.recurring import RecurringCall
from ..policy.slot_math import NOTHING, PrefetchLimit
from ..schema.constants import MOST_ALIKE, MOST_PURGED, MOST_SHARED
from ..schema.job_record import NewJob
from ..schema.values import DEMAND, QUEUED, decode_number, decode_part, decode_text, encode_part
from . import runner
from .messages import (
    BatchCallsPage,
    Claim,
    ClaimReport,
    ClaimRow,
    DueCall,
    EndArguments,
    JobState,
    JoinArguments,
    JoinReply,
    MoveReply,
    PublishReply,
    SyncReply,
    TickReply,
    TypeMetricsDelta,
    UnreportedEnd,
    page_query,
    parse_claims,
)
from .runner import Runner, argument_pages, check_kind, flatten, is_function_missing


class PublishFunctions(Runner):
    """Puts jobs into their lanes, and says what became of each."""

    def publish(self, *jobs: NewJob) -> list[PublishReply]:
        """Put jobs into their lanes, or among the scheduled, in one round trip. A known id changes nothing.

        One call of the arrow takes some of the jobs, and is atomic; if this raises, some jobs may have been published.
        A refused job leaves no trace, and the others are published.
        """
        return self.published(self._run_together(list(runner.publish_invocations(jobs))))

    def send_publish(self, in_flight: InFlightCommands, jobs: Sequence[NewJob]) -> None:
        """Begin a `publish`; `receive_publish` ends it. The server works on the first jobs while others follow."""
        for call in runner.publish_invocations(jobs):
            in_flight.go_on(self._commands([call]))

    def receive_publish(self, in_flight: InFlightCommands) -> list[PublishReply]:
        """End a `send_publish`. An error that the server gave instead of a reply is raised as it came.

        But a server that lacks the arrow is given it, and a redis.ConnectionError has the caller publish again.
        """
        try:
            replies = in_flight.receive()
        except ResponseError as exc:
            if not is_function_missing(exc):
                raise
            self.load()
            raise redis.ConnectionError(f"the server had lost the functions of celery_affinity: {exc}") from exc
        in_flight.give_back()
        return self.published(replies)

    def published(self, replies: Sequence[Any]) -> list[PublishReply]:
        """Return what replies of the arrow that publishes say, and claim on for what they leave."""
        published = []
        for state, unfilled, served, *further in replies:
            # A user without the right to read messages cannot claim: a worker claims at the next end, or with a sync.
            with suppress(NoPermissionError):
                self._go_on(unfilled)
            pairs = [(state, served), *zip(further[::2], further[1::2], strict=True)]
            published += [PublishReply.parse(*pair) for pair in pairs]
        return published


class WorkerFunctions(Runner):
    """Has a worker live, say what its slots do, and get jobs for them."""

    def join(self, joining: JoinArguments, settings: dict[str, str]) -> JoinReply:
        """Enter *joining* as a live worker. *settings*: those of its app.conf, as `shared_settings.shared` has them."""
        unfilled, namesake, replaced, void_up_to, now_us = self._run(
            server_function("join"),
            worker=joining.worker,
            name=encode_part(joining.name),
            slots_in_all=joining.slots,
            other=joining.other,
            profile=joining.profile,
            types=" ".join(joining.encoded_types),
            app=encode_part(joining.app),
            stops=joining.stops,
            priority=joining.priority,
            rest=flatten(settings.items()),
        )
        if self.way is self.library.by_script:  # a script of its own
            self.load()
        self._go_on(unfilled)
        return JoinReply(
            decode_text(namesake) or None, [decode_text(name) for name in replaced], int(void_up_to), now_us
        )

    def release_and_claim(
        self,
        worker: str,
        *,
        acks: Sequence[tuple[str, str]],
        ends: Sequence[EndArguments],
        sequence: int,
        inline: bool,
        may_hold: PrefetchLimit = NOTHING,
        on_acked: Callable[[int], object] = lambda _: None,
    ) -> list[Claim]:
        """Ack messages, and release the slots of jobs that ended, in one round trip. Return the jobs that follow.

        *acks*: (job id, fencing number). *sequence*: a number above 0 that grows with each call; a call that is
        repeated has its number with a minus. *inline*: whether the worker's next jobs come with the reply; else they go
        to the inbox. *may_hold*: what the worker may then hold beyond its slots. *on_acked* is called with the number
        of *acks* whose claims the worker holds.
        """
        told = runner.ack_arguments(worker, acks, ends, sequence, inline, may_hold)
        replies = self._run_together(told) if told else []
        if acks:
            on_acked(int(replies[0]))
        return self._settled(replies, bool(ends))

    def send_acks(
        self, in_flight: InFlightCommands, worker: str, acks: Sequence[tuple[str, str]], *, goes_on: bool
    ) -> None:
        """Begin to ack messages, which `receive_acks` ends. *goes_on*: other calls are on their way already."""
        send = in_flight.go_on if goes_on else in_flight.send
        send(self._commands(runner.ack_arguments(worker, acks, (), 0, True, NOTHING)))

    def receive_acks(self, in_flight: InFlightCommands, calls: int) -> list[int]:
        """End so many `send_acks`. Return the numbers of claims that the worker holds. Raises as `receive` does."""
        replies = in_flight.receive(calls)
        for reply in replies:
            check_kind(int, reply, in_flight)
        return replies

    def send_ends(
        self,
        in_flight: InFlightCommands,
        worker: str,
        *,
        acks: Sequence[tuple[str, str]],
        ends: Sequence[EndArguments],
        sequence: int,
        may_hold: PrefetchLimit,
        goes_on: bool,
    ) -> None:
        """Begin a `release_and_claim` whose jobs come inline, which `receive_ends` ends. *goes_on*: see `send_acks`."""
        send = in_flight.go_on if goes_on else in_flight.send
        send(self._commands(runner.ack_arguments(worker, acks, ends, sequence, True, may_hold)))

    def receive_ends(self, in_flight: InFlightCommands, *, has_ends: bool) -> list[Claim]:
        """End a `send_ends`. Return the jobs that follow. An error of the server is raised as it came."""
        replies = in_flight.receive()
        check_kind(list if has_ends else int, replies[-1] if replies else None, in_flight)
        return self._settled(replies, has_ends)

    def _settled(self, replies: Sequence[Any], has_ends: bool) -> list[Claim]:
        if not has_ends:
            return []
        unfilled, *parts = replies[-1]
        self._go_on(unfilled)
        return parse_claims(parts)

    def requeue(self, worker: str, claims: Iterable[tuple[str, str]], *, counted: bool) -> int:
        """Give *claims* (job id, fencing number) back. Return how many of their jobs are pending again.

        *counted*: whether this counts as a delivery.
        """
        returned = 0
        for page in argument_pages(list(claims)):
            unfilled, count = self._run(
                server_function("requeue"), worker=worker, counted=int(counted), rest=flatten(page)
            )
            returned += int(count)
            self._go_on(unfilled)
        return returned

    def sync(self, worker: str, claims: Iterable[ClaimReport], *, slots: int, other: int, draining: bool) -> SyncReply:
        """Send a heartbeat, and say which *claims* the worker holds."""
        known, ticker, unfilled, asked, void, revision, now_us, returned = self._run(
            server_function("sync"),
            worker=worker,
            slots_in_all=slots,
            other=other,
            draining=int(draining),
            rest=flatten(claims),
        )
        self._go_on(unfilled)
        numbers = [decode_text(value) for value in asked]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        void_ids = [decode_text(job_id) for job_id in void]
        return SyncReply(bool(known), bool(ticker), pairs, void_ids, decode_number(revision), now_us, int(returned))

    def add_metrics(self, worker: str, number: int, sums: Iterable[TypeMetricsDelta]) -> bool:
        """Add *sums* of a worker's jobs to what the server tells observers. Return whether the worker is known.

        *number* grows with each call that is not a repetition. A call of a worker that is not known changes nothing.
        """
        return bool(
            self._run(
                server_function("add_metrics"), worker=worker, number=number, rest=flatten(each.words for each in sums)
            )
        )

    def record(self, recording: str, pages: Iterable[tuple[str, Sequence[ClaimRow]]]) -> bool:
        """Write *pages* into a recording: what a worker says of itself, and claims. Return whether the recording is on.

        The server adds its own times (`recorded_claims`).
        """
        return all(self._run_together([_recording(recording, *page) for page in pages]))

    def heartbeat(self, worker: str, *, loop_runs: bool) -> bool:
        """Say that a worker lives, and whether its event loop runs (*loop_runs*). Return whether the worker is known.

        While the loop does not run, the worker gets no job, and the jobs in its inbox go back.
        """
        while True:
            known, again, unfilled = self._run(server_function("heartbeat"), worker=worker, loop_runs=int(loop_runs))
            self._go_on(unfilled)
            if not again:
                return bool(known)

    def heartbeats(self, workers: Sequence[str]) -> list[bool]:
        """Tell the server in one round trip that *workers*, whose loops run, live. Return which of them it knows."""
        calls = [
            (server_function("heartbeat"), server_function("heartbeat").arguments(worker=each, loop_runs=1))
            for each in workers
        ]
        replies = self._run_together(calls) if calls else []
        for _, _, unfilled in replies:
            self._go_on(unfilled)
        return [bool(known) for known, _, _ in replies]

    def leave(self, worker: str) -> int:
        """Take a worker out. Return how many jobs it still held, which are pending again."""
        returned, unfinished = 0, True
        while unfinished:
            unfilled, unfinished, count = self._run(server_function("leave"), worker=worker)
            returned += int(count)
            self._go_on(unfilled)
        return returned

    def recover(self, worker: str) -> int:
        """Take back all jobs of a worker that is known to be dead. Return how many there were."""
        recovered = 0
        while True:
            again, count, unfilled = self._run(server_function("recover"), worker=worker)
            recovered += int(count)
            self._go_on(unfilled)
            if not again:
                return recovered


def _recording(recording: str, worker: str, rows: Sequence[ClaimRow]) -> runner.FunctionCall:
    record, page = server_function("record"), page_query(rows)
    rest = [*page.plain, *page.others]
    return record, record.arguments(rest, recording=recording, worker=worker, rows=page.text, plain=len(page.plain))


class DispatcherFunctions(Runner):
    """Makes jobs pending whose time has come, and has callers told of the ends of jobs."""

    def tick(self, lists: Sequence[str] = ()) -> TickReply:
        """Make all jobs pending that are due, or that dead workers held.

        *lists*: stock Celery's lists in which to look for messages, a few hundred at most.
        """
        due = recovered = dead = 0
        time: ServerTime | None = None
        while True:
            began_s = now_s()
            again, next_due_us, *counts, untold, recurring, filled, unfilled, now_us, ticked = self._run(
                server_function("tick"), lists
            )
            time = time or ServerTime(decode_number(now_us), began_s, now_s(), decode_number(ticked) or None)
            due, recovered, dead = due + counts[0], recovered + counts[1], dead + counts[2]
            self._go_on(unfilled)
            if not again:
                break
        due_in_us = decode_number(next_due_us, -1)
        next_due_s = None if due_in_us < 0 else due_in_us / SECOND_US
        filled = [decode_text(name) for name in filled]
        return TickReply(next_due_s, due, recovered, dead, bool(untold), bool(recurring), filled, time)

    def ingest(self, list_: str, jobs: Sequence[NewJob]) -> int:
        """Move messages from a list of stock Celery into their lanes. Return how many of *jobs* were still there.

        *jobs*: ten at most, of one type, in the order of their messages in the list.
        """
        replies = self._run_together(runner.ingest_arguments(list_, jobs))
        self._go_on(b" ".join(unfilled for _, unfilled, _ in replies))
        for job, (state, _, bad) in zip(jobs, replies, strict=True):
            PublishReply.parse(state, bad).check(job)
        return sum(state > 0 for state, _, _ in replies)

    def next_report(self, app: str, *, again_s: float, telling: Collection[str] = ()) -> UnreportedEnd | None:
        """Return an end to be told to its caller, or None. An end that is not `told` comes again.

        The first pause is *again_s*, each further one twice as long. *app*: the app of the process that asks; an end
        that this app has left to others comes only after they had their time. *telling*: ids of jobs whose ends the
        process is about to tell.
        """
        row = self._run(
            server_function("next_report"), telling, again_us=round(again_s * SECOND_US), app=encode_part(app)
        )
        return UnreportedEnd.parse(row) if row else None

    def batch_calls(
        self, batch: str, *, fence: str = "", after: int = 0, most: int = MOST_SHARED
    ) -> BatchCallsPage | None:
        """Return calls of *batch* that do not know its result, in their order, without the one whose message was run.

        *fence*: the number of the caller's claim of the batch; "": the batch was announced. None: it is neither.
        *after*: what the last page said, 0 for the first one. *most*: calls on a page, which may have fewer.
        """
        page = self._run(server_function("batch_calls"), batch=batch, fence=fence, after=after, most=most)
        return BatchCallsPage.parse(*page) if page else None

    def split_batch(self, batch: str, callers: Sequence[str], *, fence: str) -> int:
        """Have these calls of *batch*, in their order, wait again as a run of their own. Return how many there were.

        *fence*: the number of the caller's claim of the batch; -1: the batch is not the caller's, and nothing changed.
        A repeated call changes nothing. Those that have ended, or were parted before, count for none.
        """
        parted, unfilled = self._run(server_function("split_batch"), batch=batch, fence=fence, rest=callers)
        self._go_on(unfilled)
        return int(parted)

    def ack_batch_reports(self, batch: str, callers: Sequence[str], *, fence: str = "", outcome: str = "acked") -> int:
        """Say that these calls of *batch* know its result. Return how many others do not; -1: see below.

        Those of a batch that is no dead letter end as *outcome* says: "acked", or "failed" and why, in words. *fence*:
        as in `callers`; -1 means what None does there. An announced batch of which all know is told of, as by `told`.
        """
        left = -1
        for page in argument_pages(callers, MOST_SHARED):
            left = int(
                self._run(server_function("ack_batch_reports"), batch=batch, fence=fence, outcome=outcome, rest=page)
            )
        return left

    def ack_report(self, job_ids: Sequence[str]) -> None:
        """Say that the callers of these jobs know how they ended. Batches of which calls do not know stay untold."""
        self._run(server_function("ack_report"), how="told", app="", rest=job_ids)

    def leave_to_others(self, app: str, job_ids: Sequence[str]) -> None:
        """Say that *app* cannot tell the callers of these jobs, since it does not know their tasks."""
        self._run(server_function("ack_report"), how="left", app=encode_part(app), rest=job_ids)

    def set_aside(self, job_ids: Sequence[str]) -> None:
        """Let nobody tell the ends of these jobs, of which nothing can be read. The jobs' keys stay as they are."""
        self._run(server_function("ack_report"), how="aside", app="", rest=job_ids)


class AdminFunctions(Runner):
    """Ends, moves and replays jobs, pauses types and keys, changes settings."""

    def revoke(self, task_ids: Sequence[str], stamps: Sequence[str], *, keep_s: int) -> int:
        """End the waiting jobs of these tasks, and those that bear one of these stamps. Return how many there were.

        Jobs that are published with these ids or stamps within *keep_s* seconds end as well.
        """
        revoked = 0
        tasks = [encode_part(task_id) for task_id in task_ids]
        for by, names in (("task", tasks), ("stamp", stamps)):
            for page in argument_pages(names):
                left, after = page, 0
                while left:
                    count, others, after = self._run(
                        server_function("revoke"), by=by, keep_s=keep_s, after=after, rest=left
                    )
                    left = left[len(left) - others :]
                    revoked += int(count)
        return revoked

    def purge(self, type_: str) -> int:
        """Delete the waiting jobs of a type: pending ones, and those that wait for their time. Return how many."""
        encoded = encode_part(type_)
        deleted, again = 0, 1
        while again:
            count, again = self._run(server_function("purge"), type=encoded)
            deleted += int(count)
        for waiting in self.reader.scheduled(type_, MOST_PURGED):
            count, _ = self._run(server_function("purge"), type=encoded, rest=waiting)
            deleted += int(count)
        return deleted

    def move(
        self,
        job_ids: Sequence[str],
        *,
        type_: str | None = None,
        on_demand: bool | None = None,
        priority: int | None = None,
    ) -> MoveReply:
        """Give jobs that wait another type, mode or priority; None: the one that each has. They stay as old as before.

        *priority*: 10 is the highest by the order of the app.conf. Calls that were merged move with their run.
        """
        served, found = True, list[JobState]()
        wanted = {
            "new_type": "" if type_ is None else encode_part(type_),
            "new_mode": "" if on_demand is None else DEMAND if on_demand else QUEUED,
            "new_priority": "" if priority is None else priority,
        }
        for page in argument_pages(job_ids):
            unfilled, served, *states = self._run(server_function("move"), rest=page, **wanted)
            found += [
                JobState(decode_text(state), int(calls)) for state, calls in zip(states[::2], states[1::2], strict=True)
            ]
            self._go_on(unfilled)
        return MoveReply(bool(served), found)

    def replay(self, job_ids: Sequence[str]) -> list[str]:
        """Have dead letters run again, as if published now. Return the ids of those that still have a message."""
        replayed: list[str] = []
        for page in argument_pages(job_ids):
            left = list(page)
            while left:
                unfilled, others, *ids = self._run(server_function("replay"), rest=left)
                left = left[len(left) - others :]
                replayed += [job_id.decode() for job_id in ids]
                self._go_on(unfilled)
        return replayed

    def drop(self, job_ids: Sequence[str]) -> int:
        """Delete dead letters. Return how many there were. A batch goes when all of its callers have been told."""
        return sum(int(self._run(server_function("drop"), rest=page)) for page in argument_pages(job_ids))

    def pause(self, what: str, *, for_s: float | None = None, why: str = "") -> bool:
        """Let no job of *what* start: "type:T" or "key:K", encoded, or "*" for all; for ever, or for a time.

        Return whether it was not paused before. What runs goes on running.
        """
        for_us = "" if for_s is None else round(for_s * SECOND_US)
        return bool(self._run(server_function("pause"), what=what, for_us=for_us, why=why))

    def resume(self, what: str) -> bool:
        """End the pause of *what*. Return whether it was paused."""
        resumed, unfilled = self._run(server_function("resume"), what=what)
        self._go_on(unfilled)
        return bool(resumed)

    def configure(self, changes: dict[str, str]) -> int:
        """Change settings at run time, by their name in Redis; "" resets one. Return the revision of the settings."""
        revision, unfilled = self._run(server_function("configure"), rest=flatten(changes.items()))
        self._go_on(unfilled)
        return int(revision)


class RecurringFunctions(PublishFunctions):
    """Keeps recurring calls, and publishes their jobs."""

    def declare_recurring(self, entries: Sequence[RecurringCall], *, app: str = "") -> list[str]:
        """Declare recurring calls: all that the app.conf of *app* has; or, for "", some at run time.

        A call that the app.conf had before, and alike, changes nothing: what changed last counts. Those that it had
        before, and has no more, are stopped, unless they were declared elsewhere since. Return the names of those that
        another app, or somebody at run time, had declared otherwise. Raises OptionError if too many match the same.
        """
        encoded, replaced, refused = encode_part(app), [], []
        for arguments in runner.declare_arguments(entries):
            some_replaced, some_refused = self._run(server_function("declare_recurring"), arguments, app=encoded)
            replaced += [decode_part(decode_text(name)) for name in some_replaced]
            refused += [decode_part(decode_text(name)) for name in some_refused]
        if app:
            named = {encode_part(entry.name) for entry in entries}
            gone = sorted(self.reader.large_hash("recurring_of", encoded).keys() - named)
            for page in argument_pages(gone):
                self._run(server_function("remove_recurring"), page, app=encoded)
        if refused:
            accepted = f"among the first {MOST_ALIKE} that match the same task, type and merge key"
            raise OptionError(f"recurring calls must be {accepted}, got also: {', '.join(map(repr, refused))}")
        return replaced

    def due_recurring(self, identity: str, *, again_s: float) -> DueCall | None:
        """Hand out a recurring call that is due, or None. If it is not made, it is handed out again after *again_s*.

        *identity*: the app of the process that asks; what it left to others (`leave_due`) comes to it after a while.
        """
        row = self._run(
            server_function("due_recurring"), again_us=round(again_s * SECOND_US), app=encode_part(identity)
        )
        return DueCall.parse(row) if row else None

    def decline_recurring(self, identity: str, name: str) -> None:
        """Say that *identity* does not know the task of a recurring call: others may have it at once."""
        self._run(server_function("decline_recurring"), name=encode_part(name), app=encode_part(identity))

    def fire_recurring(self, name: str, due: str, job: NewJob) -> PublishReply | None:
        """Publish the *job* of a recurring call, and set the next time. None if the call is not due any more.

        *due*: as the call was handed out; "": a person makes the call, whenever it is due, also while it is suspended.
        """
        reply = self._run(server_function("fire_recurring"), job.arguments, name=encode_part(name), due=due)
        return self.published([reply])[0] if reply else None

    def remove_recurring(self, name: str) -> bool:
        """Make a recurring call no more. Return whether there was one."""
        return bool(self._run(server_function("remove_recurring"), [encode_part(name)], app=""))

    def pause_recurring(self, name: str, suspended: bool) -> bool:
        """Keep a recurring call, and let it never be due; or let it go on. Return whether there is one."""
        return bool(self._run(server_function("pause_recurring"), name=encode_part(name), suspended=int(suspended)))


class Scheduler(WorkerFunctions, DispatcherFunctions, RecurringFunctions, PublishFunctions, AdminFunctions):
    """The scheduler of one cohort, reached by *client*. `Runner` has the demands on a client, and the errors."""

    def close(self) -> None:
        """Close the connections that no thread is using; one that is in use goes with its last user."""
        self.client.close()
        self.client.connection_pool.disconnect(inuse_connections=False)
