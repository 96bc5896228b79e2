"""Runs an example: provides a server, stops on signals, and deletes the example's keys at the end."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from rich.console import Console

from examples.comparing.processes import INTERRUPTIONS, Processes

#: Maximum number of seconds until the workers are ready: long, because `watch` notices a failed worker immediately.
BOOT_S = 120.0


class DemoError(Exception):
    """The example cannot continue. The message is shown to the user."""


class Interrupted(BaseException):  # not an Exception, like KeyboardInterrupt, so that no `except Exception` catches it
    """Ctrl-C, SIGTERM or SIGHUP."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(console: Console, program: Callable[[], int]) -> int:
    """Call *program* and return its exit code: 2 after a DemoError, which is printed, and 128 + n after signal n."""
    for number in INTERRUPTIONS:
        signal.signal(number, _interrupt)
    try:
        return program()
    except DemoError as exc:
        console.print(str(exc), style="red", markup=False, soft_wrap=True)
        return 2
    except Interrupted as exc:
        console.print("\nStopped. All processes of the example have ended.")
        return 128 + exc.number


def _interrupt(number: int, _: object) -> None:
    raise Interrupted(number)


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a server: REDIS_URL, or an embedded server that stops with the example."""
    if url := os.environ.get("REDIS_URL"):
        if not url.startswith(("redis://", "rediss://")):
            raise DemoError("REDIS_URL must begin with redis:// or rediss:// for this example.")
        try:
            redis.Redis.from_url(url, socket_connect_timeout=5).ping()
        except redis.RedisError as exc:
            raise DemoError(f"The server of REDIS_URL does not answer: {exc}") from None
        yield url
        return
    # Not imported at the top: with REDIS_URL, the package of the embedded server does not have to be installed.
    from celery_affinity.embedded import EmbeddedServer

    with EmbeddedServer() as embedded:
        yield embedded.url


def watch(processes: Processes, follow: Callable[[], None], max_s: float, is_done: Callable[[], bool]) -> bool:
    """Call *follow* repeatedly until *is_done*. Return False if that takes more than *max_s* seconds.

    Raises DemoError if a process fails.
    """
    deadline = time.monotonic() + max_s
    while time.monotonic() < deadline:
        follow()
        if is_done():
            return True
        if name := processes.failed():
            log = processes.log(name)
            raise DemoError(f"The process '{name}' has ended: {_last_line(log)}\nIts log is {log}")
        time.sleep(0.1)
    return False


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "its log is empty"


def delete_keys(url: str, keyprefix: str) -> None:
    """Delete the example's keys, because REDIS_URL can be a server that other applications use."""
    try:
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(f"{keyprefix}*", count=1000):
                client.unlink(key)
    except redis.RedisError:
        pass  # the server has already stopped
