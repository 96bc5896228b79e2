"""Ports on 127.0.0.1 that stay with their server, also while it is down.

The kernel gives a free port to whoever asks: to another server, and to any connection that goes out. One that goes out
to the port of a server that is down may even get that very port, and so connects to itself.
"""

import os
import socket
import sys
import weakref

HOST = "127.0.0.1"


class HeldPort:
    """A free port that nobody else gets as long as this object lives; on Linux: elsewhere it is only free now.

    A server may listen there that shares addresses (SO_REUSEADDR), as Valkey and Redis do. A client is refused while
    none does.
    """

    def __init__(self) -> None:
        with socket.socket() as held:
            held.bind((HOST, 0))
            self.number: int = held.getsockname()[1]
            if sys.platform == "linux":
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                weakref.finalize(self, os.close, held.detach())


def free_port() -> int:
    """Return a port that is free now."""
    return HeldPort().number
