"""A worker's membership in the fleet: it joins, beats, says what it holds, drains and leaves.

It lasts from the first join to the end of the process, across reconnects of the broker. Nothing here knows of Celery.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as ReplyTimeoutError

from ..client import revokes
from ..clock import now_s
from ..dispatcher.announcer import Announcer
from ..dispatcher.dispatcher import Dispatcher
from ..dispatcher.ingest import Ingest
from ..dispatcher.repeating import Repeating
from ..errors import SettingError
from ..guard.guard import Guard, Kin
from ..guard.pulse import Pulse
from ..rules.lending import NOTHING_LENT, Lending, lending
from ..rules.protocol import MOST_TYPES, REVOKED_KEPT_S
from ..rules.settings import PREFIX, Settings
from ..server import instance
from ..server.connections.in_flight import InFlight
from ..server.replies import Claim, Joining, Running
from ..server.runtime_settings import SettingsLog
from ..server.scheduler import Scheduler
from .claims import Claims, Held
from .lease import Lease

logger = logging.getLogger(__name__)

#: Pause before what the server did not answer is said again, s.
_RETRY_S = 0.2

#: Time between two looks whether slots were taken or freed without a claim, s.
_OTHER_INTERVAL_S = 0.5


class Membership:
    """One live worker. *slots* and *other* are asked at each beat (see `Joining`); *on_claims* gets jobs that follow,
    *on_void* the claims that are the worker's no more. *announcer* and *ingest*: see `Dispatcher`.

    *wake_loop* has the event loop flush soon; while there is no loop, the beats' thread does it. *kin* marks what this
    process forks, None for no guard; *forks*: whether these are the pool's processes.
    """

    def __init__(
        self,
        name: str,
        app: str,
        settings: Settings,
        scheduler: Scheduler,
        *,
        slots: Callable[[], int],
        other: Callable[[], int],
        wake_loop: Callable[[], None],
        on_claims: Callable[[list[Claim]], None],
        on_void: Callable[[list[Held]], None],
        announcer: Announcer,
        ingest: Ingest,
        kin: Kin | None = None,
        forks: bool = False,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.name = name
        self._app = app
        lease = Lease(settings.worker_timeout)
        self.claims = Claims(self.id, scheduler.keys.key("inbox", self.id), lease, self._on_news)
        self.claims.on_refused = self._on_refused
        self._settings = settings
        self._settings_log = SettingsLog(settings)
        self._scheduler = scheduler
        self._slots, self._other = slots, other
        self._wake_loop, self._on_claims, self._on_void = wake_loop, on_claims, on_void
        self._types: tuple[str, ...] = ()
        self._waiting: Counter[str] = Counter()
        self._withdrawn: frozenset[str] = frozenset()
        self._rejoin = False
        self._started = False
        self._loop_runs = False
        self._draining = False
        self._in_trouble = False
        #: How often the server was found to answer again.
        self.returns = 0
        #: Called at each beat with whether the event loop turns. Returns the seconds until the next, None for any.
        self.on_beat: Callable[[bool], float | None] = lambda _: None
        self._slots_told = self._other_told = 0
        self._returned = 0
        self._looked_at_s = 0.0
        self._resumed = False
        self._pulse = Pulse()
        self._guard: Guard | None = None
        if kin is not None:
            interval_s = settings.heartbeat_interval
            self._guard = Guard(self.id, name, interval_s, pulse=self._pulse, kin=kin, ends_children=forks)
        self._beats = Repeating("affinity-beats", self._beat, settings.heartbeat_interval)
        self._dispatcher = Dispatcher(scheduler, announcer, ingest)

    # -- what it is

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def types(self) -> tuple[str, ...]:
        return self._types

    @property
    def withdrawn(self) -> frozenset[str]:
        """Types of which it takes no job for a moment."""
        return self._withdrawn

    @property
    def unwanted(self) -> frozenset[str]:
        """Types from which it is to withdraw, told or not."""
        return self._lending().withdrawn

    @property
    def lent(self) -> int:
        return self._lending().lent

    @property
    def drained(self) -> bool:
        """Whether it takes no job until it is told to."""
        return self.claims.drained

    # -- the worker's side

    @property
    def guard_pid(self) -> int | None:
        """The process id of its guard; None: it has none."""
        return None if self._guard is None else self._guard.pid

    @property
    def timeout_s(self) -> float:
        """The silence after which it is taken for dead."""
        return self._settings_log.worker_timeout_s

    @property
    def returned(self) -> int:
        """How many jobs it has given back so far."""
        return self._returned + self.claims.returned

    def join(self, scheduler: Scheduler, types: Sequence[str]) -> bool:
        """Enter the fleet, or come back to it, with *types*. Return whether the server did not know it, or no more.

        Raises SettingError if these are too many, a redis error if the server does not answer.
        """
        if len(types) > MOST_TYPES and not self._started:
            raise SettingError(
                f"a worker must consume at most {MOST_TYPES:,} scheduled queues, got: {len(types):,}; "
                f"{PREFIX}queues leaves queues to kombu"
            )
        self._types = tuple(types[:MOST_TYPES])
        self._use(scheduler)
        self._pulse.turn()
        self._tend_guard()
        try:
            is_new = self._join()
        except BaseException:
            self._rejoin = True
            raise
        self._dispatcher.use(scheduler, quiet=False)
        if not self._started:
            self._started = True
            self._warn_of_eviction()
            self._beats.start()
            self._dispatcher.start()
        self._beats.wake()
        return is_new

    def _warn_of_eviction(self) -> None:
        policy = instance.may_evict(self._scheduler.client)
        if policy:
            logger.warning(
                "The broker's maxmemory-policy is %s: when its memory is full it drops jobs. Set it to noeviction: "
                "publishing then fails with a clear error, and all that is running goes on",
                policy,
            )

    def serve(self, type_: str, serves: bool) -> None:
        """Serve *type_* from now on, or no more: a consumer was added or cancelled."""
        if serves and len(self._types) >= MOST_TYPES:
            logger.error("Queue %r is not served: a worker consumes at most %d scheduled queues", type_, MOST_TYPES)
            return
        if serves != (type_ in self._types) and not self._draining:
            self._types = (*self._types, type_) if serves else tuple(each for each in self._types if each != type_)
            self._rejoin = True
            self._beats.wake()

    def loop_runs(self, runs: bool) -> None:
        """Say whether the event loop turns, so that it can flush."""
        self._loop_runs = runs

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell, and a server that answers, and nothing on its way there."""
        return self.claims.has_news and not self._in_trouble and not self.claims.is_telling

    def turned(self) -> None:
        """Note a turn of the event loop."""
        if self._pulse.turn():
            self._resumed = True
            self._beats.wake()
        if self.claims.is_late:
            self.claims.abandon()
            self._trouble(ReplyTimeoutError("no reply to what was sent"))

    def send(self, in_flight: InFlight, most_ahead: int) -> None:
        """Say what ended, from the event loop, and leave the reply for `receive`.

        *most_ahead*: how many jobs may follow beyond the worker's slots.
        """
        try:
            self.claims.send(self._scheduler, in_flight, most_ahead=most_ahead)
        except (RedisError, OSError) as exc:
            self._trouble(exc)

    def receive(self, most_ahead: int, *, waits: bool = False) -> list[Claim]:
        """Return the jobs that follow what was sent; none if the server does not answer, or, unless it *waits*, yet."""
        try:
            return self.claims.receive(self._scheduler, most_ahead=most_ahead, waits=waits)
        except (RedisError, OSError) as exc:
            self._trouble(exc)
            return []

    def flush(self) -> list[Claim]:
        """Say what ended, from the event loop, and wait for the reply. Return what `receive` does."""
        if self._in_trouble:
            return []
        try:
            return self.claims.flush(self._scheduler, inline=not self._draining) or []
        except (RedisError, OSError) as exc:
            self._trouble(exc)
            return []

    def ack_now(self, in_flight: InFlight | None) -> None:
        """Say that a task is acked that blocks the loop as soon as it starts.

        What was sent arrives, even if this process is killed now, so nobody waits for the reply. Unless the server may
        take the worker for dead soon, or did so: that is asked after the sending, since the worker may have been
        suspended before it. An ack that is refused in time keeps the task from its start.
        """
        following = self.receive(most_ahead=0, waits=True) if self.claims.is_telling else []
        is_sent = in_flight is not None and self._sends_acks(in_flight)
        if not (is_sent and self.claims.lease.is_fresh):
            self.claims.repeat_acks()
            following += self.flush()  # another thread may be about to say it: that is waited for as well
        if following:
            self._on_claims(following)

    def _sends_acks(self, in_flight: InFlight) -> bool:
        if self._in_trouble or not self.claims.has_acks:
            return False
        try:
            return self.claims.send_acks(self._scheduler, in_flight)
        except (RedisError, OSError):
            return False  # another connection may do

    def notice_slots(self) -> None:
        """Tell the server at once when the pool has grown or shrunk, and soon what else takes slots, or no more."""
        if self._slots() != self._slots_told:
            self._slots_told = self._slots()
            self._beats.wake()
        elif now_s() - self._looked_at_s > _OTHER_INTERVAL_S:
            self._looked_at_s = now_s()
            if self._other_in_all() != self._other_told:
                self._beats.wake()

    def lend(self, waiting: Counter[str]) -> None:
        """Lend the slots of claims that wait for a rate limit: *waiting* says how many do, by type."""
        if waiting != self._waiting:
            self._waiting = waiting
            self._beats.wake()

    def ask(self) -> None:
        """Have the beats' thread look whether the server answers."""
        self._beats.wake()

    def tick(self) -> None:
        """Tick now: a job is due sooner than the last tick could know."""
        self._dispatcher.wake()

    def revoke(self, revoked: revokes.Revoked) -> None:
        """End the jobs that wait of what a broadcast revokes, if this worker ticks for the fleet."""
        if not self._dispatcher.is_quiet:
            try:
                self._scheduler.revoke(*revoked, keep_s=REVOKED_KEPT_S)
            except (RedisError, OSError) as exc:
                self._trouble(exc)  # Celery remembers it in each worker, which refuses the task when it comes

    def room(self) -> int:
        """Return how many more jobs the pool could start if each claim that has not ended needed a slot."""
        return self._slots() - self._other() - self.claims.unfinished()

    def give_back(self, tags: Sequence[str]) -> None:
        """Give back claims that will not start here."""
        self.claims.give_up(tags)
        self._beats.wake()

    def pause(self, keeps: Callable[[object], bool]) -> list[Held]:
        """Take no new job until `resume`, and give back what has not started. Return that."""
        self._rejoin = True  # before anything is given back: it would come again
        given_up = self.claims.drain(keeps)
        self._beats.wake()
        return given_up

    def resume(self) -> None:
        """Take jobs again."""
        self.claims.drained = False
        self._rejoin = True
        self._beats.wake()

    def look_at_the_loop(self, patience_s: float) -> None:
        """Give back what has not started, from another thread, if the event loop has not turned for *patience_s*."""
        if self._pulse.age_s > patience_s and self._does_without_the_loop():
            self._beats.wake()

    def renounce(self, keeps: Callable[[object], bool]) -> None:
        """Give back the claims that the worker dropped (see `Claims.renounce`), their age intact."""
        numbers = self.claims.renounce(keeps)
        if numbers:
            logger.info("Giving back %d job(s) that a reconnect dropped", len(numbers))
        self._requeue(numbers)

    def drain(self, keeps: Callable[[object], bool]) -> None:
        """Take no new job, and give back what has not started."""
        self.claims.close()
        self._draining = True
        self._loop_runs = False
        try:
            self.renounce(keeps)
        except (RedisError, OSError) as exc:
            self._trouble(exc)  # what is not named in the next sync of a draining worker goes back as well
        self._beats.wake()

    def leave(self) -> bool:
        """Go: say what ended, and give back the rest. Return whether the server knows."""
        has_left = False
        self._dispatcher.stop()
        self._beats.stop()
        try:
            self._flush_all()
            self._returned += self._scheduler.leave(self.id)
        except (RedisError, OSError) as exc:
            logger.warning("The broker does not answer: it will notice by silence that this worker left: %s", exc)
        else:
            has_left = True
        if self._guard is not None:
            self._guard.dismiss()
        return has_left

    # -- the beats' thread

    def _beat(self) -> float | None:
        self._tend_guard()
        again_s = self.on_beat(not self._pulse.stands_still)
        try:
            self._flush_all()
            if self._rejoin or (self._lending().withdrawn != self._withdrawn and not self._draining):
                self._join()
            self._say_whether_the_loop_turns()
            self._sync()
            self._requeue(self.claims.let_go())  # after the sync: until then the server may hold their slots for free
        except (RedisError, OSError) as exc:
            self._trouble(exc)
            return _RETRY_S
        if self._in_trouble:
            self._in_trouble = False
            self.returns += 1
            logger.info("The broker answers again")
        return None if again_s is None else min(again_s, self._settings.heartbeat_interval)

    def _flush_all(self) -> None:
        while self.claims.has_news:
            following = self.claims.flush(self._scheduler, inline=False)
            if following is None:
                return  # the event loop tells
            if following:
                self._on_claims(following)

    def _tend_guard(self) -> None:
        if self._guard is not None:
            self._guard.tend(self._scheduler)

    def _say_whether_the_loop_turns(self) -> None:
        """Do here what the guard does as well, and sooner: it may not be there."""
        if self._pulse.stands_still:
            self._scheduler.beat(self.id, turns=False)
            if self._does_without_the_loop():
                self._flush_all()
        elif self._resumed:
            self._resumed = False  # first: it may stand still again meanwhile
            try:
                self._scheduler.beat(self.id, turns=True)
            except BaseException:
                self._resumed = True
                raise

    def _does_without_the_loop(self) -> bool:
        """Give back what waits for the event loop. Return whether there is something to tell that it does not."""
        gives_back = self.claims.give_back_unstarted()
        takes_over = self.claims.take_over()
        return gives_back or takes_over

    def _sync(self) -> None:
        asked_at_s = self._looked_at_s = now_s()
        slots = self._slots_told = self._slots()
        other = self._other_told = self._other_in_all()
        running = self.claims.running()
        synced = self._scheduler.sync(self.id, running, slots=slots, other=other, draining=self._draining)
        self.claims.clock.set(synced.now_us)
        self._returned += synced.returned
        if not synced.known:
            self._void(self.claims.void(self.claims.numbers()))
            if not self._draining:
                logger.warning("The broker had taken this worker for dead: it joins again")
                self._join()
            return
        self._dispatcher.use(self._scheduler, quiet=not synced.ticker)
        self._settings_log.look(self._scheduler, synced.revision)
        self._void(self.claims.void(_voided(running, synced.void)))
        self._renew_lease(asked_at_s)
        given_back = self.claims.refuse(synced.asked)
        if given_back:
            logger.info("Giving back %d job(s) that never arrived", len(given_back))
            self._beats.wake()  # one sync asks about some of them
        self._requeue(given_back)

    def _requeue(self, numbers: list[tuple[str, str]]) -> None:
        if numbers:
            self._scheduler.requeue(self.id, numbers, counted=False)
            self._returned += len(numbers)

    def _renew_lease(self, asked_at_s: float) -> None:
        self.claims.lease.renew(asked_at_s=asked_at_s, timeout_s=self._settings_log.worker_timeout_s)

    def _on_refused(self, claims: list[Held]) -> None:
        _say_they_are_void(claims)
        self._beats.wake()  # a sync tells what else is void

    def _void(self, claims: list[Held]) -> None:
        _say_they_are_void(claims)
        known = self._scheduler.known([held.job_id for held in claims]) if claims else set()
        # What the server has forgotten altogether nobody else will run.
        self._on_void([held for held in claims if held.job_id in known])

    def _join(self) -> bool:
        """Join. Return whether the server did not know the worker, or no more."""
        asked_at_s = self._looked_at_s = now_s()
        slots = self._slots_told = self._slots()
        other = self._other_told = self._other_in_all()
        self._rejoin = False
        self._withdrawn = withdrawn = self._lending().withdrawn
        types = [type_ for type_ in self._types if type_ not in withdrawn]
        if self.drained:
            types, withdrawn = [], frozenset()
        joining = Joining(self.id, self.name, types, slots, other, self._app, sorted(withdrawn))
        joined = self._scheduler.join(joining, self._settings.shared())
        self.claims.clock.set(joined.now_us)
        self._void(self.claims.void_up_to(joined.void_up_to))
        self._renew_lease(asked_at_s)
        for name in joined.replaced:
            logger.warning(
                "%s is another in our app.conf than it was so far: ours counts for all workers from now on. "
                "Another app, or another version of this one, that is still running has the old value",
                PREFIX + name.removesuffix("_us"),
            )
        if joined.namesake:
            logger.warning(
                "Another worker with node name %r is alive, or died a moment ago: give each its own -n", self.name
            )
        return joined.void_up_to > 0

    def _use(self, scheduler: Scheduler) -> None:
        if scheduler is not self._scheduler:
            self._scheduler.close()
        self._scheduler = scheduler

    def _other_in_all(self) -> int:
        return self._other() + self.claims.void_count() - self._lending().lent

    def _lending(self) -> Lending:
        return lending(self._waiting, self._types, self._slots()) if self._waiting else NOTHING_LENT

    def _on_news(self) -> None:
        if self._loop_runs and not self._in_trouble:
            self._wake_loop()
        else:
            self._beats.wake()

    def _trouble(self, exc: BaseException) -> None:
        if not self._in_trouble:
            logger.warning("The broker does not answer; what ended meanwhile is told when it does: %s", exc)
            self._in_trouble = True
            self._beats.wake()


def _say_they_are_void(claims: list[Held]) -> None:
    for held in claims:
        logger.warning("Job %s is no longer this worker's: what it still does for it counts for nothing", held.job_id)


def _voided(named: Sequence[Running], job_ids: Collection[str]) -> list[tuple[str, str]]:
    """Return which of the claims that a sync *named* are void, by the *job_ids* of the reply.

    A job may have come back to the worker meanwhile, with another number: that claim was not named. If both were, the
    next sync tells which it is.
    """
    times = Counter(each.job_id for each in named)
    return [(each.job_id, each.fence) for each in named if each.job_id in job_ids and times[each.job_id] == 1]
