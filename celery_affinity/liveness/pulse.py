"""The time at which an event loop ran last, in memory that the guard can read while the worker's interpreter is stuck.

The guard imports this module too, so nothing but the standard library is imported here.
"""

import mmap
import os
import struct
import time
import weakref

#: Age, s, of the last iteration above which an event loop stands still. An idle loop iterates every 2 s (`transport`).
STALLED_AFTER_S = 3.0

_SIZE = 8


class Pulse:
    """The worker's side. The guard gets the descriptor `fileno()`, which is closed with the object."""

    def __init__(self) -> None:
        self._descriptor = _file_in_memory()
        weakref.finalize(self, os.close, self._descriptor)
        os.truncate(self._descriptor, _SIZE)
        self._map = mmap.mmap(self._descriptor, _SIZE)
        self._at_s = memoryview(self._map).cast("d")
        self.note_run()

    def fileno(self) -> int:
        return self._descriptor

    def note_run(self) -> bool:
        """Record that the loop runs. Return whether the loop stood still before."""
        stood_still = self.stands_still
        self._at_s[0] = time.monotonic()
        return stood_still

    @property
    def age_s(self) -> float:
        """Time since the last iteration, s."""
        return time.monotonic() - float(self._at_s[0])

    @property
    def stands_still(self) -> bool:
        return self.age_s > STALLED_AFTER_S


def _file_in_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("celery_affinity-pulse")
    import tempfile  # not at the top: the guard needs none, nor do systems with memory files

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class PulseReader:
    """The guard's side."""

    def __init__(self, fileno: int) -> None:
        self._map = mmap.mmap(fileno, _SIZE, access=mmap.ACCESS_READ)

    @property
    def ran_at_s(self) -> float:
        """Time of the last iteration, s, on the monotonic clock, which all processes of a machine share."""
        (at_s,) = struct.unpack("d", self._map[:_SIZE])
        return float(at_s)
