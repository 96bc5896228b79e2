"""`tests.apps.typed` in a solo worker to which something happens where it acks its second job, before that starts.

``FAULT`` says what, and whether before the ack is sent or after it.
"""

import os
import signal
import socket
from functools import wraps
from itertools import count

from celery_affinity.membership import Membership
from celery_affinity.request import EndOfTask

from .typed import app, early, late  # noqa: F401  # they are part of it

SIGNALS = {"killed": signal.SIGKILL, "suspended": signal.SIGSTOP}

what, _, when = os.environ["FAULT"].partition(" ")
_acks = count(1)
_kept = []
_on_accepted, _ack_now = EndOfTask.on_accepted, Membership.ack_now


def _strike():
    os.kill(os.getpid(), SIGNALS[what])


@wraps(_on_accepted)
def on_accepted(self, *args):
    self.nth = next(_acks)
    if self.nth == 2 and when == "before":
        _strike()
    return _on_accepted(self, *args)


@wraps(_ack_now)
def ack_now(self, in_flight):
    if self.claims.has_acks and what == "swallowed" and in_flight.is_proven:
        connection = in_flight._connection
        _kept.append(connection._sock)
        connection._sock, other = socket.socketpair()  # nobody reads what is sent, or says that it went nowhere
        connection._sock.settimeout(connection.socket_timeout)
        _kept.append(other)
    has_acks = self.claims.has_acks
    _ack_now(self, in_flight)
    if has_acks and in_flight.is_under_way and when == "after":
        _strike()


EndOfTask.on_accepted, Membership.ack_now = on_accepted, ack_now
