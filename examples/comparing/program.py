"""How such an example begins and ends: a server, the signals that stop it, and no key left behind."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from rich.console import Console

from examples.comparing.processes import INTERRUPTIONS, Processes

#: Longest wait, s, for workers that start: a busy computer takes its time, and one that ends is noticed at once.
BOOT_S = 120.0


class DemoError(Exception):
    """The example cannot go on; the message is for a person."""


class Interrupted(BaseException):  # as KeyboardInterrupt is: nothing may take it for an error
    """Ctrl-C, or another signal that ends the example."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(console: Console, program: Callable[[], int]) -> int:
    """Return the exit code of *program*; 2 for a DemoError, which is printed, and 128 + n for signal n."""
    for number in INTERRUPTIONS:
        signal.signal(number, _interrupt)
    try:
        return program()
    except DemoError as exc:
        console.print(str(exc), style="red", markup=False, soft_wrap=True)
        return 2
    except Interrupted as exc:
        console.print("\nStopped; no process is left behind.")
        return 128 + exc.number


def _interrupt(number: int, _: object) -> None:
    raise Interrupted(number)


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a server: the user's, or one of our own that ends with the example."""
    if url := os.environ.get("REDIS_URL"):
        if not url.startswith(("redis://", "rediss://")):
            raise DemoError("REDIS_URL must begin with redis:// or rediss:// here.")
        try:
            redis.Redis.from_url(url, socket_connect_timeout=5).ping()
        except redis.RedisError as exc:
            raise DemoError(f"The server of REDIS_URL does not answer: {exc}") from None
        yield url
        return
    # Not at the top: with a server of one's own, the package of the embedded one need not be there.
    from celery_affinity.embedded import EmbeddedServer

    with EmbeddedServer() as own:
        yield own.url


def watch(processes: Processes, follow: Callable[[], None], patience_s: float, done: Callable[[], bool]) -> bool:
    """Call *follow* until it is *done*, and return whether it was before the patience ended."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        follow()
        if done():
            return True
        if name := processes.failed():
            log = processes.log(name)
            raise DemoError(f"The process '{name}' has ended: {_last_line(log)}\nIts log is {log}")
        time.sleep(0.1)
    return False


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it wrote nothing"


def forget(url: str, keyprefix: str) -> None:
    """Remove the example's keys; the server may be the user's own."""
    try:
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(f"{keyprefix}*", count=1000):
                client.unlink(key)
    except redis.RedisError:
        pass  # the server ended with the example
