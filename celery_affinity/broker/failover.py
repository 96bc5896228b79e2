"""The errors of a server in a state that passes: it starts, is switched over, takes part in a move of keys.

A planned switch-over answers any command so, even one that has been waiting for a while. None of these errors says
anything about the command, which is to be repeated on another connection.

Connections whose users outlast a state of the server that passes, such as a planned switch-over.

kombu and Celery connect again after a redis.ConnectionError, and end after another error. redis-py raises some of the
states that pass as one, and others as an error of the command.
"""

import re
from typing import Any, NamedTuple

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


def is_transient(exc: BaseException) -> bool:
    """Return whether *exc* is an error of a server in a state that will pass, whatever the command was."""
    return isinstance(exc, _CLASSES) or (isinstance(exc, redis.ResponseError) and bool(_PASSES.match(str(exc))))


class SlotRedirectError(redis.ConnectionError):
    """A node of a cluster is asked as if it were one server, and another node has the keys: it will not have them."""


class Redirect(NamedTuple):
    """A slot of a cluster, and the node that has it by now; that *is_being_moved* to it, key by key."""

    slot: int
    host: str
    port: int
    is_being_moved: bool


#: What a node answers that has not the keys; redis-py before 6 has its classes in clients of a cluster alone.
_ELSEWHERE = re.compile(rf"{_BEFORE}(?P<code>MOVED|ASK) (?P<slot>\d+) (?P<host>\S*):(?P<port>\d+)")


def parse_redirect(exc: BaseException) -> Redirect | None:
    """Return where the keys of a command are, if a node of a cluster refused the command unread for that."""
    if isinstance(exc, AskError):  # also MOVED
        return Redirect(exc.slot_id, exc.host, exc.port, not isinstance(exc, MovedError))
    found = _ELSEWHERE.match(str(exc)) if isinstance(exc, redis.ResponseError) else None
    if found is None:
        return None
    return Redirect(int(found["slot"]), found["host"], int(found["port"]), found["code"] == "ASK")


def refuses_writes(exc: BaseException) -> bool:
    """Return whether *exc* says that the server takes no writes now: its memory or disk is full, or replicas are gone.

    Whoever publishes has to know; whoever reads has to wait.
    """
    return isinstance(exc, OutOfMemoryError) or (
        isinstance(exc, redis.ResponseError) and bool(_REFUSES_WRITES.match(str(exc)))
    )


def short_traceback(exc: BaseException) -> BaseException | None:
    """Return *exc* for the argument `exc_info` of a logger, or None if the error message is sufficient.

    The message is sufficient if a server does not reply, refuses writes, or has a transient error. Such an error can
    affect thousands of tasks, and each traceback has about eighty lines.
    """
    lost = isinstance(exc, (redis.ConnectionError, redis.TimeoutError, OSError))
    return None if lost or is_transient(exc) or refuses_writes(exc) else exc


#: What MOVED and ASK mean to a connection that leads to one server: on a cluster, `cluster` has read them already.
_CLUSTER = "the server is a node of a cluster, and another node has the keys: write redis-cluster:// in broker_url"


def surviving_failover(kind: type, *, reads: bool) -> type:
    """Return a subclass of *kind* that closes on an error of the server that passes, and raises a ConnectionError.

    Such errors: the server loads its data, a failover. *reads*: also that the server takes no writes for now, an error
    that publishers must see themselves.
    """

    class Lasting(kind):
        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except redis.ResponseError as exc:
                if not (is_transient(exc) or (reads and refuses_writes(exc))):
                    raise
                self.disconnect()  # replies to other commands may follow
                if parse_redirect(exc):
                    raise SlotRedirectError(_CLUSTER) from exc
                raise redis.ConnectionError(str(exc)) from exc

    Lasting.__name__ = Lasting.__qualname__ = kind.__name__  # redis-py and kombu show it
    return Lasting
