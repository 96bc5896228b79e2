"""Arguments of arrows, cut into calls that hold no server up: so many jobs a call, and acks together with ends.

The calls of arrows: the library is loaded if the server lacks it; again after a repair; the meaning of errors.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import redis
from redis.exceptions import BusyLoadingError, InvalidResponse, NoPermissionError, NoScriptError, ResponseError

from ..broker.failover import is_transient
from ..broker.inflight import InFlightCommands
from ..log_limit import limited_logger
from ..lua.library import Argument, CallMode, Library, ServerFunction, load_library, server_function
from ..options.recurring import RecurringCall
from ..policy.slot_math import PrefetchLimit
from ..schema import bounds
from ..schema.bounds import Bound
from ..schema.constants import LONGEST_NAME, MOST_BYTES, MOST_FILLED, MOST_MOVES, UNFINISHED
from ..schema.job_record import NewJob, job_words
from ..schema.keys import Keys
from .messages import EndArguments
from .reader import Reader

#: An arrow, and its arguments.
FunctionCall = tuple[ServerFunction, list[Argument]]

Item = TypeVar("Item")

#: Largest number of jobs in one call of `publish`, which takes about 20 µs for each, and places `MOST_MOVES` at most.
TOGETHER = 25


def publish_invocations(jobs: Iterable[NewJob]) -> Iterator[FunctionCall]:
    """Yield the calls that publish *jobs*, in their order. The jobs of a call all have a bound, or none has one."""
    publish = server_function("publish")
    arguments: list[Argument] = []
    bounded: dict[str, Bound] = {}
    count = size = 0
    for job in jobs:
        is_other = (job.bound is None) == bool(bounded) or bounded.get(job.type, job.bound) != job.bound
        if arguments and is_other:
            yield publish, _with_bounds(arguments, bounded)
            arguments, bounded, count, size = [], {}, 0, 0
        arguments += job.arguments
        if job.bound is not None:
            bounded[job.type] = job.bound
        count, size = count + 1, size + len(job.message)
        if count == TOGETHER or size > MOST_BYTES:
            yield publish, _with_bounds(arguments, bounded)
            arguments, bounded, count, size = [], {}, 0, 0
    if count == 1 and not bounded:
        yield publish, list(job_words(tuple(arguments)))
    elif arguments:
        yield publish, _with_bounds(arguments, bounded)


def _with_bounds(arguments: list[Argument], bounded: dict[str, Bound]) -> list[Argument]:
    return [*arguments, bounds.bound_words(bounded)] if bounded else arguments


def ingest_arguments(list_: str, jobs: Iterable[NewJob]) -> list[FunctionCall]:
    """Return a call for each of *jobs*, whose messages are in a list of stock Celery."""
    ingest = server_function("ingest")
    return [(ingest, ingest.arguments(job.arguments, list=list_, readable=int(job.readable))) for job in jobs]


def declare_arguments(entries: Iterable[RecurringCall]) -> Iterator[list[Argument]]:
    """Yield the arguments of calls that declare *entries*, as many in each as a call of an arrow may take."""
    arguments: list[Argument] = []
    count = size = 0
    for entry in entries:
        arguments += entry.arguments
        count, size = count + 1, size + len(entry.signature)
        if count == TOGETHER or size > MOST_BYTES:
            yield arguments
            arguments, count, size = [], 0, 0
    if arguments:
        yield arguments


def ack_arguments(
    worker: str,
    acks: Sequence[tuple[str, str]],
    ends: Sequence[EndArguments],
    sequence: int,
    inline: bool,
    may_hold: PrefetchLimit,
) -> list[FunctionCall]:
    """Return the calls that ack messages and that release the slots of ended jobs; no call without *acks* or *ends*."""
    told = []
    if acks:
        told.append((server_function("ack"), server_function("ack").arguments(worker=worker, rest=flatten(acks))))
    if ends:
        release = server_function("release")
        arguments = release.arguments(
            rest=flatten(ends), worker=worker, sequence=sequence, caller=int(inline), may_hold=may_hold.in_words
        )
        told.append((release, arguments))
    return told


def argument_pages(items: Sequence[Item], most: int = MOST_MOVES) -> Iterator[Sequence[Item]]:
    """Yield *items*, *most* together: as many as one call moves."""
    for first in range(0, len(items), most):
        yield items[first : first + most]


def flatten(rows: Iterable[Iterable[Argument]]) -> list[Argument]:
    """Return the values of all *rows*."""
    return [value for row in rows for value in row]


def check_kind(kind: type, reply: object, in_flight: InFlightCommands) -> None:
    """Raise redis.InvalidResponse unless *reply* is of *kind*.

    The reply then answers another command, so the connection is closed.
    """
    if not isinstance(reply, kind):
        in_flight.close()
        raise InvalidResponse(f"a reply must be of the kind {kind.__name__}, got: {reply!r:.200}")


logger = limited_logger(__name__)

#: Errors that a server answers instead of a reply.
_REFUSALS = (BusyLoadingError, ResponseError)

#: Errors of an arrow that lacks the right to a command; the second is Redis 7.0's.
_NO_RIGHT = ("ACL failure", "The user executing the script can't")

#: Errors of an arrow that met a key of another type, or a number that is none. Every other refusal begins with a code,
#: or speaks of what a script may do.
_SPOILED = re.compile(
    r"(.*: )?WRONGTYPE |(?!([A-Z]{3,} |.*ACL |.*to the same slot|.* (in|from)( read-only)? scripts?\b))"
    r".*user_(script|function)",
    re.DOTALL,
)

#: Pause, s, after a repair that found nothing, or after which the call failed again, before another one.
_IN_VAIN_S = 5.0

#: Largest number of times that a repair goes through all data, while corrupt data stop it in some place.
_MOST_PASSES = 3

#: Beginnings of what a server says that knows no functions: another program than Redis and Valkey, or a hosted one.
_KNOWS_NO_FUNCTIONS = ("unknown command", "unknown subcommand", "Unknown subcommand", "Unsupported")


class Runner:
    """Calls arrows on the keys of one cohort, which *reader* reads.

    *client* adds no prefix to keys and repeats no command by itself. Errors of a state that will pass (a server that
    loads, a replica after a failover) are raised as redis.ConnectionError, which kombu and Celery retry. Arrows are
    functions; scripts on a server that refuses functions.
    """

    library: Library = load_library()

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self.keys = keys
        self.reader = Reader(client, keys)
        self.way: CallMode = self.library.by_function
        self._in_vain_until_s = 0.0

    def load(self) -> None:
        """Load what producers call: their users may have no right to load it."""
        try:
            self._load("publish")
        except _REFUSALS as exc:
            _raise_meaning(exc, ["publish"])
            raise

    def command(self, call: FunctionCall) -> tuple[Argument, ...]:
        """Return *call* as a command, for a connection whose reply is read later."""
        its_arrow, arguments = call
        return self.way.command(its_arrow.name, self.keys.base, arguments)

    def _commands(self, calls: Iterable[FunctionCall]) -> list[tuple[Argument, ...]]:
        return [self.command(call) for call in calls]

    def _run(self, arrow: ServerFunction, rest: Iterable[Argument] = (), **values: Argument) -> Any:
        (reply,) = self._run_together([(arrow, arrow.arguments(rest, **values))])
        return reply

    def _run_together(self, calls: Sequence[FunctionCall]) -> list[Any]:
        """Call arrows in one round trip. If one meets a spoiled key, repair the key and call all of them again."""
        try:
            return self._attempt(calls)
        except ResponseError as exc:
            if not _SPOILED.match(str(exc)) or time.monotonic() < self._in_vain_until_s:
                raise
            logger.error(
                "The call of %s failed; the data in Redis are checked and repaired: %s",
                " and ".join(each.name for each, _ in calls),
                exc,
            )
            if not self._repaired([value for _, arguments in calls for value in arguments]):
                raise
            repaired_until_s, self._in_vain_until_s = self._in_vain_until_s, time.monotonic() + _IN_VAIN_S
            replies = self._attempt(calls)
            self._in_vain_until_s = repaired_until_s
            return replies

    def _go_on(self, unfilled: bytes) -> None:
        """Claim jobs of the types that a reply names, until no pending job fits a free slot."""
        types = unfilled.split()
        while types:
            (unfilled,) = self._run(server_function("claim"), rest=types[:MOST_FILLED])
            types = [*unfilled.split(), *types[MOST_FILLED:]]

    def repair(
        self, failed: Sequence[Argument] | None = None, *, thorough: bool = False, says_only: bool = False
    ) -> list[str]:
        """Set aside or make again keys that somebody else deleted or overwrote. Return, and log, a line for each.

        *failed*: the arguments of a call that failed. *thorough*: look at all, as if one had. *says_only*: look
        at all, change nothing, and log nothing.
        """
        how = 2 if says_only else int(thorough or failed is not None)
        names = [each for each in failed or () if len(str(each)) <= LONGEST_NAME]
        found: list[str] = []
        types: list[bytes] = []
        for _ in range(1 if says_only else _MOST_PASSES):
            found = [each for each in found if each != UNFINISHED]
            first = 0
            while first >= 0:
                rest = names if first == 0 else ()
                repair = server_function("repair")
                (reply,) = self._attempt([(repair, repair.arguments(rest, first=first, how=how))])
                first, some, what = reply
                types += some
                found += [each.decode(errors="replace") for each in what]
            if UNFINISHED not in found:
                break
        if says_only:
            return list(dict.fromkeys(found))
        for each in found:
            logger.error("Another program deleted or overwrote the fleet's data in Redis: %s", each)
        if found:
            for page in argument_pages(types):
                self._go_on(b" ".join(page))
        return found

    def _repaired(self, failed: Sequence[Argument]) -> bool:
        """Repair, and return whether there was something to repair that this user may repair."""
        with suppress(NoPermissionError):
            if self.repair(failed):
                return True
        self._in_vain_until_s = time.monotonic() + _IN_VAIN_S
        return False

    def _attempt(self, calls: Sequence[FunctionCall]) -> list[Any]:
        """Call arrows in one round trip. Load them if the server lacks them."""
        try:
            try:
                return self._call(calls)
            except _REFUSALS as exc:
                if not self._may_be_loaded(exc):
                    raise
                for name in dict.fromkeys(each.name for each, _ in calls):
                    self._load(name)
                return self._call(calls)
        except _REFUSALS as exc:
            _raise_meaning(exc, (each.name for each, _ in calls))
            raise

    def _may_be_loaded(self, exc: Exception) -> bool:
        """Return whether the server lacks what was called. One that knows no functions gets scripts from now on."""
        if self.way is self.library.by_function and str(exc).startswith(_KNOWS_NO_FUNCTIONS):
            self.way = self.library.by_script
            return True
        return is_function_missing(exc)

    def _load(self, name: str) -> None:
        """Load what has the arrow *name*."""
        try:
            self.client.execute_command(*self.way.loading(name))
        except NoPermissionError as exc:
            # The error will pass with the first worker: the call is to be repeated.
            raise redis.ConnectionError(
                f"the server does not have the function of {name}, and the broker's user may not load it: a worker or "
                "a dispatcher of this version of celery_affinity does, when it starts and after a restart of the "
                f"server ({exc})"
            ) from exc
        except ResponseError as exc:
            if "already exists" in str(exc):  # somebody else has loaded it meanwhile
                return
            if self.way is self.library.by_script or not str(exc).startswith(_KNOWS_NO_FUNCTIONS):
                raise
            self.way = self.library.by_script
            self._load(name)

    def _call(self, calls: Sequence[FunctionCall]) -> list[Any]:
        if len(calls) == 1:
            return [self.client.execute_command(*self.command(calls[0]))]
        with self.client.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.execute_command(*self.command(call))
            replies: list[Any] = pipe.execute()
            return replies


def is_function_missing(exc: Exception) -> bool:
    """Return whether a server raised *exc* because it does not have the arrow that was called."""
    return isinstance(exc, NoScriptError) or "Function not found" in str(exc)


def _raise_meaning(exc: redis.RedisError, names: Iterable[str]) -> None:
    """Raise what an error of the server means: a state that will pass, or a missing right. Else return."""
    # A server that lacks the arrow twice in a row has lost it again before it could run it.
    if is_transient(exc) or is_function_missing(exc):
        raise redis.ConnectionError(str(exc)) from exc
    if isinstance(exc, NoPermissionError) or any(words in str(exc) for words in _NO_RIGHT):
        raise NoPermissionError(f"the broker's user has no right to {' and '.join(names)}: {exc}") from exc
