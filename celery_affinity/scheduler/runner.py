"""Invokes server functions: splits arguments into invocations, loads the library, repairs data, and maps errors.

No invocation blocks the server for long: the number and size of the jobs in one invocation are limited.
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
from ..lua.library import (
    BRING_JOBS,
    Argument,
    CallMode,
    FunctionCall,
    Library,
    ServerFunction,
    function_call,
    load_library,
    server_function,
)
from ..options.recurring import RecurringCall
from ..policy.slot_math import PrefetchLimit
from ..schema import bounds
from ..schema.bounds import Bound
from ..schema.constants import MAX_BYTES, MAX_FILLED, MAX_MOVES, MAX_NAME_LENGTH, UNFINISHED
from ..schema.job_record import NewJob, job_words
from ..schema.keys import Keys
from .messages import EndArguments
from .reader import Reader

Item = TypeVar("Item")
#: Maximum number of jobs in one invocation of `publish`, which takes about 20 µs per job and places up to `MAX_MOVES`.
TOGETHER = 25


def publish_invocations(jobs: Iterable[NewJob]) -> Iterator[FunctionCall]:
    """Yield the invocations that publish *jobs*, in their order. Jobs with and without a bound are not mixed."""
    publish = server_function("publish")
    arguments: list[Argument] = []
    bounded: dict[str, Bound] = {}
    count = size = 0
    for job in jobs:
        is_other = (job.bound is None) == bool(bounded) or bounded.get(job.type, job.bound) != job.bound
        if arguments and (is_other or count == TOGETHER or size > MAX_BYTES):
            yield publish, _with_bounds(arguments, bounded)
            arguments, bounded, count, size = [], {}, 0, 0
        arguments += job.arguments
        if job.bound is not None:
            bounded[job.type] = job.bound
        count, size = count + 1, size + len(job.message)
    if count == 1 and not bounded:
        yield publish, list(job_words(tuple(arguments)))
    elif arguments:
        yield publish, _with_bounds(arguments, bounded)


def _with_bounds(arguments: list[Argument], bounded: dict[str, Bound]) -> list[Argument]:
    return [*arguments, bounds.bound_words(bounded)] if bounded else arguments


def declare_arguments(entries: Iterable[RecurringCall]) -> Iterator[list[Argument]]:
    """Yield the arguments of the invocations that declare *entries*, within the limits of one invocation."""
    arguments: list[Argument] = []
    count = size = 0
    for entry in entries:
        arguments += entry.arguments
        count, size = count + 1, size + len(entry.signature)
        if count == TOGETHER or size > MAX_BYTES:
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
    """Return the invocations that ack messages and release the slots of ended jobs; none without *acks* or *ends*."""
    invocations = []
    if acks:
        invocations.append(function_call("ack", flatten(acks), worker=worker))
    if ends:
        numbers: dict[str, Argument] = {"sequence": sequence, "caller": inline, "may_hold": may_hold.in_words}
        invocations.append(function_call("release", flatten(ends), worker=worker, **numbers))
    return invocations


def argument_pages(items: Sequence[Item], max_items: int = MAX_MOVES) -> Iterator[Sequence[Item]]:
    """Yield *items* in pages of up to *max_items*, the number that one invocation moves."""
    for first in range(0, len(items), max_items):
        yield items[first : first + max_items]


def flatten(rows: Iterable[Iterable[Argument]]) -> list[Argument]:
    """Return the values of all *rows* in one list."""
    return [value for row in rows for value in row]


def check_kind(kind: type, reply: object, in_flight: InFlightCommands) -> None:
    """Raise redis.InvalidResponse and close the connection if *reply*, not of *kind*, belongs to another command."""
    if not isinstance(reply, kind):
        in_flight.close()
        raise InvalidResponse(f"a reply must be of the kind {kind.__name__}, got: {reply!r:.200}")


logger = limited_logger(__name__)
#: Errors that a server returns instead of a reply.
_SERVER_ERRORS = (BusyLoadingError, ResponseError)
#: Errors of a function whose user may not run one of its commands; the second is Redis 7.0's.
_NO_RIGHT_ERRORS = ("ACL failure", "The user executing the script can't")
#: Errors of a function that met a key of another type, or an invalid number. All other errors begin with a code, or
#: mention what a script may do.
_CORRUPT_DATA_ERROR = re.compile(
    r"(.*: )?WRONGTYPE |(?!([A-Z]{3,} |.*ACL |.*to the same slot|.* (in|from)( read-only)? scripts?\b))"
    r".*user_(script|function)",
    re.DOTALL,
)
#: Pause in seconds after a repair that found nothing, or did not help the failed invocation.
_REPAIR_PAUSE_S = 5.0
#: Maximum number of times that a repair scans all data, while corrupt data stop it somewhere.
_MAX_PASSES = 3
#: Prefixes of the errors that a server without functions returns: another program, or a hosted server.
_LACKS_FUNCTIONS_ERRORS = ("unknown command", "unknown subcommand", "Unknown subcommand", "Unsupported")


class Runner:
    """Invokes functions on the keys of one cohort, which *reader* reads.

    *client* must add no prefix to keys, and must not repeat commands. Errors of a transient state (a server that loads,
    a replica after a failover) are raised as redis.ConnectionError, which kombu and Celery retry. On a server that
    rejects functions, scripts are used.
    """

    library: Library = load_library()

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self.keys = keys
        self.reader = Reader(client, keys)
        self.way: CallMode = self.library.by_function
        self._no_repair_until_s = 0.0

    def load(self) -> None:
        """Load the library for publishers, whose users may have no right to load it."""
        try:
            self._load("publish")
        except _SERVER_ERRORS as exc:
            _raise_meaning(exc, ["publish"])
            raise

    def command(self, call: FunctionCall) -> tuple[Argument, ...]:
        """Return the invocation *call* as a command, for a connection whose reply is read later."""
        function, arguments = call
        return self.way.command(function.name, self.keys.base, arguments)

    def _commands(self, calls: Iterable[FunctionCall]) -> list[tuple[Argument, ...]]:
        return [self.command(call) for call in calls]

    def _run(self, name: str, rest: Iterable[Argument] = (), /, **values: Argument) -> Any:
        """Invoke a function, and fill the slots that it left free. Return its reply without `unfilled`."""
        call = function_call(name, rest, **values)
        (reply,) = self._run_together([call])
        return self._filled(call[0], reply)

    def _repeat(self, name: str, rest: Iterable[Argument] = (), /, **values: Argument) -> Iterator[Sequence[Any]]:
        """Invoke a function until its reply has no `again`. Yield each reply without `again` and `unfilled`.

        The slots that an invocation left free are filled after its reply was yielded.
        """
        function, arguments = function_call(name, rest, **values)
        again = True
        while again:
            (reply_values,) = self._run_together([(function, arguments)])
            reply = dict(zip(function.reply, reply_values, strict=True))
            again = reply.pop("again")
            unfilled = reply.pop("unfilled", b"")
            yield tuple(reply.values())
            self._fill_slots(unfilled)

    def _filled(self, function: ServerFunction, reply: Any) -> Any:
        """Claim further jobs for slots that *function* left free. Return its reply without `unfilled`."""
        if not reply or "unfilled" not in function.reply:
            return reply
        place = function.reply.index("unfilled")
        # A publisher without the right to read messages cannot claim: a worker claims at its next release or sync.
        with suppress(*([NoPermissionError] if function.name in BRING_JOBS else [])):
            self._fill_slots(reply[place])
        return [*reply[:place], *reply[place + 1 :]]

    def _run_together(self, calls: Sequence[FunctionCall]) -> list[Any]:
        """Invoke functions in one round trip. If one meets corrupt data, repair the data and invoke all again."""
        try:
            return self._attempt(calls)
        except ResponseError as exc:
            if not _CORRUPT_DATA_ERROR.match(str(exc)) or time.monotonic() < self._no_repair_until_s:
                raise
            logger.error(
                "Server function %s failed; the data in Redis are checked and repaired: %s",
                " and ".join(function.name for function, _ in calls),
                exc,
            )
            if not self._try_repair([value for _, arguments in calls for value in arguments]):
                raise
            repaired_until_s, self._no_repair_until_s = self._no_repair_until_s, time.monotonic() + _REPAIR_PAUSE_S
            replies = self._attempt(calls)
            self._no_repair_until_s = repaired_until_s
            return replies

    def _fill_slots(self, unfilled: bytes) -> None:
        """Claim jobs of the types in *unfilled* until no pending job fits a free slot."""
        types = unfilled.split()
        while types:
            ((unfilled,),) = self._run_together([function_call("claim", types[:MAX_FILLED])])
            types = [*unfilled.split(), *types[MAX_FILLED:]]

    def repair(
        self, failed: Sequence[Argument] | None = None, *, thorough: bool = False, says_only: bool = False
    ) -> list[str]:
        """Quarantine or rebuild keys that another client deleted or overwrote. Return, and log, a line per finding.

        *failed* are the arguments of a failed invocation.
        *thorough*: check all data, as after a failure.
        *says_only*: check all data without changes and logging.
        """
        how = 2 if says_only else int(thorough or failed is not None)
        names = [name for name in failed or () if len(str(name)) <= MAX_NAME_LENGTH]
        findings: list[str] = []
        types: list[bytes] = []
        for _ in range(1 if says_only else _MAX_PASSES):
            findings = [finding for finding in findings if finding != UNFINISHED]
            first = 0
            while first >= 0:
                rest = names if first == 0 else ()
                (reply,) = self._attempt([function_call("repair", rest, first=first, how=how)])
                first, page_types, page_findings = reply
                types += page_types
                findings += [finding.decode(errors="replace") for finding in page_findings]
            if UNFINISHED not in findings:
                break
        if says_only:
            return list(dict.fromkeys(findings))
        for finding in findings:
            logger.error("Another program deleted or overwrote the fleet's data in Redis: %s", finding)
        if findings:
            for page in argument_pages(types):
                self._fill_slots(b" ".join(page))
        return findings

    def _try_repair(self, failed: Sequence[Argument]) -> bool:
        """Repair; return True if there was something that this user could repair."""
        with suppress(NoPermissionError):
            if self.repair(failed):
                return True
        self._no_repair_until_s = time.monotonic() + _REPAIR_PAUSE_S
        return False

    def _attempt(self, calls: Sequence[FunctionCall]) -> list[Any]:
        """Invoke functions in one round trip. Load them if the server lacks them."""
        try:
            try:
                return self._call(calls)
            except _SERVER_ERRORS as exc:
                if not self._can_load(exc):
                    raise
                for name in dict.fromkeys(function.name for function, _ in calls):
                    self._load(name)
                return self._call(calls)
        except _SERVER_ERRORS as exc:
            _raise_meaning(exc, (function.name for function, _ in calls))
            raise

    def _can_load(self, exc: Exception) -> bool:
        """True if the server lacks the function. A server without functions gets scripts from now on."""
        if self.way is self.library.by_function and str(exc).startswith(_LACKS_FUNCTIONS_ERRORS):
            self.way = self.library.by_script
            return True
        return is_function_missing(exc)

    def _load(self, name: str) -> None:
        """Load the library or script of the function *name*."""
        try:
            self.client.execute_command(*self.way.loading(name))
        except NoPermissionError as exc:
            # The first worker of this version ends this error: the invocation must be repeated.
            raise redis.ConnectionError(
                f"the server does not have the function of {name}, and the broker's user may not load it: a worker or "
                "a dispatcher of this version of celery_affinity does, when it starts and after a restart of the "
                f"server ({exc})"
            ) from exc
        except ResponseError as exc:
            if "already exists" in str(exc):  # another client has loaded it in between
                return
            if self.way is self.library.by_script or not str(exc).startswith(_LACKS_FUNCTIONS_ERRORS):
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
    """True if a server raised *exc* because it lacks the function."""
    return isinstance(exc, NoScriptError) or "Function not found" in str(exc)


def _raise_meaning(exc: redis.RedisError, names: Iterable[str]) -> None:
    """Raise the client error for a server error: a transient state or a missing right. Otherwise return."""
    # A server that lacks the function twice in a row has lost it again before it could run it.
    if is_transient(exc) or is_function_missing(exc):
        raise redis.ConnectionError(str(exc)) from exc
    if isinstance(exc, NoPermissionError) or any(message in str(exc) for message in _NO_RIGHT_ERRORS):
        raise NoPermissionError(f"the broker's user has no right to {' and '.join(names)}: {exc}") from exc
