"""The arrows, one method each: the only module that calls Redis with scripts.

Every call may be repeated after a lost reply: publishing a known id, a stale fencing number and a repeated sequence
number change nothing.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from . import keys as key_names
from .keys import Keys
from .scripts import Argument, Script, load

#: What a server says of a state that will pass: the call is to be repeated, on another connection. redis-py has classes
#: for most of these. NOSCRIPT twice in a row: the server lost its scripts again before it could run the one.
_PASSING = (BusyLoadingError, ReadOnlyError, NoScriptError, TryAgainError, ClusterDownError)
_TRANSIENT = ("BUSY ", "LOADING", "READONLY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED")


class Claim(NamedTuple):
    """A job as its worker got it. The fencing number tells this delivery from every other of the same job."""

    job_id: str
    fence: str
    type: str
    deliveries: int
    enqueued_us: int
    message: bytes

    @classmethod
    def parse(cls, payload: bytes) -> "Claim":
        """Return the claim in *payload*: a line of facts, then the message."""
        facts, _, message = payload.partition(b"\n")
        job_id, fence, type_, deliveries, enqueued = facts.decode().split(" ")
        return cls(job_id, fence, key_names.decode(type_), int(deliveries), int(enqueued), message)


class End(NamedTuple):
    """How a claimed job ended: *outcome* is "acked", "rejected", "unsettled" or "returned" (see ``release.lua``)."""

    job_id: str
    fence: str
    outcome: str


@dataclass(frozen=True)
class Joining:
    """What a worker says of itself when it joins. *slots*: its concurrency; *other*: slots that no claim shows."""

    worker: str
    name: str
    types: Sequence[str]
    slots: int
    other: int = 0

    @property
    def encoded_types(self) -> list[str]:
        return sorted(key_names.encode(type_) for type_ in set(self.types))

    @property
    def profile(self) -> str:
        """Return a short name of the set of types, the same for every worker that serves just these."""
        return hashlib.sha1(" ".join(self.encoded_types).encode(), usedforsecurity=False).hexdigest()[:16]


class Synced(NamedTuple):
    """What the server answers to a beat. Not *known*: join again.

    *asked*: claims (job id, fencing number) that the worker did not name. *void*: ids of jobs that it named, but that
    are no longer its own.
    """

    known: bool
    ticker: bool
    asked: list[tuple[str, str]]
    void: list[str]


class Ticked(NamedTuple):
    """What a tick did. *next_due_s*: until the next scheduled job is due, None if there is none."""

    next_due_s: float | None
    due: int
    recovered: int
    dead_workers: int


class Scheduler:
    """The scheduler of one cohort, as *client* reaches it.

    *client* adds no prefix to keys and repeats no command by itself. Errors of a state that will pass (a server that
    loads, a replica after a failover) are raised as redis.ConnectionError, which kombu and Celery retry.
    """

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self.keys = keys

    def close(self) -> None:
        """Close the connections that no thread is using; one that is in use goes with its last user."""
        self.client.connection_pool.disconnect(inuse_connections=False)

    def publish(
        self,
        job_id: str,
        *,
        type_: str,
        on_demand: bool,
        priority: int,
        delay_us: int,
        task_id: str,
        task_name: str,
        message: bytes | str,
    ) -> bool:
        """Put a job into its lane, or among the scheduled for *delay_us*. Return False if its id is known already."""
        encoded = key_names.encode(type_)
        state, more = self._run(
            load("publish"),
            id=job_id,
            type=encoded,
            mode="demand" if on_demand else "queued",
            priority=priority,
            delay_us=delay_us,
            task_id=task_id,
            task_name=task_name,
            message=message,
        )
        self._go_on(more, [encoded])
        return bool(state)

    def settle(
        self, worker: str, *, acks: Sequence[tuple[str, str]], ends: Sequence[End], sequence: int, inline: bool
    ) -> list[Claim]:
        """Ack messages, and release the slots of jobs that ended, in one round trip. Return the jobs that follow.

        *acks*: (job id, fencing number). *sequence*: grows with each call that is not a repetition. *inline*: whether
        the caller takes its next jobs from here; else they go to its inbox.
        """
        calls = []
        if acks:
            calls.append((load("ack"), load("ack").arguments(worker=worker, rest=_flat(acks))))
        if ends:
            release = load("release")
            arguments = release.arguments(rest=_flat(ends), worker=worker, sequence=sequence, caller=int(inline))
            calls.append((release, arguments))
        if not calls:
            return []
        replies = self._run_together(calls)
        if not ends:
            return []
        more, *payloads = replies[-1]
        self._go_on(more, ())
        return [Claim.parse(payload) for payload in payloads]

    def requeue(self, worker: str, claims: Iterable[tuple[str, str]], *, counted: bool) -> None:
        """Give jobs (job id, fencing number) back; *counted* as a delivery or not."""
        (more,) = self._run(load("requeue"), worker=worker, counted=int(counted), rest=_flat(claims))
        self._go_on(more, ())

    def join(self, joining: Joining, settings: dict[str, str]) -> str | None:
        """Enter *joining* as a live worker. Return another live worker that has its node name, if there is one."""
        more, namesake = self._run(
            load("join"),
            worker=joining.worker,
            name=key_names.encode(joining.name),
            slots_in_all=joining.slots,
            other=joining.other,
            profile=joining.profile,
            types=" ".join(joining.encoded_types),
            rest=_flat(settings.items()),
        )
        self._go_on(more, joining.encoded_types)
        return namesake.decode() or None

    def sync(self, worker: str, claims: Iterable[tuple[str, str]], *, slots: int, other: int, draining: bool) -> Synced:
        """Beat, and say which claims (job id, fencing number) the worker holds."""
        known, ticker, more, asked, void = self._run(
            load("sync"),
            worker=worker,
            slots_in_all=slots,
            other=other,
            draining=int(draining),
            rest=_flat(claims),
        )
        self._go_on(more, ())
        numbers = [value.decode() for value in asked]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        return Synced(bool(known), bool(ticker), pairs, [job_id.decode() for job_id in void])

    def leave(self, worker: str) -> None:
        """Take a worker out; what it still holds is pending again."""
        (more,) = self._run(load("leave"), worker=worker)
        self._go_on(more, ())

    def tick(self) -> Ticked:
        """Promote what is due and recover the jobs of dead workers, all of them."""
        due = recovered = dead = 0
        while True:
            more, next_due_us, *counts = self._run(load("tick"))
            due, recovered, dead = due + counts[0], recovered + counts[1], dead + counts[2]
            if not more:
                break
            self._go_on(more, ())
        next_due_s = None if int(next_due_us) < 0 else int(next_due_us) / 1e6
        return Ticked(next_due_s, due, recovered, dead)

    def purge(self, type_: str) -> int:
        """Delete the pending jobs of a type. Return how many there were."""
        deleted: int = 0
        while True:
            count, more = self._run(load("purge"), type=key_names.encode(type_))
            deleted += int(count)
            if not more:
                return deleted

    def pending(self, type_: str) -> int:
        """Return the number of pending jobs of a type."""
        encoded = key_names.encode(type_)
        packed = self.client.hget(self.keys.key("heads"), encoded) or b""
        lanes = packed.decode().split()[::3]
        with self.client.pipeline(transaction=False) as pipe:
            for lane in lanes:
                pipe.zcard(self.keys.key("lane", encoded, lane))
            return int(sum(pipe.execute()))

    def _go_on(self, more: int, types: Sequence[str]) -> None:
        """Repeat the claim until no pending job and free slot are left side by side.

        Without *types*, those of every waiting job: a reply said `more` without saying of what.
        """
        while more:
            waiting = types or [name.decode() for name in self.client.hkeys(self.keys.key("heads"))]
            (more,) = self._run(load("claim"), rest=waiting)

    def _run(self, script: Script, rest: Iterable[Argument] = (), **values: Argument) -> Any:
        (reply,) = self._run_together([(script, script.arguments(rest, **values))])
        return reply

    def _run_together(self, calls: Sequence[tuple[Script, list[Argument]]]) -> list[Any]:
        """Run scripts in one round trip. A server that lost them is given them again."""
        try:
            try:
                return self._evalsha(calls)
            except NoScriptError:
                for script, _ in calls:
                    self.client.script_load(script.source)
                return self._evalsha(calls)
        except _PASSING as exc:
            raise redis.ConnectionError(str(exc)) from exc
        except ResponseError as exc:
            if str(exc).startswith(_TRANSIENT):
                raise redis.ConnectionError(str(exc)) from exc
            raise

    def _evalsha(self, calls: Sequence[tuple[Script, list[Argument]]]) -> list[Any]:
        if len(calls) == 1:
            script, arguments = calls[0]
            return [self.client.evalsha(script.sha, 1, self.keys.base, *arguments)]
        with self.client.pipeline(transaction=False) as pipe:
            for script, arguments in calls:
                pipe.evalsha(script.sha, 1, self.keys.base, *arguments)
            replies: list[Any] = pipe.execute()
            return replies


def _flat(rows: Iterable[Iterable[Argument]]) -> list[Argument]:
    return [value for row in rows for value in row]
