"""The state of the fleet for a process that serves it: Flower, and the command `metrics`.

Both hand in the way to the fleet (`transport.reach.fleet_on`), which is in a room above this one.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from kombu import Connection

from ..log_limit import limited_logger
from ..server.fleet import WholeFleet
from .cohorts import metrics
from .metrics import Metrics

logger = limited_logger(__name__)

#: Returns all cohorts on a connection, which it opens; the second argument is the connection's transport.
FleetOn = Callable[[Connection, object], WholeFleet]

#: Longest waits, s, for a connection and for a reply, unless the transport options say otherwise: as long as Flower
#: waits.
_CONNECT_TIMEOUT_S = 1.0
_REPLY_TIMEOUT_S = 2.0


class Observer:
    """Reads the state of the fleet, on one connection, for what shows it to others: *shown_by*, in the log."""

    def __init__(self, connection: Connection, fleet_on: FleetOn, shown_by: str = "Flower") -> None:
        self._origin = connection
        self._fleet_on = fleet_on
        self._shown_by = shown_by
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._in_trouble = False
        self.latest: Metrics | None = None
        """The status as last read; None if the broker did not answer."""

    async def read(self) -> Metrics | None:
        """Do the same as `read_now` in a thread, so that a slow broker does not hold up other pages."""
        return await asyncio.get_running_loop().run_in_executor(None, self.read_now)

    def read_now(self) -> Metrics | None:
        """Return the state of the fleet; None, with a line in the log, if the broker gives none: others go on."""
        with self._lock:
            try:
                self.latest = self._read()
            except Exception as exc:  # any: Flower's own part must still work
                self._forget_connection()
                self.latest = None
                if not self._in_trouble:
                    logger.warning(
                        "%s shows no metrics of celery_affinity, because they cannot be read: %s",
                        self._shown_by,
                        exc,
                    )
                self._in_trouble = True
            else:
                if self._in_trouble:
                    logger.info("%s shows the metrics of celery_affinity again", self._shown_by)
                self._in_trouble = False
            return self.latest

    def _read(self) -> Metrics:
        if self._connection is not None:
            with suppress(Exception):
                return self._status()
            self._forget_connection()  # perhaps closed as idle; or another URL of a failover list answers now
        self._connection = _with_patience(self._origin)
        return self._status()

    def _status(self) -> Metrics:
        assert self._connection is not None, "made by _read"
        return metrics(self._fleet_on(self._connection, self._connection.transport_cls))

    def close(self) -> None:
        """Give the connection up."""
        with self._lock:
            self._forget_connection()

    def _forget_connection(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.release()
            self._connection = None


def _with_patience(origin: Connection) -> Connection:
    """Return a connection like *origin*, not open yet, with waits that a person who looks at a page can bear."""
    options = {
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        "socket_timeout": _REPLY_TIMEOUT_S,
        **origin.transport.client.transport_options,  # with the scheme: a clone has no URL
    }
    return origin.clone(transport_options=options)
