"""The scheduler of a cohort: one method per server function, in one class per kind of caller.

The Lua file of a function declares its arguments and its reply (`lua.library.ServerFunction`). `Runner._run` and
`Runner._repeat` invoke a function by these declarations.

Every invocation can be repeated after a lost reply. Publishing an existing id, a stale fencing token and a repeated
sequence number change nothing.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import redis
from redis.exceptions import ResponseError

from ..broker.inflight import InFlightCommands
from ..clock import SECOND_US, ServerTime, now_s
from ..errors import OptionError
from ..lua.library import FunctionCall, function_call, server_function
from ..options.recurring import RecurringCall
from ..policy.slot_math import NOTHING, PrefetchLimit
from ..schema.constants import MAX_ALIKE, MAX_MOVES, MAX_PURGED, MAX_REVOKED, MAX_SHARED
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
    RevokeReply,
    SyncReply,
    TaskRuns,
    TickReply,
    TypeMetricsDelta,
    UnreportedEnd,
    page_query,
    parse_claims,
)
from .runner import Runner, argument_pages, check_kind, flatten, is_function_missing


class PublishFunctions(Runner):
    """Publishes jobs and returns their outcomes."""

    def publish(self, *jobs: NewJob) -> list[PublishReply]:
        """Enqueue or schedule jobs in one round trip. An existing id changes nothing.

        Each invocation takes some of the jobs and is atomic. If this raises, some jobs may have been published. A
        rejected job leaves no trace, and the others are published.
        """
        return self.published(self._run_together(list(runner.publish_invocations(jobs))))

    def send_publish(self, in_flight: InFlightCommands, jobs: Sequence[NewJob]) -> None:
        """Begin a `publish`; `receive_publish` ends it. The server handles the first jobs while others are sent."""
        for call in runner.publish_invocations(jobs):
            in_flight.send_more(self._commands([call]))

    def receive_publish(self, in_flight: InFlightCommands) -> list[PublishReply]:
        """End a `send_publish`. Raises the server's errors unchanged.

        If the server lacks the function, load it and raise redis.ConnectionError, so that the caller publishes again.
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
        """Return the outcomes in replies of `publish`; claim further jobs for slots that it left free."""
        publish = server_function("publish")
        values = [value for reply in replies for value in self._filled(publish, reply)]
        return list(map(PublishReply.parse, values[::2], values[1::2]))


