"""Outages: transient server errors, and the reaction of each component until the server is available again.

A transient error (`is_transient`) is a server state that ends without an operator: the server loads its data, runs a
script, has no free connection or fails over, or a cluster moves or does not serve the slot. A planned failover also
interrupts blocked commands. The error does not depend on the command, which must be repeated on a new connection. As
kombu and Celery reconnect only after redis.ConnectionError, connections (`surviving_failover`), channels and
`scheduler.runner` raise transient errors as `redis.ConnectionError`. Refused writes (`refuses_writes`: MISCONF,
NOREPLICAS, OOM) last until an operator acts: workers treat them as transient, publishers raise them.

- Publishers retry lost connections and transient errors by `task_publish_retry_policy`, with the same job id, and then
  raise kombu's OperationalError. They do not retry refused writes, refused logins and `SlotRedirectError`.
- Workers keep their tasks running and reconnect after 0.05 to 1 s, also after refused writes. The outbox keeps acks and
  job ends; the heartbeat thread resends them every 0.2 s. If a worker stops in an outage, it logs a warning, and its
  claims are reclaimed after `affinity_worker_timeout`.
- A merged run waits up to 60 s for the broker, or 600 s if its task was acked early. A dispatcher then reports to the
  remaining callers.
- A guard retries a heartbeat after 0.25 s, then after doubling pauses up to the heartbeat interval. If its worker has
  died, it retries the report for 1 s; after that, `affinity_worker_timeout` applies.
- A dispatcher logs one warning and retries its tick every second; scheduled jobs wait. The outage does not count as
  silence of the workers.
- Reports and admin commands use `scheduler.cohorts`, which repeats a failed read once, then reports a cohort other than
  `default` as down. It does not repeat a change (`OutcomeUnknownError`). If `default` is down, a CLI command ends with
  an error, and the web UI responds 503.
"""

import re
from typing import Any, NamedTuple

import redis
from redis import exceptions as errors

#: Errors of a lost connection. Callers re-raise them instead of dropping data, so that Celery reconnects.
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)

#: Transient errors for which redis-py has classes. Their texts lack the error code.
_TRANSIENT_CLASSES = (
    *(errors.AskError, errors.BusyLoadingError, errors.ClusterDownError, errors.MasterDownError),
    *(errors.MovedError, errors.ReadOnlyError, errors.TryAgainError),
)

#: Prefixes of an error text: by redis-py in a pipeline, and by a server that rejects a whole transaction.
_PREFIX = r"(Command # .* of pipeline caused error: )?((EXECABORT )?Transaction discarded because of: )?-?"

#: Texts of transient errors without a class in redis-py, and of scripts whose keys are being moved.
_TRANSIENT = re.compile(
    rf"{_PREFIX}((ASK|BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MOVED|READONLY|REDIRECT|TRYAGAIN|UNBLOCKED) "
    r"|(ERR )?max number of clients "
    r"|(ERR )?(?![A-Z]{3,} ).*(to access a non local key|to access a slot not served"
    r"|while the cluster is down|undeclared keys were accessed during rehashing))",
    re.DOTALL,
)

#: Refused writes: the disk or the memory is full, or replicas are missing.
_REFUSES_WRITES = re.compile(rf"{_PREFIX}(MISCONF|NOREPLICAS|OOM) ", re.DOTALL)


def is_transient(exc: BaseException) -> bool:
    """True if *exc* is a transient error of the server, regardless of the command."""
    return isinstance(exc, _TRANSIENT_CLASSES) or (
        isinstance(exc, redis.ResponseError) and bool(_TRANSIENT.match(str(exc)))
    )


class SlotRedirectError(redis.ConnectionError):
    """A cluster node was used like a single server, and another node has the keys. Retrying is useless."""


class Redirect(NamedTuple):
    """A slot of a cluster, and the node that serves it now."""

    slot: int
    host: str
    port: int
    #: True if the slot is being migrated to the node, key by key (ASK).
    is_being_moved: bool


#: Error text of a node without the keys. redis-py before 6 raises its classes only in cluster clients.
_REDIRECT = re.compile(rf"{_PREFIX}(?P<code>MOVED|ASK) (?P<slot>\d+) (?P<host>\S*):(?P<port>\d+)")


def parse_redirect(exc: BaseException) -> Redirect | None:
    """Return the node that has the command's keys if *exc* is a MOVED or ASK error, or None."""
    if isinstance(exc, errors.AskError):  # also MOVED
        return Redirect(exc.slot_id, exc.host, exc.port, not isinstance(exc, errors.MovedError))
    match = _REDIRECT.match(str(exc)) if isinstance(exc, redis.ResponseError) else None
    if match is None:
        return None
    return Redirect(int(match["slot"]), match["host"], int(match["port"]), match["code"] == "ASK")


def refuses_writes(exc: BaseException) -> bool:
    """True if the server refuses writes now: its memory or disk is full, or replicas are missing.

    Publishers must see this error; consumers must wait.
    """
    return isinstance(exc, errors.OutOfMemoryError) or (
        isinstance(exc, redis.ResponseError) and bool(_REFUSES_WRITES.match(str(exc)))
    )


def short_traceback(exc: BaseException) -> BaseException | None:
    """Return *exc* for the argument `exc_info` of a logger, or None if the error message is sufficient.

    The message is sufficient if a server does not reply, refuses writes, or has a transient error. Such an error can
    affect thousands of tasks, and each traceback has about eighty lines.
    """
    return None if isinstance(exc, LOST) or is_transient(exc) or refuses_writes(exc) else exc


#: Error for MOVED and ASK on a connection to a single server. On cluster connections, `cluster` handles them first.
_NODE_OF_A_CLUSTER = (
    "the server is a node of a cluster, and another node has the keys: write redis-cluster:// in broker_url"
)


def surviving_failover(kind: type, *, reads: bool) -> type:
    """Return a subclass of the connection class *kind* that raises transient errors as ConnectionError, and closes.

    With *reads*, it treats refused writes in the same way; without, publishers see them.
    """

    class SurvivingConnection(kind):
        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except redis.ResponseError as exc:
                if not (is_transient(exc) or (reads and refuses_writes(exc))):
                    raise
                self.disconnect()  # replies to other commands may follow
                if parse_redirect(exc):
                    raise SlotRedirectError(_NODE_OF_A_CLUSTER) from exc
                raise redis.ConnectionError(str(exc)) from exc

    SurvivingConnection.__name__ = SurvivingConnection.__qualname__ = kind.__name__  # redis-py and kombu show it
    return SurvivingConnection
