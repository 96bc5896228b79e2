"""Feed claimed jobs to Celery's consumer: from the inbox and from replies, until they start.

Without look-ahead, a job has its slot when it arrives and starts immediately. With look-ahead, all arrived jobs are
prefetched before the first of them starts. Each starts when a slot is free, in the order of the fencing tokens.
"""

import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from celery.worker import state
from celery.worker.request import Request
from redis.exceptions import RedisError, ResponseError

from ..background import PeriodicThread
from ..leases.claims import ClaimTable
from ..leases.held_claim import RETURNED
from ..leases.member import Member
from ..leases.outbox import EndReporter
from ..leases.prefetch import STARTS_WITHIN_S
from ..log_limit import limited_logger
from ..publishing.app_config import settings_of
from ..publishing.option_sources import mode_of
from ..scheduler.messages import MAX_FENCE_LENGTH, Claim
from ..scheduler.scheduler import Scheduler
from ..schema import constants, values
from ..schema.values import decode_part
from ..transport.channel import AffinityChannel
from ..transport.inbox import end_wait, read_item
from . import pool
from .event_loop import CeleryWorkerLoop
from .pool import PoolSlots
from .preemption import Preemption

if TYPE_CHECKING:
    from .consumer import AffinityConsumer


class PrebuiltRequests:
    """Celery's requests of prefetched jobs, by delivery tag, built while other tasks run. Event loop's thread only.

    Building a request (decoding the message, running the task's strategy) takes longer than a free pool process should
    wait. So requests are prebuilt for at most as many prefetched jobs as the pool has slots. A job with a prebuilt
    request waits like the others: its claim has no request until the job starts, and the job can still be returned.
    """

    def __init__(self, consumer: "AffinityConsumer", claims: ClaimTable) -> None:
        self._consumer, self._claims = consumer, claims
        self._requests: dict[str, Request] = {}
        self._tag_being_built: str | None = None
        consumer.affinity_made_ahead.append(self)

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, tag: str) -> bool:
        return tag in self._requests

    def make(self, tag: str, consume: Callable[[], None]) -> bool:
        """Keep the request that *consume* creates for the claim of *tag*.

        Return False if there is none: the message may have been refused, or the task may have expired or be revoked.
        """
        self._tag_being_built = tag
        try:
            consume()
        finally:
            self._tag_being_built = None
        return tag in self._requests

    def start(self, tag: str) -> None:
        """Start the task of *tag*, which has a prebuilt request and now has a slot."""
        request = self._requests.pop(tag)
        self._claims.bind(tag, request)
        properties = request.request_dict["properties"]
        self._claims.count_wait(tag, on_demand=bool(mode_of(properties)), priority=properties.get("priority"))
        bucket = self._consumer.task_buckets.get(request.name)  # not of the time when the request was built
        if bucket:
            self._consumer._limit_task(request, bucket, 1)
        else:
            self._consumer.on_task_request(request)

    def drop(self, tags: Collection[str]) -> None:
        """Drop the requests of *tags*, whose jobs start on other workers."""
        for tag in tags:
            request = self._requests.pop(tag, None)
            if request is not None:
                state.task_ready(request)

    def clear(self) -> None:
        """Drop all requests."""
        self.drop(tuple(self._requests))

    def keeps(self, request: Request) -> bool:
        """Keep *request* and return True if it is being prebuilt."""
        tag = self._tag_being_built
        if tag is None or getattr(request, "_tag", None) != tag:
            return False
        self._claims.bind(tag, None)
        self._requests[tag] = request
        return True


#: Maximum number of digits in a number of a control message.
_MAX_DIGITS = 9
#: Seconds for which a pool that blocks the event loop starts jobs before the loop must iterate.
_MAX_BLOCKING_S = 0.002