class WorkerFunctions(Runner):
    """The functions of a worker: lease, releases and claims."""

    def join(self, joining: JoinArguments, settings: dict[str, str]) -> JoinReply:
        """Register a live worker. *settings*: the settings of its app.conf, from `settings.wire.shared_settings`."""
        namesake, replaced, void_up_to, now_us = self._run("join", flatten(settings.items()), **joining.arguments)
        if self.way is self.library.by_script:  # each function is a separate script
            self.load()
        return JoinReply(decode_text(namesake) or None, list(map(decode_text, replaced)), int(void_up_to), now_us)

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
        """Ack messages, and release the slots of ended jobs, in one round trip. Return the next jobs.

        *acks* are (job id, fencing token).
        *sequence*: a positive number that grows with each invocation; negative for a repetition.
        *inline*: True to return the next jobs with the reply; otherwise they are sent to the inbox.
        *may_hold*: the jobs that the worker can then hold beyond its slots.
        *on_acked* is called with the number of *acks* whose claims the worker holds.
        """
        invocations = runner.ack_arguments(worker, acks, ends, sequence, inline, may_hold)
        replies = self._run_together(invocations) if invocations else []
        if acks:
            on_acked(int(replies[0]))
        return self._parse_releases(replies, bool(ends))

    def send_acks(
        self, in_flight: InFlightCommands, worker: str, acks: Sequence[tuple[str, str]], *, goes_on: bool
    ) -> None:
        """Begin to ack messages; `receive_acks` ends it. *goes_on*: other invocations are already in flight."""
        send = in_flight.send_more if goes_on else in_flight.send
        send(self._commands(runner.ack_arguments(worker, acks, (), 0, True, NOTHING)))

    def receive_acks(self, in_flight: InFlightCommands, calls: int) -> list[int]:
        """End *calls* invocations of `send_acks`. Return the numbers of claims that the worker holds."""
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
        """Begin a `release_and_claim` with inline jobs; `receive_ends` ends it. *goes_on*: see `send_acks`."""
        send = in_flight.send_more if goes_on else in_flight.send
        send(self._commands(runner.ack_arguments(worker, acks, ends, sequence, True, may_hold)))

    def receive_ends(self, in_flight: InFlightCommands, *, has_ends: bool) -> list[Claim]:
        """End a `send_ends`. Return the next jobs. Raises the server's errors unchanged."""
        replies = in_flight.receive()
        check_kind(list if has_ends else int, replies[-1] if replies else None, in_flight)
        return self._parse_releases(replies, has_ends)

    def _parse_releases(self, replies: Sequence[Any], has_ends: bool) -> list[Claim]:
        if not has_ends:
            return []
        return parse_claims(self._filled(server_function("release"), replies[-1]))

    def requeue(self, worker: str, claims: Iterable[tuple[str, str]], *, counted: bool) -> int:
        """Requeue *claims* (job id, fencing token), *counted* as a delivery or not. Return the number requeued."""
        returned = 0
        for page in argument_pages(list(claims), MAX_MOVES // 2):  # a job moves out of its slot, and another one in
            (count,) = self._run("requeue", flatten(page), worker=worker, counted=counted)
            returned += int(count)
        return returned

    def sync(self, worker: str, claims: Iterable[ClaimReport], *, slots: int, other: int, draining: bool) -> SyncReply:
        """Send a heartbeat with the *claims* that the worker holds."""
        is_registered, ticker, unnamed, void, revision, now_us, returned = self._run(
            "sync", flatten(claims), worker=worker, slots_in_all=slots, other=other, draining=draining
        )
        fields = [decode_text(value) for value in unnamed]
        pairs = list(zip(fields[::2], fields[1::2], strict=True))
        void_ids = [decode_text(job_id) for job_id in void]
        return SyncReply(
            bool(is_registered), bool(ticker), pairs, void_ids, decode_number(revision), now_us, int(returned)
        )

    def add_metrics(
        self, worker: str, number: int, sums: Iterable[TypeMetricsDelta], runs: Iterable[TaskRuns] = ()
    ) -> bool:
        """Add metric deltas and *runs* of a worker. Return True if the worker is registered; otherwise nothing changes.

        *number* grows with each invocation that is not a repetition.
        """
        lines = "\n".join(task_runs.line for task_runs in runs)
        deltas = flatten(delta.words for delta in sums)
        return bool(self._run("add_metrics", deltas, worker=worker, number=number, runs=lines))

    def record(self, recording: str, pages: Iterable[tuple[str, Sequence[ClaimRow]]]) -> bool:
        """Add *pages* (facts, claims) and the server's times to a recording. Return True while it is on."""
        return all(self._run_together([_record_invocation(recording, *page) for page in pages]))

    def heartbeat(self, worker: str, *, loop_runs: bool) -> bool:
        """Report a live worker, and whether its event loop runs. Return True if the worker is registered.

        While the loop is blocked, the worker gets no jobs, and the jobs in its inbox are requeued.
        """
        *_, (is_registered,) = self._repeat("heartbeat", worker=worker, loop_runs=loop_runs)
        return bool(is_registered)

    def heartbeats(self, workers: Sequence[str]) -> list[bool]:
        """Report in one round trip that *workers* live and their loops run. Return True for each registered worker."""
        calls = [function_call("heartbeat", worker=worker, loop_runs=True) for worker in workers]
        replies = self._run_together(calls) if calls else []
        return [
            bool(is_registered) for is_registered, _ in map(self._filled, (function for function, _ in calls), replies)
        ]

    def leave(self, worker: str) -> int:
        """Deregister a worker. Return the number of jobs that it still held, which are pending again."""
        return sum(returned for (returned,) in self._repeat("leave", worker=worker))

    def recover(self, worker: str) -> int:
        """Reclaim all jobs of a dead worker. Return their number."""
        return sum(recovered for (recovered,) in self._repeat("recover", worker=worker))


def _record_invocation(recording: str, worker: str, rows: Sequence[ClaimRow]) -> FunctionCall:
    page = page_query(rows)
    rest = [*page.plain, *page.others]
    return function_call("record", rest, recording=recording, worker=worker, rows=page.text, plain=len(page.plain))


class DispatcherFunctions(Runner):
    """The functions of a dispatcher, which no event triggers: due jobs and unreported ends."""

    def tick(self, lists: Sequence[str] = ()) -> TickReply:
        """Make due jobs and dead workers' jobs pending. *lists*: up to a few hundred lists of Celery to check."""
        due = recovered = 0
        dead: list[bytes] = []
        times: list[ServerTime] = []
        began_s = now_s()
        for reply in self._repeat("tick", lists):
            next_due_us, due_jobs, recovered_jobs, names, unreported, recurring, filled, now_us, ticked = reply
            times.append(ServerTime(decode_number(now_us), began_s, now_s(), decode_number(ticked) or None))
            due, recovered, dead = due + due_jobs, recovered + recovered_jobs, dead + names
        due_in_us = decode_number(next_due_us, -1)
        next_due_s = None if due_in_us < 0 else due_in_us / SECOND_US
        filled = [decode_text(name) for name in filled]
        dead_workers = [decode_part(decode_text(name)) for name in dead]
        return TickReply(next_due_s, due, recovered, dead_workers, bool(unreported), bool(recurring), filled, times[0])

    def ingest(self, list_: str, jobs: Sequence[NewJob]) -> int:
        """Move messages from a list of stock Celery into their lanes. Return the number of *jobs* still in the list.

        *jobs*: at most ten jobs with one type, in the order of their messages in the list.
        """
        calls = [function_call("ingest", job.arguments, list=list_, readable=job.readable) for job in jobs]
        replies = self._run_together(calls)
        self._fill_slots(b" ".join(unfilled for _, unfilled, _ in replies))
        for job, (state, _, bad) in zip(jobs, replies, strict=True):
            PublishReply.parse(state, bad).check(job)
        return sum(state > 0 for state, _, _ in replies)

    def next_report(self, app: str, *, again_s: float, telling: Collection[str] = ()) -> UnreportedEnd | None:
        """Return an unreported end, or None. Without an `ack_report`, the server returns the end again.

        The first pause is *again_s*; each further pause is twice as long.
        *app*: the caller's app. Ends that it has left to others are returned only after the others had their time.
        *telling*: ids of jobs whose ends this process reports next.
        """
        row = self._run("next_report", telling, again_us=round(again_s * SECOND_US), app=encode_part(app))
        return UnreportedEnd.parse(row) if row else None

    def batch_calls(
        self, batch: str, *, fence: str = "", after: int = 0, max_calls: int = MAX_SHARED
    ) -> BatchCallsPage | None:
        """Return calls of *batch* without its result, in order, without the primary, whose message was run.

        Return None if the batch is neither claimed with *fence* nor (for "") an end from `next_report`.
        *after*: the cursor of the previous page, 0 for the first page.
        *max_calls*: maximum number of calls.
        """
        page = self._run("batch_calls", batch=batch, fence=fence, after=after, max_calls=max_calls)
        return BatchCallsPage.parse(*page) if page else None

    def split_batch(self, batch: str, callers: Sequence[str], *, fence: str) -> int:
        """Requeue these calls of *batch*, in their order, as a separate batch. Return their number.

        *fence*: the token of the caller's claim of the batch. -1: the batch is not the caller's, and nothing changed.
        A repetition changes nothing. Calls that have ended, or were split off before, are not counted.
        """
        (parted,) = self._run("split_batch", callers, batch=batch, fence=fence)
        return int(parted)

    def ack_batch_reports(self, batch: str, callers: Sequence[str], *, fence: str = "", outcome: str = "acked") -> int:
        """Record that these calls of *batch* have its result. Return the number of its other calls.

        The calls of a batch that is not a dead letter end with *outcome*: "acked", or "failed" with a reason. *fence*,
        and -1 instead of None: as in `batch_calls`. An announced batch whose calls all have the result is reported, as
        by `ack_report`.
        """
        remaining = -1
        for page in argument_pages(callers, MAX_SHARED):
            remaining = int(self._run("ack_batch_reports", page, batch=batch, fence=fence, outcome=outcome))
        return remaining

    def ack_report(self, job_ids: Sequence[str]) -> None:
        """Record that the ends of these jobs were reported. Batches with calls that lack the result stay unreported."""
        self._run("ack_report", job_ids, how="told", app="")

    def leave_to_others(self, app: str, job_ids: Sequence[str]) -> None:
        """Record that *app* cannot report the ends of these jobs, because it does not define their tasks."""
        self._run("ack_report", job_ids, how="left", app=encode_part(app))

    def set_aside(self, job_ids: Sequence[str]) -> None:
        """Stop reporting the ends of these unreadable jobs. The keys of the jobs stay unchanged."""
        self._run("ack_report", job_ids, how="aside", app="")


#: Number of invocations of `revoke` in one round trip, which keep the server busy for about 2 ms.
_REVOKES_TOGETHER = 2


class AdminFunctions(Runner):
    """Ends, moves and replays jobs, pauses types and keys, changes settings."""

    def revoke(self, task_ids: Sequence[str], stamps: Sequence[str], *, keep_s: int) -> RevokeReply:
        """End the waiting jobs of these tasks, and the jobs with one of these stamps.

        Jobs that are published with these ids or stamps within *keep_s* seconds end as well.
        """
        revoked, others = 0, dict[bytes, None]()
        tasks = [encode_part(task_id) for task_id in task_ids]
        for by, names in (("task", tasks), ("stamp", stamps)):
            for pages in argument_pages(list(argument_pages(names, MAX_REVOKED)), _REVOKES_TOGETHER):
                calls = [function_call("revoke", page, by=by, keep_s=keep_s, after=0) for page in pages]
                for page, (count, left, after, names) in zip(pages, self._run_together(calls), strict=True):
                    revoked, others = revoked + count, others | dict.fromkeys(names)
                    while left:
                        page = page[len(page) - left :]
                        count, left, after, names = self._run("revoke", page, by=by, keep_s=keep_s, after=after)
                        revoked, others = revoked + count, others | dict.fromkeys(names)
        return RevokeReply(revoked, [decode_part(decode_text(name)) for name in others])

    def purge(self, type_: str) -> int:
        """Delete the pending and scheduled jobs of a type. Return their number."""
        encoded = encode_part(type_)
        deleted: int = sum(count for (count,) in self._repeat("purge", type=encoded))
        for waiting in self.reader.scheduled(type_, MAX_PURGED):
            count, _ = self._run("purge", waiting, type=encoded)
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
        """Change the type, mode or priority of waiting jobs; None: unchanged. The enqueue times stay unchanged.

        *priority*: 10 is the highest in the order of the app.conf. Merged calls move with their batch.
        """
        served, previous = True, list[JobState]()
        wanted = {
            "new_type": "" if type_ is None else encode_part(type_),
            "new_mode": "" if on_demand is None else DEMAND if on_demand else QUEUED,
            "new_priority": "" if priority is None else priority,
        }
        for page in argument_pages(job_ids):
            served, *states = self._run("move", page, **wanted)
            previous += [
                JobState(decode_text(state), int(n)) for state, n in zip(states[::2], states[1::2], strict=True)
            ]
        return MoveReply(bool(served), previous)

    def replay(self, job_ids: Sequence[str]) -> list[str]:
        """Replay dead letters as if published now. Return the ids of the dead letters that still have a message."""
        replayed: list[str] = []
        for page in argument_pages(job_ids):
            remaining = list(page)
            while remaining:
                others, *ids = self._run("replay", remaining)
                remaining = remaining[len(remaining) - others :]
                replayed += [job_id.decode() for job_id in ids]
        return replayed

    def drop(self, job_ids: Sequence[str]) -> int:
        """Delete dead letters. Return their number. A batch is deleted after all of its calls have the result."""
        return sum(int(self._run("drop", page)) for page in argument_pages(job_ids))

    def pause(self, what: str, *, for_s: float | None = None, why: str = "") -> bool:
        """Start no more jobs of *what*: "type:T" or "key:K", encoded, or "*" for all. *for_s* None: until `resume`.

        Return True if it was not paused before. Running jobs continue.
        """
        for_us = "" if for_s is None else round(for_s * SECOND_US)
        return bool(self._run("pause", what=what, for_us=for_us, why=why))

    def resume(self, what: str) -> bool:
        """End the pause of *what*. Return True if it was paused."""
        (resumed,) = self._run("resume", what=what)
        return bool(resumed)

    def configure(self, changes: dict[str, str]) -> int:
        """Change settings at run time, by their names in Redis; "" resets a setting. Return the settings' revision."""
        (revision,) = self._run("configure", flatten(changes.items()))
        return int(revision)


class RecurringFunctions(Runner):
    """Stores recurring calls and publishes their jobs."""

    def declare_recurring(self, entries: Sequence[RecurringCall], *, app: str = "") -> list[str]:
        """Declare recurring calls: all calls in the app.conf of *app*, or, for "", some calls at run time.

        An unchanged call in app.conf changes nothing: the last change takes precedence. Calls that were removed from
        app.conf are removed, unless they have been declared elsewhere since. Return the names of calls that another
        app, or an operator at run time, had declared differently. Raises OptionError if too many calls match the same.
        """
        encoded, replaced, refused = encode_part(app), [], []
        for arguments in runner.declare_arguments(entries):
            some_replaced, some_refused = self._run("declare_recurring", arguments, app=encoded)
            replaced += [decode_part(decode_text(name)) for name in some_replaced]
            refused += [decode_part(decode_text(name)) for name in some_refused]
        if app:
            named = {encode_part(entry.name) for entry in entries}
            dropped = sorted(self.reader.large_hash("recurring_of", encoded).keys() - named)
            for page in argument_pages(dropped):
                self._run("remove_recurring", page, app=encoded)
        if refused:
            requirement = f"among the first {MAX_ALIKE} that match the same task, type and merge key"
            raise OptionError(f"recurring calls must be {requirement}, got also: {', '.join(map(repr, refused))}")
        return replaced

    def due_recurring(self, identity: str, *, again_s: float) -> DueCall | None:
        """Return a due recurring call, or None. If it is not made, it is returned again after *again_s*.

        *identity*: the caller's app, which gets the calls that it declined (`decline_recurring`) only after a while.
        """
        row = self._run("due_recurring", again_us=round(again_s * SECOND_US), app=encode_part(identity))
        return DueCall.parse(row) if row else None

    def decline_recurring(self, identity: str, name: str) -> None:
        """Record that *identity* does not define the task of a recurring call: others can get it immediately."""
        self._run("decline_recurring", name=encode_part(name), app=encode_part(identity))

    def fire_recurring(self, name: str, due: str, job: NewJob) -> PublishReply | None:
        """Publish the *job* of a recurring call and set the next time. None if the call is no longer due.

        *due*: `DueCall.due`, or "" for an operator, who can make the call at any time, also while it is suspended.
        """
        outcome = self._run("fire_recurring", job.arguments, name=encode_part(name), due=due)
        return PublishReply.parse(*outcome) if outcome else None

    def remove_recurring(self, name: str) -> bool:
        """Remove a recurring call. Return True if there was one."""
        return bool(self._run("remove_recurring", [encode_part(name)], app=""))

    def pause_recurring(self, name: str, suspended: bool) -> bool:
        """Suspend or resume a recurring call without removing it. Return True if there is one."""
        return bool(self._run("pause_recurring", name=encode_part(name), suspended=suspended))


class Scheduler(WorkerFunctions, DispatcherFunctions, RecurringFunctions, PublishFunctions, AdminFunctions):
    """The scheduler of one cohort, reached by *client*. See `Runner` for the client's requirements and the errors."""

    def close(self) -> None:
        """Close the idle connections; a connection in use is closed by its last user."""
        self.client.close()
        self.client.connection_pool.disconnect(inuse_connections=False)
