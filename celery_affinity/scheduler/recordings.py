"""The current or last recording: there is at most one at a time.

One key has its id and its end, another has the pages of the workers. A recording ends at a fixed time, and its
keys expire, because the process that began it can die.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from redis.exceptions import ResponseError, WatchError

from ..clock import SECOND_US
from ..schema.values import decode_text
from .scheduler import Scheduler

_RECORDING = re.compile(r"([!-~]+) (\d{1,18}) (\d{1,18}) (\d{1,18})")
#: Number of pages read by one command.
_PAGES_PER_READ = 200
#: Maximum number of attempts while other processes begin a recording.
_MAX_ATTEMPTS = 5


class Recording(NamedTuple):
    """A recording, in server time."""

    id: str
    since_us: int
    until_us: int
    kept_ms: int  #: the time at which its keys expire

    @property
    def words(self) -> str:
        return f"{self.id} {self.since_us} {self.until_us} {self.kept_ms}"

    @property
    def is_leased(self) -> bool:
        """True if the recording ends soon unless its reader extends it at each fetch, like `lab record --for`."""
        return self.kept_ms * 1000 <= self.until_us + SECOND_US


class Page(NamedTuple):
    """A page that a worker has written."""

    number: str
    worker: str  #: the worker's facts as JSON
    claims: str = ""  #: text that `trace_assembly` parses
    told: Sequence[str] = ()  #: the server's facts: two lines per plain job in the rows' order, then one per other job


def current_recording(scheduler: Scheduler) -> Recording | None:
    """Return the current or last recording; None if there is none, or if it is unreadable."""
    with suppress(ResponseError):  # a key of another type
        return _parse_recording(scheduler.client.get(scheduler.keys.key("recording")))
    return None


def _parse_recording(value: bytes | None) -> Recording | None:
    match = _RECORDING.fullmatch(decode_text(value))
    return Recording(match[1], int(match[2]), int(match[3]), int(match[4])) if match else None


def begin_recording(scheduler: Scheduler, id: str, *, for_s: float, kept_s: float, instead: bool = False) -> Recording:
    """Begin or extend the recording *id*, for *for_s* from now; its keys are kept *kept_s* longer.

    Returns the recording in force: a running recording with another id stays, and without *instead* also an ended one.
    """
    key = scheduler.keys.key("recording")
    for _ in range(_MAX_ATTEMPTS):
        with scheduler.client.pipeline() as pipe:
            pipe.watch(key)
            current = _parse_recording(pipe.get(key))
            now_us = scheduler.reader.now_us()
            is_other = current is not None and current.id != id
            if current is not None and is_other and (current.until_us > now_us or not instead):
                return current
            since_us = now_us if current is None or is_other else current.since_us
            until_us = now_us + round(for_s * SECOND_US)
            begun = Recording(id, since_us, until_us, until_us // 1000 + round(kept_s * 1000))
            pipe.multi()
            pipe.set(key, begun.words, px=max(1, begun.kept_ms - now_us // 1000))
            if current is not None and is_other:
                pipe.unlink(scheduler.keys.key("recorded", current.id))
            with suppress(WatchError):
                pipe.execute()
                return begun
    raise WatchError("others begin recordings all the time")


def end_recording(scheduler: Scheduler, id: str) -> None:
    """End the recording *id* and delete its pages. Another recording continues."""
    key = scheduler.keys.key("recording")
    with scheduler.client.pipeline() as pipe:
        pipe.watch(key)
        current = _parse_recording(pipe.get(key))
        pipe.multi()
        if current is not None and current.id == id:
            pipe.unlink(key)
        pipe.unlink(scheduler.keys.key("recorded", id))
        with suppress(WatchError):
            pipe.execute()


def recording_pages(scheduler: Scheduler, id: str, after: str = "-") -> Iterator[Page]:
    """Yield the pages after the page with the number *after*."""
    key, client = scheduler.keys.key("recorded", id), scheduler.client
    while True:
        entries = client.xrange(key, min=after if after == "-" else f"({after}", max="+", count=_PAGES_PER_READ)
        for number, fields in entries:
            after = decode_text(number)
            worker, claims, told = (decode_text(fields.get(name)) for name in (b"worker", b"claims", b"told"))
            yield Page(after, worker, claims, told.split("\n"))
        if len(entries) < _PAGES_PER_READ:
            return


def forget_pages(scheduler: Scheduler, id: str, up_to: str) -> None:
    """Delete the pages up to the page with the number *up_to*."""
    ms, _, nth = up_to.partition("-")
    scheduler.client.xtrim(scheduler.keys.key("recorded", id), minid=f"{ms}-{int(nth) + 1}", approximate=False)