class JobFeed:
    """Starts the jobs claimed by *member* in *consumer*. Claims arrive in the inbox (`Inbox`) and in replies.

    All methods except `receive_elsewhere` run in the event loop's thread.
    """

    def __init__(self, consumer: "AffinityConsumer", member: Member, host: CeleryWorkerLoop, slots: PoolSlots) -> None:
        self.member, self.host = member, host
        self.reporter = member.reporter
        self.schedules = settings_of(consumer.app).schedules
        self._consumer = consumer
        self._slots = slots
        self._lookahead = member.lookahead
        self._prebuilt = PrebuiltRequests(consumer, member.claims)
        self._preemption = Preemption(consumer, member, slots)
        self._arrived: deque[Claim] = deque()
        self._channel: AffinityChannel | None = None
        self._follows_consumers = False
        self._watch: PeriodicThread | None = None
        self._next_check_s = 0.0

    def begin(self, channel: AffinityChannel) -> None:
        """Start jobs with the consumers of *channel*, at the start and after each reconnect."""
        self._channel = channel
        self._follows_consumers = True
        self.drop()  # Celery dropped these jobs too when the connection was lost
        self._preemption.begin()

    def pause(self) -> None:
        """Start nothing until `begin`. Celery cancels consumers while paused, but their types stay served."""
        self.drop()
        self._follows_consumers = False

    def drop(self) -> None:
        """Start none of the prefetched jobs. The caller returns them."""
        self._lookahead.clear()
        self._prebuilt.clear()

    def watch_the_loop(self) -> None:
        """Return the prefetched jobs if a task blocks the event loop, which then cannot receive a request to do so."""
        if not self._lookahead.is_off:
            self._watch = PeriodicThread("affinity-lookahead", self._return_if_loop_blocked, STARTS_WITHIN_S / 2)
            self._watch.start()

    def _return_if_loop_blocked(self) -> None:
        if self._lookahead or self.reporter.outbox.is_telling:  # a reply that nothing reads contains further jobs
            self.member.look_at_the_loop(STARTS_WITHIN_S)

    def stop(self) -> None:
        """Stop watching the event loop."""
        if self._watch is not None:
            self._watch.stop()
        self._preemption.stop()

    @property
    def worker(self) -> str:
        return self.member.id

    @property
    def key(self) -> str:
        return self.reporter.claims.inbox

    @property
    def drained(self) -> bool:
        return self.reporter.claims.drained

    def reporting_of(self, tag: str) -> EndReporter:
        return self.reporter

    def serve(self, queue: str, serves: bool) -> None:
        if self._follows_consumers:
            self.member.serve(queue, serves)
            if not serves:
                self._give_back({queue})

    def loop_ran(self) -> None:
        self.member.loop_ran()

    def receive(self, claim: Claim) -> None:
        """Start a job that the server sent for a free slot, unless a prefetched job already has the slot."""
        if self.host.loop is None or self._lookahead.is_off:
            self._start(claim)
        else:
            self._prefetch(claim)
            self._start_ready_jobs()

    def obey(self, control_words: list[str]) -> None:
        match control_words:
            case [constants.TICK_SIGN]:
                self.member.tick()
            case [constants.BACK_SIGN, limit, *types] if limit.isdecimal() and len(limit) <= _MAX_DIGITS:
                self._return(self._lookahead.give_back(set(map(decode_part, types)), int(limit)))
            case [constants.PAUSED_SIGN, target, fence] if fence.isdecimal() and len(fence) <= MAX_FENCE_LENGTH:
                self._recall(target, int(fence))
            case [constants.PREEMPT_SIGN, job_id, fence, grace_ms] if (
                fence.isdecimal() and len(fence) <= MAX_FENCE_LENGTH
            ) and (grace_ms.isdecimal() and len(grace_ms) <= _MAX_DIGITS):
                self._return(self._preemption.order(job_id, fence, int(grace_ms) / 1000))
            case _:
                values.log_and_drop_untrusted(
                    "the inbox", control_words, "it is neither a job nor a sign of the server"
                )

    def _recall(self, target: str, fence: int) -> None:
        """Return claims up to *fence* that the pause of *target* affects: prefetched ones now, others on arrival."""
        self.reporter.claims.withdrawn_types.add(target, fence)
        kind, _, name = target.partition(":")
        types = self.member.capacity.types if kind == "*" else (decode_part(name),) if kind == "type" else ()
        self._return(self._lookahead.give_back(types, len(self._lookahead)))

    def iterate(self) -> None:
        """Start jobs, report the ends since the loop's last iteration, and prebuild requests."""
        self.member.loop_ran()
        self.member.notice_slots()
        self._prefetch_arrived()
        if self._lookahead:
            self._return_late_jobs()
        self._start_and_report()

    def _start_and_report(self) -> None:
        """Start jobs, report ends and prebuild requests, in this order, so that starts are not delayed."""
        if self._slots.blocks_the_loop:  # the start is the whole task, so the server can work at the same time
            self.reporter.tell()
            self._run_until_time_is_up()
            return
        started = self._start_arrived() + self._start_ready_jobs()
        if started and not pool.writes_immediately(self._consumer.pool, self._consumer.hub):
            self.host.wake()  # for the rest, once the loop has made the pool write
            return
        self.reporter.tell()
        self._prebuild_requests()

    def _prebuild_requests(self) -> None:
        """Prebuild requests of at most as many prefetched jobs as the pool has slots."""
        max_requests = min(self._slots.size(), len(self._lookahead))
        if len(self._prebuilt) >= max_requests:
            return
        assert self._channel is not None, "begun"
        for claim, tag in self._lookahead.first(max_requests):
            if tag not in self._prebuilt:
                consume = partial(self._channel.consume, claim, tag, has_slot=False)
                if not self._prebuilt.make(tag, consume):
                    self._lookahead.discard(tag)

    def reply(self) -> None:
        """Start the jobs in a reply, and report the ends since the command."""
        self._arrived.extend(self.reporter.receive())
        self._prefetch_arrived()
        self._start_and_report()

    def receive_elsewhere(self, claims: list[Claim]) -> None:
        """Make the event loop start jobs of a reply to another thread, if the loop runs (see `watch_the_loop`)."""
        if self._lookahead.is_off:
            self._arrived.extend(claims)
        else:
            for claim in claims:
                self._prefetch(claim)
        self.host.wake()

    def room(self) -> int:
        """Return the number of jobs that the pool could start in addition to jobs with a slot or a rate limit wait."""
        return self.member.capacity.room() + len(self._lookahead)

    def _prefetch_arrived(self) -> None:
        """With look-ahead, prefetch all arrived jobs before the first of them starts."""
        while self._arrived and not self._lookahead.is_off:
            self._prefetch(self._arrived.popleft())

    def _prefetch(self, claim: Claim) -> None:
        claims = self.reporter.claims
        tag = claims.hold(claim)
        if tag is None:
            return
        if claims.drained:  # the job was in transit; here it would wait behind a long task, and then not start
            self.reporter.set_outcome(tag, RETURNED)
        else:
            self._lookahead.add(claim, tag)

    def _start(self, claim: Claim) -> None:
        tag = self.reporter.claims.hold(claim)
        if tag is not None:
            self._start_claim(claim, tag)

    def _start_claim(self, claim: Claim, tag: str) -> None:
        assert self._channel is not None, "begun"
        if self.reporter.claims.is_withdrawn(tag):
            self._return([tag])
        elif tag in self._prebuilt:
            self._channel.burying(claim, tag, partial(self._prebuilt.start, tag))
        else:
            self._channel.consume(claim, tag)

    def _return(self, tags: Collection[str]) -> None:
        self._prebuilt.drop(tags)
        for tag in tags:
            self.reporter.set_outcome(tag, RETURNED)

    def _start_arrived(self) -> int:
        arrived = len(self._arrived)
        for _ in range(arrived):
            self._start(self._arrived.popleft())
        return arrived

    def _run_until_time_is_up(self) -> None:
        """Run jobs one after the other in a pool that blocks the loop, for at most `_MAX_BLOCKING_S`.

        An iteration of the loop takes about half as long as a short task with all of Celery's work for it.
        """
        until_s = time.monotonic() + _MAX_BLOCKING_S
        has_run = False
        while (self._arrived or self._lookahead) and (self._start_arrived() or self._fill_free_slots()):
            has_run = True
            if time.monotonic() >= until_s or not self.host.goes_on:
                break
        if has_run:
            self.host.wake()

    def start_next(self) -> None:
        """Start a job in the slot of a task that has just ended, and make a prefork pool write it immediately.

        Errors are raised in the event loop, including a SystemExit of a signal handler or of a stop: they are unrelated
        to the task that has ended, and must not disturb its end.
        """
        try:
            if self._fill_free_slots():
                pool.writes_immediately(self._consumer.pool, self._consumer.hub)
        except (Exception, SystemExit) as exc:
            self._consumer.call_soon(_fail, exc)

    def _start_ready_jobs(self) -> int:
        """Start a prefetched job in each free slot. Return the number of jobs started."""
        started = self._fill_free_slots()
        if started and self._lookahead and self._free_slots() > 0:
            self.host.wake()  # for example, a job waiting for a rate limit has lent its slot to the next
        return started

    def _fill_free_slots(self) -> int:
        if not self._lookahead:
            return 0
        self._give_back(self.member.capacity.unwanted)
        started = max(0, min(len(self._lookahead), self._free_slots()))
        for _ in range(started):
            self._start_claim(*self._lookahead.next())
        return started

    def _return_late_jobs(self) -> None:
        """Return the jobs that longer tasks delay, and make the loop iterate when others may be late."""
        self._return(self._lookahead.give_back_what_is_late())
        now_s = time.monotonic()
        if self._lookahead and now_s >= self._next_check_s:
            self._next_check_s = now_s + STARTS_WITHIN_S
            self.host.wake_in(STARTS_WITHIN_S)

    def _free_slots(self) -> int:
        """Return the number of jobs that may start, in free slots and in slots lent by rate-limited jobs."""
        return self.room() + self.member.capacity.lent

    def _give_back(self, types: Collection[str]) -> None:
        """Return the prefetched jobs of *types*, which the worker no longer serves."""
        tags = self._lookahead.give_back(types, len(self._lookahead)) if types else []
        if tags:
            self._prebuilt.drop(tags)
            self.reporter.give_back(tags)


