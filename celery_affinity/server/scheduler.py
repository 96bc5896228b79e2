"""The arrows, one method each: the only module that calls Redis with scripts.

Every call may be repeated after a lost reply: publishing a known id, a stale fencing number and a repeated sequence
number change nothing.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from ..rules import keys as key_names
from ..rules.keys import Keys
from ..rules.protocol import IS_REFUSED, LONGEST_NAME, MOST_BYTES, MOST_MOVES, MOST_PURGED
from ..rules.rows import number_of, text_of
from .connections.in_flight import InFlight
from .reader import Reader
from .replies import Claim, End, Ending, Job, Joined, Joining, Published, Running, Synced, Ticked
from .scripts.assembling import Argument, Script, load

logger = logging.getLogger(__name__)

#: What a server says of a state that will pass: the call is to be repeated, on another connection. redis-py has classes
#: for most of these. NOSCRIPT twice in a row: the server lost its scripts again before it could run the one.
_PASSING = (BusyLoadingError, ReadOnlyError, NoScriptError, TryAgainError, ClusterDownError)
_TRANSIENT = ("BUSY ", "LOADING", "READONLY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED")

#: What a server answers instead of a reply.
_REFUSALS = (*_PASSING, ResponseError)

#: What a script is told that may not call something; the second is Redis 7.0's.
_NO_RIGHT = ("ACL failure", "The user executing the script can't")

#: What it says of a script that came upon what it cannot work with: a key of another type, a number that is none. Of
#: all else that it refuses it says a code.
_SPOILED = re.compile(r"(.*: )?WRONGTYPE |(?!([A-Z]{3,} |.*ACL )).*user_script", re.DOTALL)

#: After a repair that found nothing another one waits so long, s.
_IN_VAIN_S = 5.0

#: Jobs that one call of `publish` puts at most: it takes some 20 µs for each, and places no more than `MOST_MOVES`.
_TOGETHER = 25

#: The script that producers call. Who may load scripts loads it for those that may not (docs/how-to/acl.md).
_OF_PRODUCERS = "publish"

#: Scheduled jobs that are looked at together where they are counted.
_COUNTED = 500


class Scheduler:
    """The scheduler of one cohort, as *client* reaches it.

    *client* adds no prefix to keys and repeats no command by itself. Errors of a state that will pass (a server that
    loads, a replica after a failover) are raised as redis.ConnectionError, which kombu and Celery retry.
    """

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self.keys = keys
        self.reader = Reader(client, keys)
        self._in_vain_until_s = 0.0

    def close(self) -> None:
        """Close the connections that no thread is using; one that is in use goes with its last user."""
        self.client.close()
        self.client.connection_pool.disconnect(inuse_connections=False)

    def publish(self, *jobs: Job) -> list[Published]:
        """Put jobs into their lanes, or among the scheduled, in one round trip. A known id changes nothing.

        One call of the script takes some, and is atomic; the others may have been published if this raises. Of one that
        the server refuses nothing is written, and the others go their way.
        """
        return self._published(self._run_together(list(_publishing(jobs))))

    def load_for_producers(self) -> None:
        """Give the server the script that producers call: they may have no right to load it."""
        script = load(_OF_PRODUCERS)
        try:
            self.client.script_load(script.source)
        except _REFUSALS as exc:
            _raise_meaning(exc, [script])
            raise

    def send_publish(self, in_flight: InFlight, jobs: Sequence[Job]) -> None:
        """Begin a `publish`: `receive_publish` ends it. The server is at work on the first jobs while others follow."""
        for call in _publishing(jobs):
            in_flight.go_on(self._commands([call]))

    def receive_publish(self, in_flight: InFlight) -> list[Published]:
        """End it. An error that the server gave instead is raised as it came."""
        replies = in_flight.receive()
        in_flight.give_back()
        return self._published(replies)

    def _published(self, replies: Sequence[Any]) -> list[Published]:
        published = []
        for state, more, served, *further in replies:
            # Who may not read messages cannot claim: workers go on with the next job that ends, or with a sync.
            with suppress(NoPermissionError):
                self._go_on(more)
            pairs = [(state, served), *zip(further[::2], further[1::2], strict=True)]
            published += [_published(*pair) for pair in pairs]
        return published

    def ingest(self, list_: str, jobs: Sequence[Job]) -> int:
        """Move messages from a list of stock Celery into their lanes. Return how many were there still.

        *jobs*: ten at most, of one type, the one that is next in the list first.
        """
        script = load("ingest")
        calls = [(script, script.arguments(job.arguments, list=list_, readable=int(job.readable))) for job in jobs]
        replies = self._run_together(calls)
        self._go_on(b" ".join(more for _, more, _ in replies))
        for job, (state, _, bad) in zip(jobs, replies, strict=True):
            if state == IS_REFUSED:
                Published(False, True, bad.decode()).check(job)
        return sum(state > 0 for state, _, _ in replies)

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

        *acks*: (job id, fencing number). *sequence*: grows with each call that is not a repetition. *inline*: whether
        the caller takes its next jobs from here; else they go to its inbox. *most_ahead*: how many it then holds beyond
        its slots at most. *on_acked* is called with how many of *acks* were of claims that the worker holds.
        """
        calls = _settling(worker, acks, ends, sequence, inline, most_ahead)
        replies = self._run_together(calls) if calls else []
        if acks:
            on_acked(int(replies[0]))
        return self._settled(replies, bool(ends))

    def send_acks(self, in_flight: InFlight, worker: str, acks: Sequence[tuple[str, str]], *, goes_on: bool) -> None:
        """Begin to ack messages: `receive_acks` ends it. *goes_on*: after what is on its way already."""
        _send(in_flight, self._commands(_settling(worker, acks, (), 0, True, 0)), goes_on=goes_on)

    def receive_acks(self, in_flight: InFlight, calls: int) -> list[int]:
        """Return of so many `send_acks` how many were of claims that the worker holds. Raises what `receive` does."""
        return [int(acked) for acked in in_flight.receive(calls)]

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
        """Begin a `tell_ends` whose jobs come inline: `receive_ends` ends it. *goes_on*: see `send_acks`."""
        calls = _settling(worker, acks, ends, sequence, True, most_ahead)
        _send(in_flight, self._commands(calls), goes_on=goes_on)

    def receive_ends(self, in_flight: InFlight, *, has_ends: bool) -> list[Claim]:
        """Return the jobs that follow. An error that the server gave instead is raised as it came."""
        return self._settled(in_flight.receive(), has_ends)

    def _commands(self, calls: Iterable[tuple[Script, list[Argument]]]) -> list[tuple[Any, ...]]:
        return [("EVALSHA", script.sha, 1, self.keys.base, *arguments) for script, arguments in calls]

    def _settled(self, replies: Sequence[Any], has_ends: bool) -> list[Claim]:
        if not has_ends:
            return []
        more, *payloads = replies[-1]
        self._go_on(more)
        return parsed_claims(payloads)

    def requeue(self, worker: str, claims: Iterable[tuple[str, str]], *, counted: bool) -> None:
        """Give jobs (job id, fencing number) back; *counted* as a delivery or not."""
        given = list(claims)
        for first in range(0, len(given), MOST_MOVES):
            rest = _flat(given[first : first + MOST_MOVES])
            (more,) = self._run(load("requeue"), worker=worker, counted=int(counted), rest=rest)
            self._go_on(more)

    def join(self, joining: Joining, settings: dict[str, str]) -> Joined:
        """Enter *joining* as a live worker; *settings*: those of its app.conf, as `Settings.shared` has them."""
        self.load_for_producers()
        more, namesake, replaced, void_up_to, now_us = self._run(
            load("join"),
            worker=joining.worker,
            name=key_names.encode(joining.name),
            slots_in_all=joining.slots,
            other=joining.other,
            profile=joining.profile,
            types=" ".join(joining.encoded_types),
            app=key_names.encode(joining.app),
            rest=_flat(settings.items()),
        )
        self._go_on(more)
        return Joined(text_of(namesake) or None, [text_of(name) for name in replaced], int(void_up_to), now_us)

    def sync(self, worker: str, claims: Iterable[Running], *, slots: int, other: int, draining: bool) -> Synced:
        """Beat, and say which claims the worker holds."""
        known, ticker, more, asked, void, revision, now_us, returned = self._run(
            load("sync"),
            worker=worker,
            slots_in_all=slots,
            other=other,
            draining=int(draining),
            rest=_flat(claims),
        )
        self._go_on(more)
        numbers = [text_of(value) for value in asked]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        void_ids = [text_of(job_id) for job_id in void]
        return Synced(bool(known), bool(ticker), pairs, void_ids, number_of(revision), now_us, int(returned))

    def beat(self, worker: str, *, turns: bool) -> bool:
        """Say that a worker lives, and whether its event loop *turns*. Return whether the worker is known.

        While it does not turn, the worker gets no job, and what it has not read goes back.
        """
        while True:
            known, again, more = self._run(load("beat"), worker=worker, turns=int(turns))
            self._go_on(more)
            if not again:
                return bool(known)

    def leave(self, worker: str) -> int:
        """Take a worker out; what it still holds is pending again. Return how many jobs."""
        returned, unfinished = 0, True
        while unfinished:
            more, unfinished, count = self._run(load("leave"), worker=worker)
            returned += int(count)
            self._go_on(more)
        return returned

    def recover(self, worker: str) -> int:
        """Take back what a worker held that is known to be dead, all of it. Return how many jobs."""
        recovered = 0
        while True:
            again, count, more = self._run(load("recover"), worker=worker)
            recovered += int(count)
            self._go_on(more)
            if not again:
                return recovered

    def tick(self, lists: Sequence[str] = ()) -> Ticked:
        """Promote what is due and recover the jobs of dead workers, all of them.

        *lists* of stock Celery, some hundred at most, are looked at.
        """
        due = recovered = dead = 0
        while True:
            again, next_due_us, *counts, untold, filled, more = self._run(load("tick"), lists)
            due, recovered, dead = due + counts[0], recovered + counts[1], dead + counts[2]
            self._go_on(more)
            if not again:
                break
        due_in_us = number_of(next_due_us, -1)
        next_due_s = None if due_in_us < 0 else due_in_us / 1e6
        return Ticked(next_due_s, due, recovered, dead, bool(untold), [text_of(name) for name in filled])

    def revoke(self, task_ids: Sequence[str], stamps: Sequence[str], *, keep_s: int) -> int:
        """End the waiting jobs of these tasks, and those that bear one of these stamps. Return how many there were.

        What is published under them within *keep_s* seconds ends as well.
        """
        revoked = 0
        tasks = [key_names.encode(task_id) for task_id in task_ids]
        for by, names in (("task", tasks), ("stamp", stamps)):
            for first in range(0, len(names), MOST_MOVES):
                left, after = names[first : first + MOST_MOVES], 0
                while left:
                    count, others, after = self._run(load("revoke"), by=by, keep_s=keep_s, after=after, rest=left)
                    left = left[len(left) - others :]
                    revoked += int(count)
        return revoked

    def has_untold(self) -> bool:
        """Return whether there are ends that are not told, or not told yet."""
        return bool(self.client.exists(self.keys.key("untold")))

    def announce(self, app: str, *, again_s: float, telling: Collection[str] = ()) -> Ending | None:
        """Return an end to be told to its caller, or None. If nobody says that it is `told`, it comes again.

        That is *again_s* later, and each time after a pause twice as long. *app*: who asks; what it has left to others
        it does not get, until they had their time. *telling*: jobs whose ends the caller is about to tell still.
        """
        row = self._run(load("announce"), telling, again_us=round(again_s * 1e6), app=key_names.encode(app))
        return Ending.parse(row) if row else None

    def message_of(self, job_id: str) -> bytes:
        """Return the message of a job as kombu sent it; b"" if it is gone."""
        return self.client.get(self.keys.key("message", job_id)) or b""

    def told(self, job_ids: Sequence[str]) -> None:
        """Note that the callers of these jobs know how they ended."""
        self._run(load("told"), how="told", app="", rest=job_ids)

    def leave_to_others(self, app: str, job_ids: Sequence[str]) -> None:
        """Note that *app* cannot tell the callers of these jobs, since it does not know their tasks."""
        self._run(load("told"), how="left", app=key_names.encode(app), rest=job_ids)

    def set_aside(self, job_ids: Sequence[str]) -> None:
        """Have nobody told how these jobs ended: nothing can be read of them. What stands under their ids stays."""
        self._run(load("told"), how="aside", app="", rest=job_ids)

    def purge(self, type_: str) -> int:
        """Delete the waiting jobs of a type: pending ones, and those that wait for their time. Return how many."""
        encoded = key_names.encode(type_)
        deleted, again = 0, 1
        while again:
            count, again = self._run(load("purge"), type=encoded)
            deleted += int(count)
        for waiting in self._scheduled(encoded):
            count, _ = self._run(load("purge"), type=encoded, rest=waiting)
            deleted += int(count)
        return deleted

    def scheduled_count(self, type_: str) -> int:
        """Return the number of jobs of a type that wait for their time. It looks at those of all types."""
        return sum(map(len, self._scheduled(key_names.encode(type_), _COUNTED)))

    def has_scheduled(self, type_: str) -> bool:
        """Return whether a job of a type waits for its time."""
        return any(self._scheduled(key_names.encode(type_), _COUNTED))

    def _scheduled(self, encoded_type: str, page: int = MOST_PURGED) -> Iterator[list[str]]:
        """Yield the ids of the jobs of a type that wait for their time, those of a *page* of the scheduled together."""
        # From the last page on: what is deleted of one moves none of those before it.
        for first in reversed(range(0, self.client.zcard(self.keys.key("scheduled")), page)):
            ids = [
                text_of(job_id) for job_id in self.client.zrange(self.keys.key("scheduled"), first, first + page - 1)
            ]
            with self.client.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hget(self.keys.key("job", job_id), "type")
                types = pipe.execute()
            yield [job_id for job_id, type_ in zip(ids, types, strict=True) if type_ == encoded_type.encode()]

    def known(self, job_ids: Sequence[str]) -> set[str]:
        """Return which of these jobs the server has, in whatever state; one that has ended is known for a while."""
        with self.client.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.exists(self.keys.key("job", job_id))
            return {job_id for job_id, found in zip(job_ids, pipe.execute(), strict=True) if found}

    def replay(self, job_ids: Sequence[str]) -> list[str]:
        """Have dead letters run again, as if published now. Return the ids of those that still have a message."""
        replayed: list[str] = []
        for first in range(0, len(job_ids), MOST_MOVES):
            more, *ids = self._run(load("replay"), rest=job_ids[first : first + MOST_MOVES])
            replayed += [job_id.decode() for job_id in ids]
            self._go_on(more)
        return replayed

    def drop(self, job_ids: Sequence[str]) -> int:
        """Delete dead letters. Return how many there were."""
        return sum(
            int(self._run(load("drop"), rest=job_ids[first : first + MOST_MOVES]))
            for first in range(0, len(job_ids), MOST_MOVES)
        )

    def configure(self, changes: dict[str, str]) -> int:
        """Change settings at run time, by their name in Redis; "" resets one. Return the revision of the settings."""
        return int(self._run(load("configure"), rest=_flat(changes.items())))

    def repair(self, failed: Sequence[Argument] | None = None) -> list[str]:
        """Set aside or make again what somebody else deleted or overwrote. Return what that was, and say it in the log.

        *failed*: what an arrow was called with that failed.
        """
        names = [each for each in failed or () if len(str(each)) <= LONGEST_NAME]
        found: list[str] = []
        types: list[bytes] = []
        first = 0
        while first >= 0:
            rest = names if first == 0 else ()
            arguments = load("repair").arguments(rest, first=first, thorough=int(failed is not None))
            (reply,) = self._attempt([(load("repair"), arguments)])
            first, some, what = reply
            types += some
            found += [each.decode(errors="replace") for each in what]
        for each in found:
            logger.error("Somebody else deleted or overwrote what is in Redis: %s", each)
        if found:
            for at in range(0, len(types), MOST_MOVES):
                self._go_on(b" ".join(types[at : at + MOST_MOVES]))
        return found

    def settings(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the settings in force, and what an app.conf said last, by their names in Redis."""
        with self.client.pipeline(transaction=False) as pipe:
            for name in ("settings", "conf"):
                pipe.hgetall(self.keys.key(name))
            in_force, conf = ({text_of(name): text_of(each) for name, each in raw.items()} for raw in pipe.execute())
        return in_force, conf

    def _go_on(self, more: bytes) -> None:
        """Claim on of the types that a reply names, until no pending job and free slot are left side by side."""
        while types := more.split():
            (more,) = self._run(load("claim"), rest=types)

    def _run(self, script: Script, rest: Iterable[Argument] = (), **values: Argument) -> Any:
        (reply,) = self._run_together([(script, script.arguments(rest, **values))])
        return reply

    def _run_together(self, calls: Sequence[tuple[Script, list[Argument]]]) -> list[Any]:
        """Run scripts in one round trip. If one comes upon what is spoiled, that is repaired, and they run again."""
        try:
            return self._attempt(calls)
        except ResponseError as exc:
            if not _SPOILED.match(str(exc)) or time.monotonic() < self._in_vain_until_s:
                raise
            logger.error("%s failed: %s", " and ".join(script.name for script, _ in calls), exc)
            if not self._repaired([value for _, arguments in calls for value in arguments]):
                raise
            return self._attempt(calls)

    def _repaired(self, failed: Sequence[Argument]) -> bool:
        """Return whether there was something to repair, and this user may."""
        with suppress(NoPermissionError):
            if self.repair(failed):
                return True
        self._in_vain_until_s = time.monotonic() + _IN_VAIN_S
        return False

    def _attempt(self, calls: Sequence[tuple[Script, list[Argument]]]) -> list[Any]:
        """Run scripts in one round trip. A server that lost them is given them again."""
        try:
            try:
                return self._evalsha(calls)
            except NoScriptError:
                # Lost with all others: a fleet that works gives producers theirs again with its next call.
                for script in dict.fromkeys([*(script for script, _ in calls), load(_OF_PRODUCERS)]):
                    self._load(script)  # that of producers last: who may load none learns it of its own
                return self._evalsha(calls)
        except _REFUSALS as exc:
            _raise_meaning(exc, (script for script, _ in calls))
            raise

    def _load(self, script: Script) -> None:
        try:
            self.client.script_load(script.source)
        except NoPermissionError as exc:
            if script.name != _OF_PRODUCERS:
                raise
            # It will pass, with the first worker: the call is to be repeated.
            raise redis.ConnectionError(
                f"the server does not have the script of {script.name}, and the broker's user may not load it: a "
                "worker or a dispatcher of this version of celery_affinity does, when it starts and after a "
                f"restart of the server ({exc})"
            ) from exc

    def _evalsha(self, calls: Sequence[tuple[Script, list[Argument]]]) -> list[Any]:
        if len(calls) == 1:
            script, arguments = calls[0]
            return [self.client.evalsha(script.sha, 1, self.keys.base, *arguments)]
        with self.client.pipeline(transaction=False) as pipe:
            for script, arguments in calls:
                pipe.evalsha(script.sha, 1, self.keys.base, *arguments)
            replies: list[Any] = pipe.execute()
            return replies


def _raise_meaning(exc: redis.RedisError, scripts: Iterable[Script]) -> None:
    """Raise what an answer that is no reply means: a state that will pass, or a missing right. Else return."""
    if isinstance(exc, _PASSING) or str(exc).startswith(_TRANSIENT):
        raise redis.ConnectionError(str(exc)) from exc
    if isinstance(exc, NoPermissionError) or any(words in str(exc) for words in _NO_RIGHT):
        names = " and ".join(script.name for script in scripts)
        raise NoPermissionError(f"the broker's user has no right to {names}: {exc}") from exc


def parsed_claims(payloads: Iterable[bytes]) -> list[Claim]:
    """Return the claims in *payloads*, without what cannot be read: it never arrived, so a sync gives it back."""
    found = []
    for payload in payloads:
        try:
            found.append(Claim.parse(payload))
        except ValueError as exc:
            logger.error(
                "A job that the server gave cannot be read, it is given back: %s. It was %r", exc, payload[:200]
            )
    return found


def _published(state: int, served: Any) -> Published:
    if state == IS_REFUSED:
        return Published(False, True, served.decode())
    return Published(bool(state), bool(served))


def _publishing(jobs: Sequence[Job]) -> Iterator[tuple[Script, list[Argument]]]:
    script = load("publish")
    arguments: list[Argument] = []
    count = size = 0
    for job in jobs:
        arguments += job.arguments
        count, size = count + 1, size + len(job.message)
        if count == _TOGETHER or size > MOST_BYTES:
            yield script, arguments
            arguments, count, size = [], 0, 0
    if arguments:
        yield script, arguments


def _settling(
    worker: str, acks: Sequence[tuple[str, str]], ends: Sequence[End], sequence: int, inline: bool, most_ahead: int
) -> list[tuple[Script, list[Argument]]]:
    calls = []
    if acks:
        calls.append((load("ack"), load("ack").arguments(worker=worker, rest=_flat(acks))))
    if ends:
        release = load("release")
        arguments = release.arguments(
            rest=_flat(ends), worker=worker, sequence=sequence, caller=int(inline), most_ahead=most_ahead
        )
        calls.append((release, arguments))
    return calls


def _send(in_flight: InFlight, commands: Sequence[Sequence[Any]], *, goes_on: bool) -> None:
    send = in_flight.go_on if goes_on else in_flight.send
    send(commands)


def _flat(rows: Iterable[Iterable[Argument]]) -> list[Argument]:
    return [value for row in rows for value in row]
