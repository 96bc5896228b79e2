"""The scheduler's arrows in plain Python: what the Lua scripts must equal, in state and in every reply.

This is the specification to read. It does no I/O and has no clock: the time is an argument. It knows neither lanes nor
heads, nor counts by profile or by type: those are how the scripts avoid looking at everything, and
``tests/conformance/test_conformance.py`` shows after each of thousands of random steps that they come to the same.

    publish -> [scheduled] -> pending -> claim -> inbox -> start -> ack -> release
                                 ^                                    |
                                 +---------- requeue, recover --------+

Every arrow that adds a job or a slot ends with `fill`, the one place where a job meets a slot.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Literal

from ..rules.keys import SCHEMA, encode, withdrawn
from ..rules.protocol import (
    AVERAGED_OVER,
    GIVEN_UP_US,
    HAS_ENDED,
    IS_KNOWN,
    IS_NOT_NEXT,
    IS_PENDING,
    IS_REFUSED,
    IS_SCHEDULED,
    IS_UNREADABLE,
    LONGEST_ANNOUNCED,
    LONGEST_PAUSE_US,
    MOST_BYTES,
    MOST_ENDS_LOOKED_AT,
    MOST_MOVES,
    MOST_PURGED,
    MOST_TYPES,
    MOST_WHY_BYTES,
    OTHERS_HAVE_US,
    OTHERS_WHO_TRY_HAVE_US,
    SAMPLED_ONE_IN,
    SHORT_US,
    SILENCE_COUNTS_US,
    TICK_US,
    TICKED_LATELY_US,
    TICKERS,
)
from ..rules.score import goes_by_age, overtakes, score
from ..rules.slot import FreeWorker, choose
from .model import (
    Beaten,
    Delivery,
    Ending,
    Job,
    Joined,
    Outcome,
    Published,
    Reason,
    Recovered,
    Released,
    State,
    Synced,
    Ticked,
    Worker,
)
from .settings_in_force import InForce

#: How a claimed job ended that was settled -> what it is then.
ENDED: Mapping[str, State] = {"acked": "done", "failed": "failed", "revoked": "revoked", "expired": "expired"}

#: No type.
NONE: Set[str] = frozenset()


class Reference:
    """The scheduler of one cohort: its state, and one method for each arrow."""

    def __init__(self, max_bytes: int = MOST_BYTES) -> None:
        self.max_bytes = max_bytes
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[str, dict[str, int]] = {}
        """Task id -> its jobs that have not ended, each with a number; or the one that ended last, which a server
        forgets later."""
        self.workers: dict[str, Worker] = {}
        self.names: dict[str, str] = {}
        """Node name -> the worker that took it last."""
        self.schema: int | None = None
        """The major version of the data, once a worker has joined."""
        self.settings = InForce()
        self.turn = 0
        """Claims made since a share of them goes by age alone."""
        self.durations_us: dict[str, int] = {}
        """Type -> moving average of its jobs' time in a slot."""
        self.ahead: dict[str, str] = {}
        """Type -> the worker that took jobs of it beyond its slots last."""
        self.counters: Counter[str] = Counter()
        self.untold: dict[str, int] = {}
        """Jobs whose end their callers do not know -> when they are to be told, µs."""
        self.revoked: dict[str, int] = {}
        """Task ids that were revoked -> when, µs; a server forgets them later."""
        self.revoked_stamps: dict[str, int] = {}
        self.expiring: dict[str, int] = {}
        """Jobs -> when they end if they still wait, µs."""
        self.stamped: dict[str, dict[str, int]] = {}
        """Stamp -> the jobs that bear it -> when they were published, µs."""
        self.lists: dict[str, list[str]] = {}
        """Lists of stock Celery -> what waits there, the next one first."""
        self.fence = 0
        self.ticked_us: int | None = None
        self.grace_us: int | None = None
        """Since when silence counts."""

    # -- the arrows

    def publish(self, jobs: Sequence[tuple[str, Mapping[str, Any] | str]], *, now_us: int) -> list[Published]:
        """Client -> pending, or scheduled. A known id changes nothing. The first reply says `more`.

        *jobs*: the id of each, and what `_put` takes, or the field for which it is refused (`fields.bad`). They stay in
        order: each is enqueued 1 µs after the one before.
        """
        waiting = {job.type for job in self.jobs.values() if job.state == "pending"}
        published, types = [], set()
        for nth, (job_id, job) in enumerate(jobs):
            if isinstance(job, str):
                published.append(Published(IS_REFUSED, NONE, True, job))
                continue
            state, served = self._put(job_id, nth, now_us, **job)
            published.append(Published(state, NONE, served))
            if state == IS_PENDING and served:
                types.add(job["type_"])
        more = self._fill(types - waiting, now_us)  # if some wait, no free slot fits, or somebody goes on with them
        return [published[0]._replace(more=more), *published[1:]]

    def ingest(
        self, list_: str, job_id: str, *, message: str, readable: bool, type_: str, now_us: int, **job: Any
    ) -> Published:
        """A list of stock Celery -> pending or scheduled, as `publish` does; or dead, if it is not *readable*.

        If *message* is not the next one there, nothing changes. One that says what is refused is not readable.
        """
        waiting = self.lists.get(list_, [])
        if waiting[:1] != [message]:
            return Published(IS_NOT_NEXT, NONE, True)
        if job_id in self.jobs:
            return Published(IS_KNOWN, NONE, True)
        waiting.pop(0)
        if readable:
            (published,) = self.publish([(job_id, {"type_": type_, "message": message, **job})], now_us=now_us)
            return published
        unreadable = Job(job_id, type_, False, 0, now_us, "pending", message)
        self.jobs[job_id] = unreadable
        self._bury(unreadable, "unreadable", now_us)
        return Published(IS_UNREADABLE, NONE, True)

    def claim(self, types: Iterable[str], *, now_us: int) -> Set[str]:
        """Pending -> inbox: go on with the types that another arrow named as `more`. Return `more`."""
        return self._fill(set(types), now_us)

    def ack(self, worker_id: str, acks: Iterable[tuple[str, int]]) -> int:
        """Settle messages; their slots stay taken until the release. Return how many the worker held."""
        held = [job for job_id, fence in acks if (job := self._held(worker_id, job_id, fence))]
        for job in held:
            job.acked = True
        return len(held)

    def release(
        self,
        worker_id: str,
        sequence: str,
        ends: Iterable[tuple[str, int, Outcome]],
        *,
        inline: bool,
        now_us: int,
        most_ahead: int = 0,
    ) -> Released:
        """Claimed -> done, failed, revoked, expired, dead or pending: the slots are free again.

        A repeated *sequence* gets the same reply.

        *most_ahead*: jobs that the worker takes beyond its slots.
        """
        worker = self.workers.get(worker_id)
        if worker is None:
            return Released(NONE, [])
        if worker.sequence == sequence:
            still = [job for job_id, fence in worker.granted if (job := self._held(worker_id, job_id, fence))]
            return Released(NONE, [_delivery(job) for job in still])
        if inline:
            worker.stalled = False  # only the event loop takes jobs inline, so it turns
        again = self._take_ends(worker, ends, now_us)
        if len(worker.claims) > worker.slots - worker.other:
            self.ahead |= {type_: worker.id for type_ in again if self._capacity(type_)}
        self._settle(worker, now_us)
        deliveries: list[Delivery] = []
        more = self._fill(again | worker.types, now_us, worker, deliveries if inline else None, alone=not again)
        if not more:
            if inline:
                self._fill_ahead(worker, most_ahead, now_us, deliveries)
            self._ask_for_what_is_ahead(worker)
        worker.sequence = sequence
        worker.granted = [(delivery.job_id, delivery.fence) for delivery in deliveries]
        return Released(more, deliveries)

    def _take_ends(self, worker: Worker, ends: Iterable[tuple[str, int, Outcome]], now_us: int) -> set[str]:
        """Note how claims ended. Return the types of those that are pending again."""
        again: set[str] = set()
        for job_id, fence, outcome in ends:
            job = self._held(worker.id, job_id, fence)
            if job is None:
                continue
            how, _, words = outcome.partition(" ")
            why = words.encode()[:MOST_WHY_BYTES].decode(errors="replace")
            if how in ENDED or job.acked:
                self._finish(job, ENDED.get(how, "done"), why if how in ENDED else "", now_us)
            elif how == "rejected":
                self._drop(job)
                self._bury(job, "rejected", now_us, why)
            else:
                again |= self._put_back(job, now_us, counted=how == "unsettled", why=why)
        return again

    def requeue(self, worker_id: str, claims: Iterable[tuple[str, int]], *, counted: bool, now_us: int) -> Set[str]:
        """Claimed -> pending with the first enqueue time, *counted* as a delivery or not. Return `more`."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return NONE
        types = set(worker.types)
        for job_id, fence in claims:
            job = self._held(worker_id, job_id, fence)
            if job:
                types |= self._put_back(job, now_us, counted=counted)
        self._settle(worker, now_us)
        return self._fill(types, now_us)

    def join(
        self,
        worker_id: str,
        *,
        name: str,
        types: Collection[str],
        slots: int,
        other: int,
        app: str,
        settings: Mapping[str, str],
        now_us: int,
    ) -> Joined:
        """Enter a worker, or bring it back with other types and slots: what it holds it keeps.

        *settings*: what its app.conf says, which counts when it is new.
        """
        self.schema = self.schema or SCHEMA
        replaced = self.settings.take(app, settings) if worker_id not in self.workers else []
        namesake = self.names.get(name)
        self.names[name] = worker_id
        worker = self.workers.get(worker_id)
        void_up_to = 0 if worker and worker.accepting else self.fence
        if worker is None:
            worker = Worker(worker_id, name, frozenset(types), slots, other, joined_us=now_us, seen_us=now_us, app=app)
            self.workers[worker_id] = worker
        else:
            self._forget_durations(worker)
            worker.name, worker.types, worker.slots, worker.other = name, frozenset(types), slots, other
            worker.app = app
            worker.seen_us, worker.accepting, worker.stalled, worker.free = now_us, True, False, 0
        self._settle(worker, now_us)
        more = self._fill(worker.types, now_us)
        if not more:
            self._ask_for_what_is_ahead(worker)
        return Joined(more, namesake if namesake != worker_id else None, replaced, void_up_to, now_us)

    def sync(
        self,
        worker_id: str,
        claims: Iterable[tuple[str, int, int]],
        *,
        slots: int,
        other: int,
        draining: bool,
        now_us: int,
    ) -> Synced:
        """Beat, and compare what the worker holds with what it should: only the worker itself gives a claim back.

        *claims*: job id, fencing number, µs since its task started (-1: not yet).
        """
        worker = self.workers.get(worker_id)
        if worker is None or not (worker.accepting or draining):
            return Synced(False, False, NONE, [], [], 0, now_us, 0)
        worker.seen_us, worker.slots, worker.other = now_us, slots, other
        if draining:
            self._close(worker, now_us)

        named = list(claims)
        held = {job_id: fence for job_id, fence, _ in named}
        void = [job_id for job_id, fence, _ in named if not self._held(worker_id, job_id, fence)]
        self._note_starts(worker_id, named, now_us)
        asked, looked_at, size, types, returned = [], 0, 0, set(worker.types), 0
        for job_id, fence in list(worker.claims.items()):
            job = self.jobs[job_id]
            if held.get(job_id) == fence or not (draining or self._may_have_arrived(job, now_us)):
                continue
            if looked_at == MOST_MOVES or size > self.max_bytes:
                break
            looked_at, size = looked_at + 1, size + _size(job.message)
            if _take_unread(worker, job) or draining:
                again = self._put_back(job, now_us, counted=False)
                types, returned = types | again, returned + len(again)
            else:
                asked.append((job_id, fence))
        self._settle(worker, now_us)

        ticker = self._is_ticker(worker, now_us)
        more = self._fill(types, now_us)
        if not more:
            self._ask_for_what_is_ahead(worker)
        return Synced(True, ticker, more, asked, void, self.settings.revision, now_us, returned)

    def beat(self, worker_id: str, *, turns: bool, now_us: int) -> Beaten:
        """Keep a worker alive. While its event loop does not turn, it gets no job, and the unread ones go back."""
        worker = self.workers.get(worker_id)
        if worker is None or worker.seen_us == GIVEN_UP_US:
            return Beaten(False, False, NONE)
        worker.seen_us = now_us
        types: set[str] = set()
        size = 0
        if not turns:
            worker.stalled = True
            self._settle(worker, now_us)
            unread = 0
            while worker.inbox and unread < MOST_MOVES and size <= self.max_bytes:
                delivery = worker.inbox.pop(0)
                unread, size = unread + 1, size + (0 if isinstance(delivery, str) else _size(delivery.message))
                job = None if isinstance(delivery, str) else self._held(worker_id, delivery.job_id, delivery.fence)
                if job:
                    types |= self._put_back(job, now_us, counted=False)
        elif worker.stalled:
            worker.stalled = False
            types = set(worker.types)
            self._settle(worker, now_us)
        more = self._fill(types, now_us)
        return Beaten(True, bool(worker.inbox) and not turns, more)

    def leave(self, worker_id: str, *, now_us: int) -> tuple[Set[str], bool, int]:
        """Take a worker out; what it holds is pending again.

        Return `more`, whether it still holds something, and how many jobs are pending again.
        """
        worker = self.workers.get(worker_id)
        if worker is None:
            return NONE, False, 0
        self._close(worker, now_us)
        types: set[str] = set()
        returned = 0
        for job_id in list(worker.claims)[:MOST_MOVES]:
            again = self._put_back(self.jobs[job_id], now_us, counted=False)
            types, returned = types | again, returned + len(again)
        if not worker.claims:
            self._remove(worker)
        return self._fill(types, now_us), bool(worker.claims), returned

    def recover(self, worker_id: str, *, now_us: int) -> Recovered:
        """Claimed -> pending, counted as a delivery: the worker is dead, says its guard."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return Recovered(False, 0, NONE)
        types: set[str] = set()
        recovered, gone = self._recover(worker, MOST_MOVES, types, now_us)
        return Recovered(not gone, recovered, self._fill(types, now_us))

    def tick(self, lists: Iterable[str] = (), *, now_us: int) -> Ticked:
        """Scheduled -> pending where due; the jobs of workers that are silent for too long -> pending.

        What waits and has expired ends. Of *lists* those are returned that hold messages.
        """
        if self.ticked_us is None or not 0 <= now_us - self.ticked_us <= SILENCE_COUNTS_US:
            self.grace_us = now_us
        self.ticked_us = now_us

        expired = self._end_expired(now_us)
        scheduled = sorted((job.enqueued_us, job.id) for job in self.jobs.values() if job.state == "scheduled")
        due = [self.jobs[job_id] for due_us, job_id in scheduled if due_us <= now_us][:MOST_MOVES]
        for job in due:
            job.state = "pending"

        types = {job.type for job in due}
        recovered, dead = self._recover_the_dead(types, now_us)
        more = self._fill(types, now_us)
        again = MOST_MOVES in (expired, len(due), recovered)
        waiting = scheduled[len(due) :]
        next_due_us = max(0, waiting[0][0] - now_us) if waiting else None
        untold = any(when_us <= now_us for when_us in self.untold.values())
        filled = [each for each in lists if self.lists.get(each)]
        return Ticked(again, next_due_us, len(due), recovered, dead, untold, filled, more)

    def revoke(self, task_ids: Sequence[str], *, now_us: int, after: int = 0) -> tuple[int, int, int]:
        """End the waiting jobs of these tasks, and what is published of them from now on.

        Return how many, with how many of the tasks, the last ones, to go on, and the *after* to go on with: the number
        of the last job of the first task that was looked at.
        """
        self.revoked |= dict.fromkeys(task_ids, now_us)
        ended = looked_at = 0
        for nth, task_id in enumerate(task_ids):
            if looked_at == MOST_MOVES:
                return ended, len(task_ids) - nth, 0
            jobs = self.tasks.get(task_id, {})
            passed = after if nth == 0 and len(jobs) > 1 else 0
            page = [job_id for job_id, number in jobs.items() if number > passed][: MOST_MOVES - looked_at]
            looked_at += len(page)
            ended += sum([self._end_waiting(self.jobs[each], "revoked", now_us) for each in page])
            if looked_at == MOST_MOVES and len(jobs) > 1:
                return ended, len(task_ids) - nth, jobs[page[-1]]
        return ended, 0, 0

    def revoke_stamped(self, stamps: Sequence[str], *, now_us: int) -> tuple[int, int]:
        """End the waiting jobs that bear one of these stamps. Return how many, and with how many stamps to go on."""
        self.revoked_stamps |= dict.fromkeys(stamps, now_us)
        ended = looked_at = 0
        for nth, stamp in enumerate(stamps):
            bearing = sorted((at_us, job_id) for job_id, at_us in self.stamped.get(stamp, {}).items())
            for _, job_id in bearing[: MOST_MOVES - looked_at]:
                del self.stamped[stamp][job_id]
                looked_at += 1
                ended += self._end_waiting(self.jobs[job_id], "revoked", now_us)
            if looked_at == MOST_MOVES:
                return ended, len(stamps) - nth
        return ended, 0

    def announce(self, *, app: str, telling: Collection[str] = (), again_us: int, now_us: int) -> Ending | None:
        """Return an end to be told to its caller. If nobody says that it is `told`, it comes again.

        That is *again_us* later, and each time after a pause twice as long. *telling*: jobs whose ends the caller is
        about to tell still. What *app* has left to others comes to it again only when it is for anyone.
        """
        due = sorted((when_us, job_id) for job_id, when_us in self.untold.items() if when_us <= now_us)
        for _, job_id in due[:MOST_ENDS_LOOKED_AT]:
            job = self.jobs[job_id]
            since_us = max(0, now_us - (job.ended_us or 0))
            is_for_anyone = since_us >= (OTHERS_WHO_TRY_HAVE_US if job.tries else OTHERS_HAVE_US)
            if job_id in telling or (app in job.left and not is_for_anyone):
                continue
            self.untold[job_id] = now_us + min(again_us * 2**job.tries, LONGEST_PAUSE_US)
            job.tries += 1
            how = job.reason or job.state
            message = job.message or ""
            return Ending(
                job_id,
                how,
                job.type,
                job.task_id,
                job.task_name,
                job.deliveries,
                since_us,
                is_for_anyone,
                message if len(message.encode()) <= LONGEST_ANNOUNCED else None,
            )
        return None

    def leave_to_others(self, job_ids: Iterable[str], *, app: str, now_us: int) -> int:
        """Note that *app* does not know the tasks of these jobs: it has not tried. Return how many are not told of."""
        untold = [self.jobs[job_id] for job_id in job_ids if job_id in self.untold]
        for job in untold:
            job.left = (*job.left, app)
            job.tries = max(0, job.tries - 1)
            self.untold[job.id] = now_us
        return len(untold)

    def told(self, job_ids: Iterable[str]) -> int:
        """Note that the callers of these jobs know how they ended. Return how many did not before."""
        untold = [self.jobs[job_id] for job_id in dict.fromkeys(job_ids) if self.untold.pop(job_id, None) is not None]
        for job in untold:
            job.left, job.tries = (), 0
            if job.state != "dead":
                job.message = None
                self._keep_last_of_task(job)
            elif not job.is_listed:
                self._forget(job)
        return len(untold)

    def purge(self, type_: str, scheduled: Iterable[str] = ()) -> tuple[int, bool]:
        """Delete waiting jobs of a type, because a person asked: pending ones, and the scheduled ones of those named.

        Return how many, and whether to call again. Which of the pending ones go first is not said.
        """
        named = [self.jobs[job_id] for job_id in dict.fromkeys(scheduled) if job_id in self.jobs]
        waiting = [job for job in named if job.state == "scheduled" and job.type == type_]
        for job in waiting:
            self._forget(job)
        pending = [job.id for job in self._pending({type_})]
        for job_id in pending[:MOST_PURGED]:
            self._forget(self.jobs[job_id])
        return len(waiting) + min(len(pending), MOST_PURGED), len(pending) > MOST_PURGED

    def replay(self, job_ids: Iterable[str], *, now_us: int) -> tuple[Set[str], list[str]]:
        """Dead -> pending as if published now, if the message is still there. Return `more` and the jobs that are."""
        replayed = [job for job in self._dead(job_ids) if job.message is not None]
        for job in replayed:
            job.state, job.enqueued_us, job.deliveries, job.reason, job.ended_us = "pending", now_us, 0, None, None
            job.acked, job.left, job.tries, job.is_listed, job.why = False, (), 0, True, ""
            self.untold.pop(job.id, None)
            self._fade(job)
            job.expires_us, job.stamps = None, ()
        return self._fill({job.type for job in replayed}, now_us), [job.id for job in replayed]

    def drop(self, job_ids: Iterable[str]) -> int:
        """Delete dead letters. Return how many there were."""
        dead = self._dead(job_ids)
        for job in dead:
            self._forget(job)
        return len(dead)

    def _dead(self, job_ids: Iterable[str]) -> list[Job]:
        found = [self.jobs[job_id] for job_id in dict.fromkeys(job_ids) if job_id in self.jobs]
        return [job for job in found if job.state == "dead"]

    def configure(self, changes: Mapping[str, str]) -> int:
        """Change settings at run time, "" resets one to what app.conf said last. Return their revision."""
        return self.settings.change(changes)

    # -- fill: the one place where a job meets a slot

    def _fill(
        self,
        types: Collection[str],
        now_us: int,
        caller: Worker | None = None,
        inline: list[Delivery] | None = None,
        *,
        alone: bool = False,
    ) -> Set[str]:
        """Place the best job of *types* on its best slot until none fits. After `MOST_MOVES`, or as many bytes
        as one call moves, return those that wait.

        One that has expired ends when its turn comes, and takes no slot: no tick has seen it yet.

        The jobs that *caller* gets are added to *inline* instead of its inbox. *alone*: only its slots are filled; each
        other one was looked at when it became free, or when the jobs came that are pending.
        """
        has_choice = self._has_choice(types)
        size = 0
        for _ in range(MOST_MOVES):
            is_over = alone and not (caller and caller.free)
            fits = {type_: self._slots_that_fit(type_) for type_ in types if not is_over and self._best_worker(type_)}
            job = self._next_job(fits, now_us, counts=has_choice)
            worker = caller if alone else self._best_worker(job.type) if job else None
            if job is None or worker is None:
                return NONE
            delivery = self._grant(job, worker, now_us)
            if delivery is None:
                continue
            if worker is caller and inline is not None:
                inline.append(delivery)
            else:
                worker.inbox.append(delivery)
            size += _size(delivery.message)
            if size > self.max_bytes:
                break
        return {job.type for job in self._pending(types)}

    def _fill_ahead(self, worker: Worker, most: int, now_us: int, inline: list[Delivery]) -> None:
        """Give *worker* what waits for a slot of its types, until it holds *most* jobs beyond its slots."""
        takes_jobs = worker.accepting and not worker.stalled and worker.slots > 0
        room = min(most, worker.slots + most - worker.other - len(worker.claims)) if takes_jobs else 0
        by_free = self.settings.get("rarity") == "free"
        has_choice = self._has_choice(worker.types)
        size = 0
        for _ in range(MOST_MOVES):
            fits = {type_: 1 if by_free else self._slots_that_fit(type_) for type_ in worker.types}
            job = self._next_job(fits, now_us, counts=has_choice) if room > 0 else None
            if job is None:
                return
            delivery = self._grant(job, worker, now_us)
            if delivery is not None:
                inline.append(delivery)
                self.ahead[job.type] = worker.id
                room -= 1
                size += _size(job.message)
            if size > self.max_bytes:
                return

    def _ask_for_what_is_ahead(self, worker: Worker) -> None:
        """Ask who took jobs of the types of *worker* ahead last for as many as it has free slots."""
        if not worker.free:
            return
        for type_ in sorted(worker.types & self.ahead.keys(), key=encode):
            holder = self.workers.get(self.ahead.pop(type_))
            if holder and holder is not worker:
                types = " ".join(sorted(map(encode, worker.types)))
                holder.inbox.append(f"\nback {worker.free} {types}")
                return

    def _first_scheduled(self) -> Job | None:
        scheduled = (job for job in self.jobs.values() if job.state == "scheduled")
        return min(scheduled, key=lambda job: (job.enqueued_us, job.id), default=None)

    def _have_one_tick(self) -> None:
        """Give a sign to one of those that tick for the fleet."""
        for worker in self._tickers():
            if worker.accepting and not worker.stalled:
                worker.inbox.append("\ntick")
                return

    def _has_choice(self, types: Collection[str]) -> bool:
        """Return whether jobs of more than one lane of *types* wait."""
        return len({(job.type, job.on_demand, job.priority) for job in self._pending(types)}) > 1

    def _next_job(self, fits: Mapping[str, int], now_us: int, *, counts: bool) -> Job | None:
        """Return the best job of the types in *fits*, with the slots that fit each.

        *counts*: whether it is one of those of which a share goes by age, as all that have a choice.
        """
        percentage = int(self.settings.get("priority_percentage"))
        job = self._best_job(fits, now_us, by_age=goes_by_age(self.turn, percentage))
        self.turn += counts and job is not None and percentage < 100
        return job

    def _best_job(self, fits: Mapping[str, int], now_us: int, *, by_age: bool) -> Job | None:
        coefficients = self.settings.weights
        best: tuple[int, int, str] | None = None
        for job in self._pending(fits):
            terms = score(job.priority, job.on_demand, now_us - job.enqueued_us, fits[job.type], coefficients)
            candidate = 0 if by_age else terms.total, job.enqueued_us, job.id
            if best is None or overtakes(candidate, best):
                best = candidate
        return self.jobs[best[2]] if best else None

    def _best_worker(self, type_: str) -> Worker | None:
        """Return the worker that a job goes to. Of more than 100 profiles with a free slot the scripts compare 100."""
        free = (FreeWorker(each.id, each.types, each.free_since_us) for each in self.workers.values() if each.free)
        chosen = choose(type_, free)
        return self.workers[chosen.id] if chosen else None

    def _grant(self, job: Job, worker: Worker, now_us: int) -> Delivery | None:
        """Give a job to *worker*; one that has expired ends instead, and nobody gets it."""
        self.fence += 1
        job.claimed_us = now_us
        if _has_expired(job, now_us):
            self._end(job, "expired", now_us)
            return None
        job.state, job.worker, job.fence = "claimed", worker.id, self.fence
        worker.claims[job.id] = self.fence
        self._settle(worker, now_us)
        return _delivery(job)

    def _slots_that_fit(self, type_: str) -> int:
        if self.settings.get("rarity") == "free":
            return sum(worker.free for worker in self.workers.values() if type_ in worker.types)
        return self._capacity(type_)

    def _capacity(self, type_: str) -> int:
        return sum(worker.slots for worker in self.workers.values() if type_ in worker.types)

    def _pending(self, types: Collection[str]) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "pending" and job.type in types]

    # -- a job that is held

    def _held(self, worker_id: str, job_id: str, fence: int) -> Job | None:
        """Return the job if the worker holds it with this very number: a stale one changes nothing."""
        worker = self.workers.get(worker_id)
        return self.jobs[job_id] if worker and worker.claims.get(job_id) == fence else None

    def _drop(self, job: Job) -> None:
        assert job.worker is not None
        del self.workers[job.worker].claims[job.id]
        job.worker = job.fence = job.started_us = None

    def _finish(self, job: Job, state: State, why: str, now_us: int) -> None:
        """Keep only what is known of the job, so that a repeated publish changes nothing; a server forgets it later."""
        duration_us = max(0, now_us - (job.claimed_us or 0))
        assert job.worker is not None
        assert job.fence is not None
        is_known = job.type in self.durations_us or self._capacity(job.type)
        # Of short ones, which are many, one in eight is looked at; of types that nobody serves any more none.
        if is_known and (duration_us >= SHORT_US or job.fence % SAMPLED_ONE_IN == 0):
            average_us = self.durations_us.get(job.type, duration_us)
            self.durations_us[job.type] = average_us + (duration_us - average_us) // AVERAGED_OVER
        del self.workers[job.worker].claims[job.id]
        self._fade(job)
        self._keep_last_of_task(job)
        job.state, job.why, job.ended_us, job.message = state, why, now_us, None

    def _put_back(self, job: Job, now_us: int, *, counted: bool, why: str = "") -> set[str]:
        """Take a job from its worker: pending again, dead if it came back too often, lost if it had been acked.

        One that was revoked meanwhile, or has expired, ends. Return the types that gained a pending job.
        """
        self._drop(job)
        if job.acked:
            self._bury(job, "lost", now_us)
            return set()
        if _has_expired(job, now_us):
            self._end(job, "expired", now_us)
            return set()
        if self._is_revoked(job):
            self._end(job, "revoked", now_us)
            return set()
        job.deliveries += counted
        if counted and job.deliveries >= int(self.settings.get("max_deliveries")):
            self._bury(job, "max_deliveries", now_us, why)
            return set()
        job.state = "pending"
        return {job.type}

    def _bury(self, job: Job, reason: Reason, now_us: int, why: str = "") -> None:
        """Put a job among the dead letters, of which the newest are kept."""
        job.state, job.reason, job.why, job.ended_us = "dead", reason, why, now_us
        self.counters[reason] += 1
        if reason not in ("rejected", "unreadable"):
            self.untold[job.id] = now_us
        dead = sorted((each.ended_us or 0, each.id) for each in self.jobs.values() if _is_dead_letter(each))
        for _, job_id in dead[: max(0, len(dead) - int(self.settings.get("dead_max")))][:MOST_MOVES]:
            if job_id in self.untold:
                self.jobs[job_id].is_listed = False
            else:
                self._forget(self.jobs[job_id])

    def _forget(self, job: Job) -> None:
        del self.jobs[job.id]
        self.untold.pop(job.id, None)
        self._fade(job)
        self._take_from_task(job)

    # -- a message becomes a job

    def _put(
        self,
        job_id: str,
        nth: int,
        now_us: int,
        *,
        type_: str,
        on_demand: bool,
        priority: int,
        delay_us: int,
        task_id: str,
        task_name: str,
        message: str,
        expires_us: int | None = None,
        stamps: Collection[str] = (),
    ) -> tuple[int, bool]:
        """Add a job. Return its state and whether it is served, as `Published` has them.

        *expires_us*: until it ends if it still waits.
        """
        if job_id in self.jobs:
            return IS_KNOWN, True
        due_us = now_us + nth + max(0, delay_us)
        state: State = "scheduled" if delay_us > 0 else "pending"
        job = Job(job_id, type_, on_demand, priority, due_us, state, message, task_id, task_name)
        self.jobs[job_id] = job
        self._add_to_task(task_id, job_id)
        self._trace(job, None if expires_us is None else now_us + expires_us, stamps, now_us)
        if self._is_task_revoked(job) or (expires_us is not None and expires_us <= 0):
            self._end(job, "revoked" if self._is_task_revoked(job) else "expired", now_us)
            return HAS_ENDED, True
        if delay_us > 0:
            job.published_us = now_us
            if delay_us < TICK_US and self._first_scheduled() is job:
                self._have_one_tick()
            return IS_SCHEDULED, True
        if not self._capacity(type_) and not self._capacity(withdrawn(type_)):
            self.counters["unserved"] += 1
            return IS_PENDING, False
        return IS_PENDING, True

    # -- a job that ends without a worker

    def _end_waiting(self, job: Job, how: Literal["revoked", "expired"], now_us: int) -> bool:
        """End a job if it waits; a claimed one is its worker's. Return whether it did."""
        if job.state not in ("pending", "scheduled"):
            return False
        self._end(job, how, now_us)
        return True

    def _end(self, job: Job, how: Literal["revoked", "expired"], now_us: int) -> None:
        job.state, job.ended_us = how, now_us
        self.untold[job.id] = now_us
        self.counters[how] += 1
        self._fade(job)

    def _end_expired(self, now_us: int) -> int:
        """End what waits and has expired. Return how many were looked at; what is not waiting is looked at once."""
        due = sorted((at_us, job_id) for job_id, at_us in self.expiring.items() if at_us <= now_us)[:MOST_MOVES]
        for _, job_id in due:
            del self.expiring[job_id]
            self._end_waiting(self.jobs[job_id], "expired", now_us)
        return len(due)

    def _is_revoked(self, job: Job) -> bool:
        """Return whether the job's task was revoked or, since its enqueue time, one of its stamps."""
        return self._is_task_revoked(job) or any(
            self.revoked_stamps.get(each, -1) >= job.enqueued_us for each in job.stamps
        )

    def _is_task_revoked(self, job: Job) -> bool:
        return bool(job.task_id) and job.task_id in self.revoked

    # -- what finds a job

    def _trace(self, job: Job, expires_us: int | None, stamps: Collection[str], now_us: int) -> None:
        job.expires_us, job.stamps = expires_us, tuple(stamps)
        for stamp in stamps:
            self.stamped.setdefault(stamp, {})[job.id] = now_us
        if expires_us is not None:
            self.expiring[job.id] = expires_us

    def _fade(self, job: Job) -> None:
        for stamp in job.stamps:
            self.stamped.get(stamp, {}).pop(job.id, None)
        self.expiring.pop(job.id, None)

    def _keep_last_of_task(self, job: Job) -> None:
        if len(self.tasks.get(job.task_id, ())) > 1:
            self._take_from_task(job)

    def _add_to_task(self, task_id: str, job_id: str) -> None:
        if not task_id:
            return
        jobs = self.tasks.setdefault(task_id, {})
        if any(self._has_ended(self.jobs[each]) for each in jobs):
            jobs.clear()
        jobs[job_id] = max(jobs.values(), default=0) + 1

    def _has_ended(self, job: Job) -> bool:
        """Whether a job is only known for a while, and will be forgotten."""
        return job.state in ("done", "failed", "revoked", "expired") and job.id not in self.untold

    def _take_from_task(self, job: Job) -> None:
        left = self.tasks.get(job.task_id, {})
        left.pop(job.id, None)
        if len(left) == 1:
            self.tasks[job.task_id] = dict.fromkeys(left, 1)
        elif not left:
            self.tasks.pop(job.task_id, None)

    def _note_starts(self, worker_id: str, claims: Iterable[tuple[str, int, int]], now_us: int) -> None:
        for job_id, fence, running_us in claims:
            job = self._held(worker_id, job_id, fence)
            if job and running_us >= 0 and job.started_us is None:
                job.started_us = now_us - running_us

    def _may_have_arrived(self, job: Job, now_us: int) -> bool:
        """Whether a claim is old enough for its worker to know of it; a younger one may be on its way."""
        return now_us - (job.claimed_us or 0) > int(self.settings.get("heartbeat_interval_us"))

    # -- workers

    def _settle(self, worker: Worker, now_us: int) -> None:
        """Count the worker's free slots: derived from what it holds, so that no sequence of calls can leak one."""
        takes_jobs = worker.accepting and not worker.stalled and worker.slots > 0
        free = max(0, worker.slots - worker.other - len(worker.claims)) if takes_jobs else 0
        if free != worker.free:
            worker.free, worker.free_since_us = free, now_us

    def _close(self, worker: Worker, now_us: int) -> None:
        worker.accepting = False
        self._settle(worker, now_us)

    def _remove(self, worker: Worker) -> None:
        del self.workers[worker.id]
        self._forget_durations(worker)
        if self.names.get(worker.name) == worker.id:
            del self.names[worker.name]

    def _recover_the_dead(self, types: set[str], now_us: int) -> tuple[int, int]:
        """Put back the jobs of silent workers, adding to *types*. Return how many jobs, and how many workers."""
        silent_since_us = now_us - int(self.settings.get("worker_timeout_us"))
        if self.grace_us is None or self.grace_us > silent_since_us:
            return 0, 0
        recovered = dead = 0
        silent = sorted((each.seen_us, each.id) for each in self.workers.values() if each.seen_us <= silent_since_us)
        types_left = MOST_TYPES
        for _, worker_id in silent[:MOST_MOVES]:
            types_left -= len(self.workers[worker_id].types)
            back, gone = self._recover(self.workers[worker_id], MOST_MOVES - recovered, types, now_us)
            recovered += back
            if not gone:
                return recovered, dead
            dead += 1
            if types_left <= 0:
                break
        return recovered, dead

    def _forget_durations(self, gone: Worker) -> None:
        """Forget how long jobs take of types that went with the last worker of a profile."""
        others = [each for each in self.workers.values() if each is not gone]
        if gone.types in {each.types for each in others}:
            return
        for type_ in gone.types:
            if not sum(each.slots for each in others if type_ in each.types):
                self.durations_us.pop(type_, None)
                self.ahead.pop(type_, None)

    def _recover(self, worker: Worker, most: int, types: set[str], now_us: int) -> tuple[int, bool]:
        """Put back at most so many jobs of a dead worker, adding to *types*; forget it when it holds none any more.

        Return how many jobs came back, and whether the worker is gone.
        """
        self._close(worker, now_us)
        worker.seen_us = GIVEN_UP_US
        claimed = list(worker.claims)
        for job_id in claimed[:most]:
            types |= self._put_back(self.jobs[job_id], now_us, counted=True)
        if len(claimed) > most:
            return most, False
        self._remove(worker)
        return len(claimed), True

    def _tickers(self) -> list[Worker]:
        return sorted(self.workers.values(), key=lambda each: (each.joined_us, each.id))[:TICKERS]

    def _is_ticker(self, worker: Worker, now_us: int) -> bool:
        first = self._tickers()
        return worker in first or now_us - (self.ticked_us or 0) > TICKED_LATELY_US


def _size(message: str | None) -> int:
    return len((message or "").encode())


def _is_dead_letter(job: Job) -> bool:
    return job.state == "dead" and job.is_listed


def _has_expired(job: Job, now_us: int) -> bool:
    return job.expires_us is not None and job.expires_us <= now_us


def _delivery(job: Job) -> Delivery:
    assert job.fence is not None
    return Delivery(job.id, job.fence, job.type, job.deliveries, job.enqueued_us, job.message or "", job.expires_us)


def _take_unread(worker: Worker, job: Job) -> bool:
    """Take a job out of its worker's inbox. Return whether it was there: then nobody has read it."""
    delivery = _delivery(job)
    if delivery not in worker.inbox:
        return False
    worker.inbox.remove(delivery)
    return True
