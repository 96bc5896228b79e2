"""When a worker's event loop last turned, in memory that another process reads while this one's interpreter is stuck.

The guard imports this module too: nothing but the standard library.
"""

import mmap
import os
import struct
import time
import weakref

#: An event loop whose last turn is older than this stands still, s. An idle one turns every 2 s (`transport`).
STALLED_AFTER_S = 3.0

_SIZE = 8


class Pulse:
    """The worker's side. Descriptor *fileno* is for the guard; it is closed with the object."""

    def __init__(self) -> None:
        self._descriptor = _file_in_memory()
        weakref.finalize(self, os.close, self._descriptor)
        os.truncate(self._descriptor, _SIZE)
        self._map = mmap.mmap(self._descriptor, _SIZE)
        self._at_s = memoryview(self._map).cast("d")
        self.turn()

    def fileno(self) -> int:
        return self._descriptor

    def turn(self) -> bool:
        """Note a turn of the loop. Return whether it stood still before."""
        stood_still = self.stands_still
        self._at_s[0] = time.monotonic()
        return stood_still

    @property
    def age_s(self) -> float:
        """Time since the last turn."""
        return time.monotonic() - float(self._at_s[0])

    @property
    def stands_still(self) -> bool:
        return self.age_s > STALLED_AFTER_S


def _file_in_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("celery_affinity-pulse")
    import tempfile  # where files are always on a disk; the guard needs none

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class PulseReader:
    """The guard's side."""

    def __init__(self, fileno: int) -> None:
        self._map = mmap.mmap(fileno, _SIZE, access=mmap.ACCESS_READ)

    @property
    def turned_at_s(self) -> float:
        """When the loop last turned, on the monotonic clock that all processes of a machine share."""
        (at_s,) = struct.unpack("d", self._map[:_SIZE])
        return float(at_s)
