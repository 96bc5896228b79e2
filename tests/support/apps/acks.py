"""`tests.support.apps.typed` in a solo worker with a fault around the early ack of a job.

``FAULT`` names the fault, and whether it is injected before or after the ack is sent. The first two jobs run without a
fault: the server gets its scripts with the first job, and the end of the second job proves the connection for acks.
"""

import os
import signal
import socket
from functools import wraps
from itertools import count

from celery_affinity.leases.outbox import EndReporter
from celery_affinity.worker.request_end import EndOfTask

from .typed import app, early, late  # noqa: F401  # they are part of it

SIGNALS = {"killed": signal.SIGKILL, "suspended": signal.SIGSTOP}

what, _, when = os.environ["FAULT"].partition(" ")
SPARED = 2
_numbers = count(1)
_kept = []
_on_accepted, _ack_now = EndOfTask.on_accepted, EndReporter.ack_now


def _strike():
    os.kill(os.getpid(), SIGNALS[what])


@wraps(_on_accepted)
def on_accepted(self, *args):
    EndReporter.is_spared = next(_numbers) <= SPARED
    return _on_accepted(self, *args)


@wraps(_ack_now)
def ack_now(self):
    if self.is_spared:
        _ack_now(self)
        return
    in_flight = self._host.in_flight
    if when == "before":
        _strike()
    if what == "swallowed" and not _kept:
        assert in_flight.is_proven
        connection = in_flight._connection
        _kept.append(connection._sock)
        connection._sock, other = socket.socketpair()  # sent bytes are never read, and cause no error
        connection._sock.settimeout(connection.socket_timeout)
        _kept.append(other)
    _ack_now(self)
    if when == "after":
        assert in_flight.is_under_way, "no thread waited for the reply"
        _strike()


EndOfTask.on_accepted, EndReporter.ack_now = on_accepted, ack_now
