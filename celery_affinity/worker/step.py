"""The worker's part: a consumer bootstep that joins the fleet, hands jobs to Celery, drains and leaves.

Installed in every worker whose app names this transport, by the signal handler at the end.
"""

import logging
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from celery import bootsteps
from celery.concurrency.solo import TaskPool as SoloPool
from celery.signals import worker_init, worker_process_init
from celery.worker import state

from ..client import options
from ..client.of_app import is_ours, settings_of
from ..client.revokes import Revoked
from ..dispatcher.announcer import Announcer
from ..dispatcher.ingest import Ingest
from ..dispatcher.repeating import Repeating
from ..dispatcher.teller import Teller
from ..errors import AffinityError, TransportError
from ..guard.guard import Kin, orphans_end
from ..membership.claims import ACKED, RETURNED, Held
from ..membership.lookahead import STARTS_WITHIN_S, Ahead
from ..membership.membership import Membership
from ..rules.keys import Keys, decode
from ..rules.settings import Settings
from ..server import instance, received
from ..server.replies import Claim
from ..server.scheduler import Scheduler
from ..transport import urls
from ..transport.channel import AffinityChannel
from ..transport.transport import Transport
from ..versions import versions
from . import end_of_task, introduction, pools, remote_control, runs
from .event_loop import Loop
from .rate_limits import Limits
from .reconnecting import Reconnecting
from .strays import Strays

logger = logging.getLogger(__name__)

#: How long a worker that comes back from a silence has to read which of its tasks have ended, s.
_CATCHES_UP_S = 1.0

#: Digits of a number of jobs in a sign of the server.
_LONGEST_NUMBER = 9


