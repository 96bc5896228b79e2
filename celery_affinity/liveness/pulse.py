"""Time of an event loop's last iteration, readable for the guard while the worker's interpreter is blocked.

The guard imports this module too, so it only imports the standard library.
"""

import mmap
import os
import struct
import time
import weakref

#: Seconds after the last iteration from which an event loop is stalled. An idle loop iterates every 2 s (`transport`).
STALLED_AFTER_S = 3.0

_SIZE = 8


class Pulse:
    """The worker's side. The guard inherits the descriptor `fileno()`, which is closed with the object."""

    def __init__(self) -> None:
        self._descriptor = _open_memory_file()
        weakref.finalize(self, os.close, self._descriptor)
        os.truncate(self._descriptor, _SIZE)
        self._map = mmap.mmap(self._descriptor, _SIZE)
        self._ran_at_s = memoryview(self._map).cast("d")
        self.note_run()

    def fileno(self) -> int:
        return self._descriptor

    def note_run(self) -> bool:
        """Record that the loop runs. Return True if it was stalled before."""
        was_stalled = self.stands_still
        self._ran_at_s[0] = time.monotonic()
        return was_stalled

    @property
    def age_s(self) -> float:
        """Seconds since the last iteration."""
        return time.monotonic() - float(self._ran_at_s[0])

    @property
    def stands_still(self) -> bool:
        return self.age_s > STALLED_AFTER_S


def _open_memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("celery_affinity-pulse")
    import tempfile  # imported here, because the guard and systems with memory files do not need it

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class PulseReader:
    """The guard's side."""

    def __init__(self, fileno: int) -> None:
        self._map = mmap.mmap(fileno, _SIZE, access=mmap.ACCESS_READ)

    @property
    def ran_at_s(self) -> float:
        """Time of the last iteration in seconds, on the monotonic clock that all processes of a machine share."""
        (ran_at_s,) = struct.unpack("d", self._map[:_SIZE])
        return float(ran_at_s)
