"""The errors of a server in a state that passes: it starts, is switched over, takes part in a move of keys.

A planned switch-over answers any command so, even one that has been waiting for a while. None of these errors says
anything about the command, which is to be repeated on another connection.
"""

import re
from typing import NamedTuple

import redis
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)

#: Errors of a state that passes for which redis-py has classes, without the code in their texts.
_CLASSES = (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    TryAgainError,
)

#: What others put before the text: redis-py in a pipeline, and a server that refuses a whole transaction.
_BEFORE = r"(Command # .* of pipeline caused error: )?((EXECABORT )?Transaction discarded because of: )?-?"

#: The same states in words: those that redis-py has no class for, and those of a script whose keys are being moved.
_PASSES = re.compile(
    rf"{_BEFORE}((ASK|BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MOVED|READONLY|REDIRECT|TRYAGAIN|UNBLOCKED) "
    r"|(ERR )?max number of clients "
    r"|(ERR )?(?![A-Z]{3,} ).*(to access a non local key|to access a slot not served"
    r"|while the cluster is down|undeclared keys were accessed during rehashing))",
    re.DOTALL,
)

#: Refusals of writes alone, until somebody gets room on the disk or in memory, or until replicas follow again.
_REFUSES_WRITES = re.compile(rf"{_BEFORE}(MISCONF|NOREPLICAS|OOM) ", re.DOTALL)


def passes(exc: BaseException) -> bool:
    """Return whether *exc* is an error of a server in a state that will pass, whatever the command was."""
    return isinstance(exc, _CLASSES) or (isinstance(exc, redis.ResponseError) and bool(_PASSES.match(str(exc))))


class WrongNodeError(redis.ConnectionError):
    """A node of a cluster is asked as if it were one server, and another node has the keys: it will not have them."""


class Elsewhere(NamedTuple):
    """A slot of a cluster, and the node that has it by now; that *is_being_moved* to it, key by key."""

    slot: int
    host: str
    port: int
    is_being_moved: bool


#: What a node answers that has not the keys; redis-py before 6 has its classes in clients of a cluster alone.
_ELSEWHERE = re.compile(rf"{_BEFORE}(?P<code>MOVED|ASK) (?P<slot>\d+) (?P<host>\S*):(?P<port>\d+)")


def elsewhere(exc: BaseException) -> Elsewhere | None:
    """Return where the keys of a command are, if a node of a cluster refused the command unread for that."""
    if isinstance(exc, AskError):  # also MOVED
        return Elsewhere(exc.slot_id, exc.host, exc.port, not isinstance(exc, MovedError))
    found = _ELSEWHERE.match(str(exc)) if isinstance(exc, redis.ResponseError) else None
    if found is None:
        return None
    return Elsewhere(int(found["slot"]), found["host"], int(found["port"]), found["code"] == "ASK")


def refuses_writes(exc: BaseException) -> bool:
    """Return whether *exc* says that the server takes no writes now: its memory or disk is full, or replicas are gone.

    Whoever publishes has to know; whoever reads has to wait.
    """
    return isinstance(exc, OutOfMemoryError) or (
        isinstance(exc, redis.ResponseError) and bool(_REFUSES_WRITES.match(str(exc)))
    )


def traceback_of(exc: BaseException) -> BaseException | None:
    """Return *exc* for the argument `exc_info` of a logger, or None if its text says everything.

    The text is enough if a server does not answer, takes no writes, or is in a state that passes. Such an error meets
    thousands of tasks, each with eighty lines of traceback.
    """
    lost = isinstance(exc, (redis.ConnectionError, redis.TimeoutError, OSError))
    return None if lost or passes(exc) or refuses_writes(exc) else exc