class AffinityStep(bootsteps.StartStopStep):
    """Joins after the last consumer is set up; stops before the first is cancelled."""

    name = "affinity"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        self._consumer = consumer
        self.membership: Membership | None = None
        self._limits: Limits | None = None
        self._channel: AffinityChannel | None = None
        self._following: deque[Claim] = deque()
        self._ahead = Ahead(settings_of(consumer.app).lookahead)
        self._loop: Loop | None = None
        self._watch: Repeating | None = None
        self._is_introduced = False
        self._returned_before: int | None = None
        consumer.affinity = self  # where commands of remote control look for it
        self._connect_as_a_worker(consumer)
        super().__init__(consumer, **kwargs)

    # -- bootstep

    def start(self, consumer: Any) -> None:
        """Join, at the start and again after each reconnect."""
        channel: AffinityChannel = consumer.task_consumer.channel
        scheduler = channel.scheduler_of_its_own()
        if self.membership is None or self._limits is None:
            self.membership = self._enter(scheduler)
            self._limits = self._watch_limits(self.membership)
            self._install_requests()
            self._wake_for_acks()
            self._watch_what_is_ahead()
            pools.spare_what_is_written(consumer.pool)
            pools.keep_what_is_half_read(consumer.pool)
            pools.watch_who_is_ending(consumer.pool)
            pools.let_pauses_yield(consumer.pool)
            runs.report_all_errors(consumer.pool)
            Reconnecting(consumer, ask=self.membership.ask, returns=lambda: self.members.returns)
        consumer.update_strategies()
        self._limits.look()  # what a lost connection made Celery drop from them lends no more
        self._channel = channel
        channel.claims = self.membership.claims
        channel.schedules = self.settings.schedules
        channel.on_consume = self._on_consume
        channel.on_turn = self.membership.turned
        channel.on_sign = self._on_sign
        channel.on_claim = self._on_inbox
        self._ahead.clear()  # what a lost connection made Celery drop, as the rest
        queues = [queue.name for queue in consumer.task_consumer.queues]
        is_new = self.membership.join(scheduler, [queue for queue in queues if channel.schedules(queue)])
        self.membership.renounce(self._still_has)  # what a lost connection made Celery drop
        self._say_that_it_joined(is_new)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Flush at each turn of the loop."""
        in_flight = consumer.task_consumer.channel.in_flight_of_its_own()
        self._loop = Loop(hub, in_flight, on_tick=self._on_tick, on_reply=self._on_reply)
        self.members.loop_runs(True)

    def stop(self, consumer: Any) -> None:
        """Before a reconnect: wait for the next start. At a shutdown: take no new job."""
        self._close_loop()
        self._ahead.clear()
        if self._channel is not None:
            self._channel.on_consume = None  # what is cancelled now is not the worker's wish
        if self.membership is not None and consumer.blueprint.state != bootsteps.RUN:
            semaphore = getattr(consumer.controller, "semaphore", None)
            if semaphore is not None:
                semaphore.clear()  # a request that waits for a pool process is given back, so it must not start
            if self._returned_before is None:
                self._returned_before = self.membership.returned
            unsettled = self.membership.claims.unsettled_count()
            if unsettled and state.should_terminate:  # cold: what still runs is not acked, and goes back as well
                logger.warning("Restoring %d unacknowledged message(s)", unsettled)  # people look for kombu's words
            if self._limits is not None:
                self._limits.close()  # the same of one that waits for a rate limit: timers go on while the pool drains
            self.membership.drain(self._still_has)

    def terminate(self, consumer: Any) -> None:
        """Do at a cold shutdown what is done at a warm one."""
        self.stop(consumer)

    def shutdown(self, consumer: Any) -> None:
        """Leave, after the pool has drained."""
        self._close_loop()
        if self._watch is not None:
            self._watch.stop()
        if self.membership is not None and self.membership.leave():
            logger.info(introduction.of_leaving(self.membership.returned - (self._returned_before or 0)))

    def info(self, consumer: Any) -> dict[str, Any]:
        """Return what `inspect stats` shows, also of a worker that has not joined yet."""
        shown: dict[str, Any] = {
            "app": consumer.app.main or "",
            "guard": consumer.controller.affinity_kin is not None,
            "time": time.time(),
            "versions": versions(),
        }
        if self.membership is not None:
            claims = len(self.membership.claims.numbers())
            shown |= {"worker": self.membership.id, "slots": self.slots(), "claims": claims}
            shown["lent"] = self.membership.lent
        if self._channel is not None:
            shown["namespace"] = self._channel.namespace
        return {"affinity": shown}

    # -- remote control

    @property
    def members(self) -> Membership:
        assert self.membership is not None, "started"
        return self.membership

    @property
    def settings(self) -> Settings:
        return settings_of(self._consumer.app)

    def slots(self) -> int:
        """Return how many jobs the pool runs at once. With --autoscale it grows only if there is more to do."""
        controller = self._consumer.controller
        scaled: Any = getattr(controller, "autoscaler", None) or controller
        return int(getattr(scaled, "max_concurrency", None) or pools.size(self._consumer.pool))

    def drain(self) -> tuple[int, int]:
        """Take no new job until `Membership.resume`. Return how many were given back, and how many go on."""
        assert self._limits is not None, "started"
        self._limits.close()
        self._ahead.clear()
        given_up = self.members.pause(self._still_has)
        for held in given_up:
            if held.request is not None:
                state.task_ready(held.request)
        self._limits.look()
        return len(given_up), self.members.claims.unfinished()

    # -- its pieces

    def _connect_as_a_worker(self, consumer: Any) -> None:
        """Tell the transports of its connections, that of remote control with green pools too, whose they are."""
        connection_for_read = consumer.connection_for_read

        def connecting(*args: Any, **kwargs: Any) -> Any:
            connection = connection_for_read(*args, **kwargs)
            connection.transport.on_revoked = self._on_revoked
            return connection

        consumer.connection_for_read = connecting

    def _on_revoked(self, revoked: Revoked) -> None:
        if self.membership is not None:
            self.membership.revoke(revoked)

    def _install_requests(self) -> None:
        """Have the requests of all tasks tell their end, of those too that a reload of modules brings."""
        update_strategies = self._consumer.update_strategies

        def update() -> None:
            for task in self._consumer.app.tasks.values():
                end_of_task.install(task)
            update_strategies()

        self._consumer.update_strategies = update

    def _wake_for_acks(self) -> None:
        """Have the loop turn for an ack of stock Celery's own: kombu before 5.7 lets one of another thread wait.

        What else is to be called in the loop does not end it: a command of remote control may ask for what cannot be.
        """
        call_soon = self._consumer.call_soon

        def calling(callback: Any, *args: Any, **kwargs: Any) -> Any:
            promise = call_soon(_surviving(callback), *args, **kwargs)
            self._wake_loop()
            return promise

        self._consumer.call_soon = calling

    def _watch_what_is_ahead(self) -> None:
        """Give it back if a task of the solo pool takes long: the loop, which would be asked for it, runs the task."""
        if isinstance(self._consumer.pool, SoloPool) and not self._ahead.is_off:
            self._watch = Repeating("affinity-ahead", self._look_at_what_is_ahead, STARTS_WITHIN_S / 2)
            self._watch.start()

    def _look_at_what_is_ahead(self) -> None:
        if self._ahead or self.members.claims.is_telling:  # a reply that nobody reads brings more
            self.members.look_at_the_loop(STARTS_WITHIN_S)

    def _say_that_it_joined(self, is_new: bool) -> None:
        members = self.members
        if self._is_introduced:
            again = introduction.of_joining_again(anew=is_new, unfinished=members.claims.unfinished())
            logger.info(again)
            return
        self._is_introduced = True
        line = introduction.of_joining(
            types=members.types,
            slots=self.slots(),
            guard=members.guard_pid,
            timeout_s=members.timeout_s,
            namespace=self._its_channel.namespace,
            prefix=self._its_channel.global_keyprefix,
            server=instance.product(members.scheduler.client),
            uri=self._consumer.connection.as_uri(),
        )
        logger.info(line)

    def _enter(self, scheduler: Scheduler) -> Membership:
        membership = Membership(
            self._consumer.hostname,
            self._consumer.app.main or "",
            self.settings,
            scheduler,
            slots=self.slots,
            other=end_of_task.unclaimed_count,
            wake_loop=self._wake_loop,
            on_claims=self._on_claims,
            on_void=self._on_void,
            announcer=Announcer(Teller(self._consumer.app, self._consumer.hostname, self._eventer)),
            ingest=Ingest(self._consumer.app),
            kin=self._consumer.controller.affinity_kin,
            forks=pools.forks(self._consumer.pool),
        )
        if isinstance(self._consumer.pool, SoloPool):
            membership.claims.on_accepted = self._ack_before_it_starts
        strays = Strays(self._consumer, membership.claims, self._ahead)
        membership.on_beat = lambda loop_turns: strays.look(loop_turns=loop_turns)
        membership.claims.on_ended = self._on_ended
        membership.claims.on_length = self._ahead.note_length
        return membership

    def _eventer(self) -> Any:
        return getattr(self._consumer, "event_dispatcher", None)

    def _watch_limits(self, membership: Membership) -> Limits:
        return Limits(
            self._consumer,
            waits=membership.lend,
            room=self._room,
            find=membership.claims.find,
            give_back=membership.give_back,
        )

    def _still_has(self, celery_request: object) -> bool:
        return pools.still_has(self._consumer.pool, celery_request)

    def _on_tick(self) -> None:
        """Say what ended since the last turn, and start the jobs that follow."""
        membership = self.members
        membership.turned()
        membership.notice_slots()
        self._hold_what_follows()
        self._tell_what_ended()
        if self._start_what_follows() and not pools.writes_at_once(self._consumer.pool):
            self._wake_loop()

    def _ack_before_it_starts(self) -> None:
        self.members.ack_now(None if self._loop is None else self._loop.in_flight)

    def _on_ended(self) -> None:
        """Tell it at once, where the loop notices it itself: the server works while the loop goes on with its turn."""
        if self._loop is not None and self._loop.is_here:
            self._tell_what_ended()

    def _tell_what_ended(self) -> None:
        if self._loop is None or not self.members.has_news or state.should_terminate:
            return  # what a cold shutdown ends is counted first, and told then (`stop`)
        if not self._ahead.ends_can_wait(self._consumer.hub.call_later):
            self.members.send(self._loop.in_flight, self._most_ahead)
            self._loop.watch()

    def _on_reply(self) -> None:
        """Start the jobs that follow what ended, and tell first what ended meanwhile."""
        self._following.extend(self.members.receive(self._most_ahead))
        self._hold_what_follows()
        self._tell_what_ended()
        self._start_what_follows()

    @property
    def _most_ahead(self) -> int:
        return 0 if self._ahead.is_off else self._ahead.most(self.slots())

    def _hold_what_follows(self) -> None:
        """Hold the jobs that arrived, all of them, before the first starts, where some are ahead."""
        while self._following and not self._ahead.is_off:
            self._hold(self._following.popleft())

    def _hold(self, claim: Claim) -> None:
        claims = self.members.claims
        tag = claims.take(claim)
        if tag is None:
            return
        if claims.drained:  # it was on its way: a long task may be before it, and here it would never start
            claims.settle(tag, RETURNED)
        else:
            self._ahead.add(claim, tag)

    def _start_what_follows(self) -> int:
        """Start the jobs that arrived, as far as there are slots. Return how many."""
        arrived = len(self._following)
        for _ in range(arrived):
            self._its_channel.deliver(self._following.popleft())
        return arrived + self._start_what_is_ahead()

    def _start_what_is_ahead(self) -> int:
        """Start as many jobs that were taken ahead as slots are free. Return how many."""
        if not self._ahead:
            return 0
        self._give_back_ahead(self.members.unwanted)
        started = max(0, min(len(self._ahead), self._free_slots()))
        for _ in range(started):
            self._its_channel.consume(*self._ahead.next())
        if started and self._ahead and self._free_slots() > 0:
            self._wake_loop()  # one that has to wait for a rate limit, say, has left its slot to the next
        return started

    def _give_back_ahead(self, types: Collection[str]) -> None:
        """Let others have what is ahead of *types*, of which no more is wanted here."""
        tags = self._ahead.give_back(types, len(self._ahead)) if types else []
        if tags:
            self.members.give_back(tags)

    @property
    def _its_channel(self) -> AffinityChannel:
        assert self._channel is not None, "the loop runs"
        return self._channel

    def _free_slots(self) -> int:
        """Return how many jobs may start: what waits for a rate limit lends as many slots as the server knows of."""
        return self._room() + self.members.lent

    def _room(self) -> int:
        """Return how many jobs the pool could start beside those that have a slot or wait for a rate limit."""
        return self.members.room() + len(self._ahead)

    def _on_consume(self, type_: str, serves: bool) -> None:
        self.members.serve(type_, serves)
        if not serves:
            self._give_back_ahead({type_})

    def _on_inbox(self, claim: Claim) -> None:
        """Start a job that the server sent for a free slot, unless one that was ahead has that slot by now."""
        if self._loop is None or self._ahead.is_off:
            self._its_channel.deliver(claim)
        else:
            self._hold(claim)
            self._start_what_is_ahead()

    def _on_sign(self, words: list[str]) -> None:
        """Do what the server asks for instead of giving a job."""
        match words:
            case ["tick"]:
                self.members.tick()
            case ["back", at_most, *types] if at_most.isdecimal() and len(at_most) <= _LONGEST_NUMBER:
                for tag in self._ahead.give_back(set(map(decode, types)), int(at_most)):
                    self.members.claims.settle(tag, RETURNED)
            case _:
                received.drop("the inbox", words, "it is neither a job nor a sign of the server")

    def _on_claims(self, claims: list[Claim]) -> None:
        """Jobs that came in another thread's reply: the loop starts them, if it turns (`_look_at_what_is_ahead`)."""
        if self._ahead.is_off:
            self._following.extend(claims)
        else:
            for claim in claims:
                self._hold(claim)
        self._wake_loop()

    def _on_void(self, claims: list[Held]) -> None:
        """Stop the tasks that others run by now, but not those that Celery promised to run once at most: they are not.

        A pool process may have ended its task long ago, and get the next one when that is noticed.
        """
        for held in claims:
            if held.request is not None and held.outcome != ACKED:
                self._consumer.timer.call_after(_CATCHES_UP_S, held.request.fence)
        self._wake_loop()

    def _wake_loop(self) -> None:
        loop = self._loop
        if loop is not None:
            loop.wake()

    def _close_loop(self) -> None:
        if self.membership is not None:
            self.membership.loop_runs(False)
            self.membership.claims.abandon()
        if self._loop is not None:
            self._loop.close()
            self._loop = None


