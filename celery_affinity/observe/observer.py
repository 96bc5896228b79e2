"""The state of the fleet for a process that serves it: Flower, and the command `metrics`."""

import asyncio
import logging
import threading
from contextlib import suppress

from kombu import Connection

from .cohorts import metrics
from .metrics import Metrics

logger = logging.getLogger(__name__)

#: Longest waits, s, for a connection and for a reply, unless the transport options say otherwise: as long as Flower
#: waits.
_CONNECT_TIMEOUT_S = 1.0
_REPLY_TIMEOUT_S = 2.0


class Observer:
    """Reads the state of the fleet, on one connection, for what shows it to others: *shown_by*, in the log."""

    def __init__(self, connection: Connection, shown_by: str = "Flower") -> None:
        self._origin = connection
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
        self._connection = _connected(self._origin)
        return self._status()

    def _status(self) -> Metrics:
        assert self._connection is not None, "made by _read"
        return metrics(self._connection.default_channel.fleet)

    def close(self) -> None:
        """Give the connection up."""
        with self._lock:
            self._forget_connection()

    def _forget_connection(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.release()
            self._connection = None


def _connected(origin: Connection) -> Connection:
    options = {
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        "socket_timeout": _REPLY_TIMEOUT_S,
        **origin.transport.client.transport_options,  # with the scheme: a clone has no URL
    }
    connection = origin.clone(transport_options=options)
    try:
        # One try for each URL: a person waits for the page.
        return connection.ensure_connection(max_retries=len(connection.alt), interval_start=0, interval_step=0)
    except BaseException:
        connection.release()
        raise
