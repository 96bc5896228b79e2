"""The claims of a worker, with the acks and ends that are still unreported: three tables behind one lock.

No method blocks. Tasks end in the event loop, in pool threads or during a shutdown; this module only records the ends.
In `outbox`, `Outbox` sends them, and `EndReporter` decides when and from which thread.

The lock is reentrant, like the worker's other locks: Celery does a cold shutdown in a signal handler, which can
interrupt the thread that holds the lock.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from ..clock import SECOND_US
from ..log_limit import limited_logger
from ..scheduler.messages import Claim, ClaimReport
from ..schema import job_record, keys
from ..schema.values import decode_part
from .claim_log import ClaimLog
from .held_claim import ACKED, FAILED, RETURNED, UNSETTLED, WAITS_AGAIN, HeldClaim, PoolPort, TaskRequest, delivery_tag
from .job_metrics import MetricDeltas
from .lease import Lease, ServerClock

logger = limited_logger(__name__)


#: Represents all keys, because a claim does not name its key. Jobs of unpaused keys are returned too, and redelivered
#: immediately.
_ANY_KEY = "key"


class WithdrawnTypes:
    """Claims from before a pause, which the server recalls with a control message; false if there are none.

    Maps each paused target to the highest fencing token issued before the pause. Entries need not expire, because later
    claims have higher tokens.
    """

    def __init__(self) -> None:
        self._up_to: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._up_to)

    def add(self, what: str, fence: int) -> None:
        """Recall the claims of target *what* up to *fence*: "type:T" or "key:K", encoded, or "*" for all."""
        self._up_to[_ANY_KEY if keys.parts_of(what)[0] == "key" else decode_part(what)] = fence

    def has(self, job_id: str, type_: str, fence: str) -> bool:
        """Return True if the claim must be returned instead of started."""
        targets = (keys.ALL, keys.type_address(type_), *([_ANY_KEY] if job_record.has_key(job_id) else []))
        return any(int(fence) <= self._up_to.get(target, 0) for target in targets)

    def clear(self) -> None:
        """Forget all targets: the server has reset its tokens, or has reclaimed the earlier claims."""
        self._up_to.clear()


class ClaimTable:
    """The claims of *worker*, by delivery tag. Claims arrive in the list with the Redis key *inbox*.

    *lower_first* is True if 0 is the app's highest priority.
    """

    def __init__(self, worker: str, inbox: str, lease: Lease, *, lower_first: bool = False) -> None:
        self.worker = worker
        self.inbox = inbox
        self.lease = lease
        self.clock = ServerClock()
        self.sums = MetricDeltas()
        self.records = ClaimLog(self.clock, lower_first)
        self.withdrawn_types = WithdrawnTypes()
        self._lock = threading.RLock()
        self._held: dict[str, HeldClaim] = {}
        self._acks: dict[str, HeldClaim] = {}
        self._ends: dict[str, HeldClaim] = {}
        self._given_up: set[str] = set()
        self._ending: set[str] = set()
        #: Claims whose messages are in the buffers of custom strategies, and buffered claims settled but not yet ended.
        self._buffered: set[str] = set()
        self._settled_in_buffer: set[str] = set()
        self._refused: set[str] = set()
        self._refused_up_to = 0
        #: True once the worker is stopping, so that it drains for good.
        self.is_closed = False
        #: True if claims that still arrive must be returned.
        self.drained = False

    def hold(self, claim: Claim) -> str | None:
        """Hold a claim that arrived. Return its delivery tag, or None if the job must not run here."""
        tag = delivery_tag(claim.job_id, claim.fence)
        with self._lock:
            if self.is_closed or tag in self._refused or tag in self._held or int(claim.fence) <= self._refused_up_to:
                return None
            waited_us = max(0, self.clock.now_us() - claim.enqueued_us)
            self._held[tag] = HeldClaim(
                claim.job_id,
                claim.fence,
                claim.type,
                claim.expires_us,
                waited_us,
                enqueued_us=claim.enqueued_us,
                due_us=claim.due_us,
            )
        return tag

    def count_wait(self, tag: str, *, on_demand: bool, priority: object = None) -> None:
        """Count the wait of a claim's job, which is handed to its consumer now and so gets a slot.

        *on_demand* and *priority* are the message's values.
        """
        held = self._held.get(tag)
        if held is not None:
            held.on_demand, held.priority = on_demand, priority
            held.slot_since_s = time.monotonic()
            here_us = round((held.slot_since_s - held.held_since_s) * SECOND_US)  # a prefetched job also waited here
            waited_us = held.waited_us + here_us
            late_us = None if held.due_us is None else held.enqueued_us + waited_us - held.due_us
            self.sums.waited(held.type, on_demand, waited_us, late_us)

    def bind(self, tag: str, request: TaskRequest | None) -> None:
        """Record that *request* runs the claim, so that the claim ends with the request.

        None: the job waits for a slot, and can be returned.
        """
        with self._lock:
            if tag in self._held:
                self._held[tag].request = request

    def buffer(self, tag: str, request: TaskRequest) -> None:
        """Record that the task's strategy buffers a claim's message. The claim occupies no slot until `take_back`.

        *request* represents the message. The claim ends after the strategy has acked or rejected the message;
        `settled_in_buffer` explains the order.
        """
        with self._lock:
            held = self._held.get(tag)
            if held is None or any(tag in tags for tags in (self._ends, self._given_up, self._settled_in_buffer)):
                return
            held.request, held.is_buffered = request, True
            self._acks.pop(tag, None)
            if held.outcome == UNSETTLED:
                self._buffered.add(tag)
            else:
                self._note_settled(tag, held)

    def take_back(self, tag: str, request: TaskRequest) -> None:
        """Record that *request* of a buffered claim starts normally, so the claim occupies a slot again."""
        with self._lock:
            if tag in self._buffered:
                self._buffered.discard(tag)
                self._held[tag].request, self._held[tag].is_buffered = request, False

    def _note_settled(self, tag: str, held: HeldClaim) -> None:
        self._buffered.discard(tag)
        self._settled_in_buffer.add(tag)
        if held.outcome == ACKED:
            self._acks[tag] = held

    def drop_from_buffer(self, tag: str) -> None:
        """Record that the strategy dropped a claim's message without acking or rejecting it.

        The job is requeued. This counts as a delivery unless the worker is stopping, because the job may have killed
        the process of its batch.
        """
        with self._lock:
            if tag in self._buffered:
                held = self._held[tag]
                held.outcome = RETURNED if self.is_closed else UNSETTLED
                self._note_settled(tag, held)

    @property
    def has_settled_in_buffer(self) -> bool:
        return bool(self._settled_in_buffer)

    def settled_in_buffer(self) -> frozenset[str]:
        """Return the claims to `end` after the next sync.

        The sync reports that these claims no longer lend a slot. If their ends were reported first, the server would
        place jobs on slots that do not exist.
        """
        with self._lock:
            return frozenset(self._settled_in_buffer)

    def set_outcome(self, tag: str, outcome: str, why: str = "") -> bool:
        """Record the outcome of the message. Return True if there is something new to report.

        A claim without a request (such as an unknown task) ends here, with the error text *why*.
        """
        with self._lock:
            held = self._held.get(tag)
            if held is None or held.outcome != UNSETTLED or tag in self._settled_in_buffer:
                return False
            held.outcome = outcome
            if tag in self._buffered:
                self._note_settled(tag, held)
            elif held.request is None:
                held.how, held.why = FAILED if why else "", why
                held.ended_s = time.monotonic()
                self._ends[tag] = held
            elif outcome == ACKED and not held.is_ending:
                self._acks[tag] = held
            else:
                return False  # reported with the end, which follows soon
        return True

    def mark_ending(self, tag: str) -> None:
        """Record that the task of a claim has ended. The caller must call `end` afterwards."""
        held = self._held.get(tag)
        if held is not None:
            held.is_ending = True

    def mark_slot_free(self, tag: str) -> bool:
        """Record that a claim's task has ended and its slot is free. Return False if the slot was free already.

        The caller must call `end` afterwards.
        """
        with self._lock:
            if tag not in self._held or tag in self._ends or tag in self._given_up:
                return False
            self._ending.add(tag)
        return True

    def end(self, tag: str, how: str = "", why: str = "") -> HeldClaim | None:
        """Record that the claim's slot is free. On the first call, return the claim. *how*, *why*: see `HeldClaim`."""
        with self._lock:
            self._ending.discard(tag)
            self._unbuffer(tag)
            held = self._held.get(tag)
            if held is None or tag in self._ends:
                return None
            held.how, held.why, held.ended_s = how, why, time.monotonic()
            self._ends[tag] = held
            self._acks.pop(tag, None)  # reported with the end
        return held

    def check_may_start(self, tag: str) -> bool:
        """Return True if the task of a claim may start.

        Otherwise the worker has lost the claim, or the job is returned with its age intact: after a long silence, the
        worker cannot know whether the job is still its own.
        """
        with self._lock:
            held = self._held.get(tag)
            if held is None or tag in self._given_up or tag in self._ends:
                return False
            if held.void:
                del self._held[tag]
                return False
            if self.lease.holds or (held.outcome == ACKED and tag not in self._acks):
                return True  # the server has the ack, so no other worker runs the job
            held.outcome = RETURNED
            self._ends[tag] = held
            self._acks.pop(tag, None)
        return False

    def start(self, tag: str) -> HeldClaim | None:
        """Record that the task of a claim has started. Return the claim, if it is held."""
        held = self._held.get(tag)
        if held is not None:
            held.started_s = time.monotonic()
        return held

    @property
    def has_news(self) -> bool:
        return bool(self._acks or self._ends)

    @property
    def has_acks(self) -> bool:
        return bool(self._acks)

    def pending_reports(self, max_reports: int) -> tuple[dict[str, HeldClaim], dict[str, HeldClaim]]:
        """Return up to *max_reports* acks and as many ends. The acks are removed; the ends stay until `forget`."""
        with self._lock:
            ends = dict(islice(self._ends.items(), max_reports))
            return self.take_acks(max_reports), ends

    def take_acks(self, max_reports: int) -> dict[str, HeldClaim]:
        """Remove and return the first *max_reports* acks."""
        with self._lock:
            acks = dict(islice(self._acks.items(), max_reports))
            for tag in acks:
                del self._acks[tag]
        return acks

    def requeue_acks(self, acks: Mapping[str, HeldClaim]) -> None:
        """Make *acks* pending again, except for claims that have ended: the end includes the outcome."""
        with self._lock:
            self._acks.update((tag, held) for tag, held in acks.items() if tag in self._held and tag not in self._ends)

    def forget(self, ends: Mapping[str, HeldClaim], brought: Sequence[Claim] = ()) -> int:
        """Drop the claims whose *ends* the server has confirmed. Return the number of jobs pending again.

        *brought* are the new claims in the reply to these ends.
        """
        for held in ends.values():
            if held.run is not None:
                self.sums.ran(held.type, *held.run)
                if held.succeeded and held.request is not None and not job_record.is_batch(held.job_id):
                    self.sums.ran_task(held.request.name, held.request.size, held.in_slot_us)
        self.records.ended(ends.values(), brought)
        with self._lock:
            for tag in ends:
                self._held.pop(tag, None)
                self._ends.pop(tag, None)
                self._given_up.discard(tag)
            return sum(held.outcome in WAITS_AGAIN and not held.void for held in ends.values())

    def find(self, tag: str) -> HeldClaim | None:
        return self._held.get(tag)

    def left_us(self, tag: str) -> int | None:
        """Return the time in µs until a claim expires by the server's clock, or None if it never expires.

        Also None if another worker may already have the job: that worker decides whether the job has expired.
        """
        held = self._held.get(tag)
        if held is None or held.expires_us is None or held.void or not self.lease.holds:
            return None
        return held.expires_us - self.clock.now_us()

    def is_void(self, tag: str) -> bool:
        held = self._held.get(tag)
        return held is not None and held.void

    def is_withdrawn(self, tag: str) -> bool:
        """Return True if the claim was made before a pause, so that it must be returned instead of started."""
        held = self._held.get(tag) if self.withdrawn_types else None
        return held is not None and self.withdrawn_types.has(held.job_id, held.type, held.fence)

    def held_claims(self) -> list[HeldClaim]:
        with self._lock:
            return list(self._held.values())

    def running(self) -> list[ClaimReport]:
        """Return all held claims with the time in µs since their tasks started, or -1 before the start."""
        now_s = time.monotonic()
        return [
            ClaimReport(*held.number, -1 if held.started_s is None else round((now_s - held.started_s) * SECOND_US))
            for held in self.held_claims()
        ]

    def open_claims(self) -> list[tuple[str, HeldClaim]]:
        """Return the tags and claims that have not ended, are not about to end, and have not been given up."""
        with self._lock:
            ended = (self._ends, self._given_up, self._settled_in_buffer)
            return [(tag, held) for tag, held in self._held.items() if not any(tag in tags for tags in ended)]

    def unfinished(self) -> int:
        """Return the number of claims that need a slot: claims not ended, buffered or given up."""
        with self._lock:
            without_slot = self._given_up, self._ending, self._buffered, self._settled_in_buffer
            others = set().union(*without_slot) - self._ends.keys() if any(without_slot) else ()
            return len(self._held) - len(self._ends) - len(others)

    def buffered_count(self) -> int:
        """Return the number of buffered claims. The worker reports that many additional slots to the server."""
        return len(self._buffered)

    def buffered_types(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._held[tag].type for tag in self._buffered)

    def unsettled_count(self) -> int:
        with self._lock:
            return sum(held.outcome == UNSETTLED and not held.void for held in self._held.values())

    def void_count(self) -> int:
        """Return the number of lost claims, each of which occupies a slot while its task runs."""
        with self._lock:
            return sum(held.void for held in self._held.values())

    def refuse(self, numbers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Refuse these claims if they still arrive. Return the claims that are not held and so can be returned."""
        with self._lock:
            not_held = [number for number in numbers if delivery_tag(*number) not in self._held]
            self._refused.update(delivery_tag(*number) for number in not_held)
        return not_held

    def void(self, numbers: Iterable[tuple[str, str]]) -> list[HeldClaim]:
        """Mark these claims as lost. Return the newly marked claims."""
        void_numbers = set(numbers)
        return self._void(lambda held: held.number in void_numbers)

    def void_up_to(self, fence: int) -> list[HeldClaim]:
        """Like `void`, for all fencing tokens up to *fence*. Later arrivals with such tokens are refused."""
        self._refused_up_to = fence
        return self._void(lambda held: int(held.fence) <= fence)

    def _void(self, is_lost: Callable[[HeldClaim], bool]) -> list[HeldClaim]:
        with self._lock:
            # Skip claims that have ended: another thread may be reporting the end at this moment.
            newly_void = [
                held for tag, held in self._held.items() if tag not in self._ends and is_lost(held) and not held.void
            ]
            for held in newly_void:
                held.void = True
        self.records.gone(newly_void)
        for held in newly_void:
            logger.warning("%s is no longer this worker's: any further work on it here does not count", held.in_words)
        return newly_void

    def give_back_unstarted(self) -> bool:
        """Return the jobs without a request, while the event loop is stalled. Return True if there were any."""
        with self._lock:
            unstarted = {
                tag: held
                for tag, held in self._held.items()
                if held.request is None and held.outcome == UNSETTLED and not held.void
            }
            for held in unstarted.values():
                held.outcome = RETURNED
            self._ends.update(unstarted)
        return bool(unstarted)

    def abandon(self, tags: Iterable[str]) -> None:
        """Record that these claims will not start. They stay held until `release_given_up`."""
        with self._lock:
            self._given_up.update(tag for tag in tags if tag in self._held)

    def given_up(self) -> frozenset[str]:
        """Return the delivery tags of the abandoned claims that are still held, for `release_given_up`."""
        with self._lock:
            return frozenset(self._given_up)

    def release_given_up(self, given_up: frozenset[str]) -> list[tuple[str, str]]:
        """Drop abandoned claims. Return their job ids and fencing tokens."""
        with self._lock:
            tags = (self._given_up & given_up) - self._ends.keys()
            self._given_up -= tags
            return self._drop(tags)

    def drop_unstarted(self, pool: PoolPort) -> list[tuple[str, str]]:
        """Drop the claims whose request *pool* does not have. Return their job ids and fencing tokens.

        Once the worker stops, an acked claim stays held. The server may not have the ack yet, and would requeue the
        job, which must be lost instead when the worker leaves.
        """
        with self._lock:
            tags = [tag for tag in self._tags_not_in(pool) if not (self.is_closed and self._held[tag].outcome == ACKED)]
            self._given_up.difference_update(tags)
            return self._drop(tags)

    def _unbuffer(self, tag: str) -> None:
        if self._buffered or self._settled_in_buffer:
            self._buffered.discard(tag)
            self._settled_in_buffer.discard(tag)

    def _drop(self, tags: Iterable[str]) -> list[tuple[str, str]]:
        dropped = []
        for tag in tags:
            dropped.append(self._held.pop(tag))
            self._unbuffer(tag)
        self.records.gone(held for held in dropped if not held.void)
        return [held.number for held in dropped]

    def drain(self, pool: PoolPort) -> list[HeldClaim]:
        """Abandon and return the claims whose request *pool* does not have. Claims that still arrive are returned."""
        self.drained = True
        with self._lock:
            tags = [tag for tag in self._tags_not_in(pool) if tag not in self._given_up]
            self._given_up.update(tags)
            return [self._held[tag] for tag in tags]

    def _tags_not_in(self, pool: PoolPort) -> list[str]:
        ended = (self._ends, self._settled_in_buffer)
        return [
            tag
            for tag, held in self._held.items()
            if not any(tag in tags for tags in ended) and not pool.still_has(held.request)
        ]

    def close(self) -> None:
        """Accept no further claim, because the worker stops."""
        with self._lock:
            self.is_closed = True