def _surviving(callback: Any) -> Any:
    """Return what calls *callback* and logs what it raises, but for the loss of a connection."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return callback(*args, **kwargs)
        except received.LOST:
            raise
        except Exception:
            logger.exception("What was to be done in the event loop failed: %r", callback)
            return None

    return call


def install(worker: Any) -> None:
    """Add the step to *worker*, a ``celery.worker.WorkController`` whose app names this transport.

    Raises TransportError if its connections would use another one, SettingError for a bad setting, OptionError for a
    bad option of a task, a route or an annotation.
    """
    app = worker.app
    if not is_ours(app.conf.broker_transport):
        return
    transport_cls = app.connection_for_read().get_transport_cls()
    if not issubclass(transport_cls, Transport):
        url = urls.masked(str(app.conf.broker_read_url))
        raise TransportError(
            f"broker_transport is {app.conf.broker_transport!r}, but the URL {url!r} selects {transport_cls.__name__} "
            f"of {transport_cls.__module__}: write redis://, rediss://, sentinel://, or socket:///path/to/redis.sock "
            "(not redis+socket://)"
        )
    Keys.of_options(app.conf.broker_transport_options or {})
    options.check_app(app)
    worker_process_init.connect(orphans_end(), weak=False)
    worker.affinity_kin = Kin() if settings_of(app).guard else None  # now, before the pool's processes are forked
    app.steps["consumer"].add(AffinityStep)
    remote_control.replace()


@worker_init.connect
def _on_worker_init(sender: Any = None, **_: Any) -> None:
    try:
        install(sender)
    except AffinityError as exc:
        # Celery swallows ordinary errors of a signal handler, and would start a worker that serves nobody.
        raise SystemExit(f"celery_affinity: {exc}") from exc