def _fail(exc: BaseException) -> None:
    raise exc


logger = limited_logger(__name__)
#: Maximum seconds of one blocking read of the inbox, and seconds of the pause after an error.
_MAX_WAIT_S = 2.0
_RETRY_S = 0.5


class InboxReader:
    """Reads the inbox of *worker* in one cohort, in a thread: one BRPOP cannot wait on two servers, or on two shards.

    It calls *receive* with each claim, and *obey* with each control message, until stopped. A cohort whose server is
    down does not block the others. *scheduler* must have dedicated connections.
    """

    def __init__(
        self,
        cohort: str,
        scheduler: Scheduler,
        worker: str,
        *,
        receive: Callable[[Claim], None],
        obey: Callable[[list[str]], None],
    ) -> None:
        self._scheduler, self._worker = scheduler, worker
        self._inbox, self._nudges = (scheduler.keys.key(name, worker) for name in ("inbox", "nudges"))
        self._receive, self._obey = receive, obey
        timeout_s = scheduler.client.connection_pool.connection_kwargs.get("socket_timeout") or 2 * _MAX_WAIT_S
        self._wait_s = min(_MAX_WAIT_S, timeout_s / 2)
        self._is_stopped = False
        self._thread = PeriodicThread(f"affinity-inbox-{cohort}", self._read, 0.0)

    def start(self) -> None:
        self._thread.start()

    def use(self, scheduler: Scheduler) -> None:
        """Continue with another *scheduler* of the same cohort."""
        previous, self._scheduler = self._scheduler, scheduler
        previous.close()

    def stop(self) -> None:
        """Stop reading. The server requeues the jobs remaining in the inbox when the worker leaves."""
        self._is_stopped = True
        end_wait(self._scheduler, self._nudges)
        self._thread.stop()
        self._scheduler.close()

    def _read(self) -> float | None:
        if self._is_stopped:
            return _MAX_WAIT_S
        try:
            reply = self._scheduler.client.execute_command("BRPOP", self._inbox, self._nudges, self._wait_s)
        except ResponseError as exc:
            if str(exc).startswith("WRONGTYPE"):
                with suppress(RedisError, OSError):
                    self._scheduler.repair([self._worker])
            return _RETRY_S
        except (RedisError, OSError):
            return _RETRY_S  # the heartbeats log it
        if reply and reply[0].decode() == self._inbox:
            read_item(reply[1], self._receive, self._obey)
        return None
