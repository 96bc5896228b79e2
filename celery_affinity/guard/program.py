"""The guard's program: it beats for the worker that started it, and reports that worker's death.

`guard` runs it in an interpreter of its own, which has only the standard library and the modules below. What it has to
know comes as lines of JSON through its standard input, the first one whole, later ones what has changed; nothing of it
stands in an argument or the environment.

The main thread watches the worker and the pipe; the beats have a thread of their own, since a server that does not
answer must not keep a death from being noticed.
"""

import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .guarded import Parent
from .pulse import STALLED_AFTER_S
from .redis_client import Connection, ServerError

#: How soon the guard looks again at what stands still, is stopped, or did not answer, s.
_LOOK_AGAIN_S = 0.25

#: How soon it looks for its parent where a process cannot be waited for, s.
_LOOK_FOR_PARENT_S = 0.25

#: Longest wait for a connection or a reply, s: of a beat, and of the report of a death.
_BEAT_TIMEOUT_S = 2.0
_REPORT_TIMEOUT_S = 1.0

#: The longest that the guard outlives its worker, s; and how much of it may go for the end of the pool's processes.
_OUTLIVES_S = 1.0
_KILL_S = 0.6


class Arrows:
    """What a guard says to the scheduler. Each raises OSError or ServerError; all may be repeated."""

    def __init__(self, charge: dict[str, Any], timeout_s: float) -> None:
        self._charge = charge
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._server: dict[str, Any] = {}

    def beat(self, turns: bool) -> None:
        """Say that the worker lives, and whether its event loop turns."""
        again = True
        while again:
            _, again, more = _parts(self._run("beat", self._charge["worker"], int(turns)), 3)
            self._go_on(more)

    def recover(self) -> int:
        """Say that the worker is dead. Return how many jobs came back."""
        recovered, again = 0, True
        while again:
            again, count, more = _parts(self._run("recover", self._charge["worker"]), 3)
            recovered += count
            self._go_on(more)
        return recovered

    def _go_on(self, more: bytes) -> None:
        """Claim on, as `scheduler.Scheduler` does."""
        while types := more.split():
            (more,) = _parts(self._run("claim", *types), 1)

    def _run(self, arrow: str, *arguments: Any) -> Any:
        script = self._charge["scripts"][arrow]
        try:
            return self._call("EVALSHA", script["sha"], 1, self._charge["base"], *arguments)
        except ServerError as exc:
            if not str(exc).startswith("NOSCRIPT"):
                raise
            return self._call("EVAL", script["source"], 1, self._charge["base"], *arguments)

    def _call(self, *words: Any) -> Any:
        """Call the server; after any error but a lost script, the next call goes to a new connection."""
        if self._connection is None or self._server is not self._charge["server"]:
            self.close()
            self._server = self._charge["server"]
            self._connection = Connection(self._server, self._timeout_s)
        try:
            return self._connection.call(*words)
        except (OSError, ServerError) as exc:
            if not str(exc).startswith("NOSCRIPT"):
                self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _parts(reply: Any, number: int) -> list[Any]:
    """Return the parts of a script's reply, the last of them a text. Raises ConnectionError if it is none."""
    if isinstance(reply, list) and len(reply) == number and isinstance(reply[-1], bytes):
        return reply
    raise ConnectionError(f"the server gave a reply that is none of a script's: {reply!r:.200}")


class Watch:
    """Watches over one worker, as its *charge* says (`guard.Guard`)."""

    def __init__(self, charge: dict[str, Any]) -> None:
        self._charge = charge
        self._worker = Parent(charge["parent"], charge["session"], charge["pulse"], charge["kin"])

    def run(self, changed: Callable[[], list[dict[str, Any]] | None]) -> None:
        """Guard until the worker leaves or dies. *changed* returns news of the charge, None if nobody can have any."""
        threading.Thread(target=self._beat_or_end, daemon=True).start()
        handle = self._worker.handle
        watched = [0] if handle is None else [0, handle]
        while not self._worker.is_gone:
            ready = select.select(watched, [], [], _LOOK_FOR_PARENT_S if handle is None else None)[0]
            if 0 in ready:
                changes = changed()
                if changes is None:
                    break
                for change in changes:
                    if "leave" in change:
                        return
                    self._charge.update(change)
            if handle in ready:
                break
        self._report()

    def _report(self) -> None:
        until_s = time.monotonic() + _OUTLIVES_S
        name = f"{self._charge['name']} (pid {self._worker.pid})"
        if self._charge["ends_children"] and not self._worker.end_children(time.monotonic() + _KILL_S):
            _say(f"{name} died, but not what it forked: the broker will notice by silence")
            return
        told = threading.Event()
        threading.Thread(target=self._tell, args=(name, told), daemon=True).start()
        if not told.wait(max(0.0, until_s - time.monotonic())):
            _say(f"{name} died, and the broker does not answer: it will notice by silence")

    def _tell(self, name: str, told: threading.Event) -> None:
        arrows = Arrows(self._charge, _REPORT_TIMEOUT_S)
        while not told.is_set():
            try:
                recovered = arrows.recover()
            except (OSError, ServerError):
                time.sleep(0.05)
                continue
            _say(f"{name} died; jobs that came back from it: {recovered}")
            told.set()

    def _beat_or_end(self) -> None:
        try:
            self._beat()
        finally:
            os._exit(1)  # the worker starts another guard; one that does not beat is of no use

    def _beat(self) -> None:
        """Beat every so often, and at once when the worker's event loop stands still or turns again."""
        worker, interval_s = self._worker, self._charge["interval_s"]
        arrows = Arrows(self._charge, _BEAT_TIMEOUT_S)
        said_it_turns = True
        next_s = time.monotonic() + interval_s
        pause_s = _LOOK_AGAIN_S
        while True:
            now_s, turns = time.monotonic(), worker.turns
            if worker.is_gone or worker.is_stopped:
                time.sleep(_LOOK_AGAIN_S)
                next_s = now_s
                continue
            if now_s >= next_s or turns != said_it_turns:
                try:
                    arrows.beat(turns)
                    said_it_turns, next_s, pause_s = turns, now_s + interval_s, _LOOK_AGAIN_S
                except (OSError, ServerError):
                    time.sleep(pause_s)
                    next_s, pause_s = now_s, min(interval_s, 2 * pause_s)
                continue
            look_s = worker.turned_at_s + STALLED_AFTER_S if turns else now_s + _LOOK_AGAIN_S
            time.sleep(max(0.01, min(look_s + 0.01, next_s) - now_s))


def _say(text: str) -> None:
    with suppress(OSError):  # nobody may read it any more
        print(f"celery_affinity guard: {text}", file=sys.stderr, flush=True)  # noqa: T201  # the worker's own log


class _Lines:
    """Lines of JSON from the standard input, whose end means that nobody is left to write any."""

    def __init__(self) -> None:
        self._unread = b""

    def __call__(self) -> list[dict[str, Any]] | None:
        block = os.read(0, 65536)
        if not block:
            return None
        *lines, self._unread = (self._unread + block).split(b"\n")
        return [json.loads(line) for line in lines]


def main() -> None:
    """Read the charge, and guard."""
    lines = _Lines()
    changes: list[dict[str, Any]] | None = []
    while not changes:
        changes = lines()
        if changes is None:
            return  # the worker died before it had said what to guard
    charge: dict[str, Any] = {}
    for change in changes:
        charge.update(change)
    Watch(charge).run(lines)
    os._exit(0)  # a thread may still wait for a server that does not answer
