"""The guard: a small process that beats for its worker, and reports its death within a second.

The worker itself cannot do either while a C call holds the interpreter, a greenlet never yields, or the solo pool is
in a long task; and nobody else sees at once that it was killed. Here is the worker's side; `watch` is what the guard
runs.
"""

import json
import logging
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redis.sentinel import SentinelConnectionPool

from ..server.scheduler import Scheduler
from ..server.scripts.assembling import load
from .pulse import Pulse

logger = logging.getLogger(__name__)

#: Without the package above, which imports Celery: a guard is to be small, and there at once.
_PROGRAM = f"""
import sys, types
package = sys.modules[{__package__!r}] = types.ModuleType({__package__!r})
package.__path__ = [sys.argv[1]]
from {__package__}.program import main
main()
"""

_ARROWS = ("beat", "recover", "claim")

#: A guard that ends sooner than this has failed: the next one is started after a pause that doubles, up to the longest.
_LIVES_S = 10.0
_LONGEST_PAUSE_S = 300.0

_LEAVES_WITHIN_S = 2.0


#: What ends or suspends every process of a service, or of a terminal. The worker may take its time then, and is to be
#: guarded meanwhile; the guard ends with it.
_NOT_FOR_A_GUARD = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


class Kin:
    """A mark that this process and all that it forks bear: a pipe that nobody writes to. A program has it no more.

    It must be made before the pool's processes are.
    """

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        weakref.finalize(self, _close, self.read, self.write)


def _close(*descriptors: int) -> None:
    for each in descriptors:
        with suppress(OSError):
            os.close(each)


def orphans_end() -> Callable[..., None]:
    """Return what ends a process of this one's pool, at its start, if this one was killed meanwhile.

    Celery has them end with it from a certain moment on. Who comes to that too late would wait for work for ever.
    """
    parent = os.getpid()

    def end(**_: Any) -> None:
        if os.getpid() != parent != os.getppid():  # the solo pool has none, and is at its start as well
            os._exit(1)

    return end


@contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Block *signals* in this thread; a process that starts meanwhile never gets them, not even before it is ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Guard:
    """The guard of worker *worker* in this process. *ends_children*: whether the pool's processes are its forks."""

    def __init__(
        self, worker: str, name: str, interval_s: float, *, pulse: Pulse, kin: Kin, ends_children: bool
    ) -> None:
        self._charge: dict[str, Any] = {
            "worker": worker,
            "name": name,
            "interval_s": interval_s,
            "pulse": pulse.fileno(),
            "kin": [kin.read, kin.write],
            "ends_children": ends_children,
        }
        self._marks = pulse, kin  # their descriptors are in use
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._scheduler: Scheduler | None = None
        self._started_s = self._next_s = 0.0
        self._pause_s = 1.0
        self._dismissed = False

    @property
    def is_there(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The guard's process id; None while there is none."""
        process = self._process
        return process.pid if process is not None and self.is_there else None

    def tend(self, scheduler: Scheduler) -> None:
        """See to it that a guard is there, and that it knows where *scheduler* has its server. Raises nothing."""
        with self._lock:
            if self._dismissed:
                return
            try:
                if not self.is_there:
                    self._replace(scheduler)
                elif scheduler is not self._scheduler:
                    self._scheduler = scheduler
                    self._tell({"server": describe(scheduler.client.connection_pool)})
            except Exception as exc:
                self._pause()
                logger.warning("No guard: this worker's death will be noticed by silence. %s", exc)

    def dismiss(self) -> None:
        """Have no guard any more. Do not call it for a worker of which the server still knows: it says who died."""
        self._dismissed = True
        if not self._lock.acquire(timeout=_LEAVES_WITHIN_S):  # who tends it asks for the broker's password, or forks
            logger.warning("The guard is being seen to for over %g s: it ends with this process", _LEAVES_WITHIN_S)
            return
        try:
            process, self._process = self._process, None
        finally:
            self._lock.release()
        if process is not None:
            self._end(process)

    @staticmethod
    def _end(process: "subprocess.Popen[bytes]") -> None:
        with suppress(OSError):
            Guard._send(process, {"leave": True})
        assert process.stdin is not None, "opened by _start"
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_LEAVES_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVES_WITHIN_S)
                return
            logger.warning("The guard, pid %d, does not end, though it was killed; that is not waited for", process.pid)

    # -- its pieces

    def _replace(self, scheduler: Scheduler) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        if self._process is not None:
            logger.warning("The guard ended with code %s: starting another", self._process.returncode)
            assert self._process.stdin is not None, "opened by _start"
            with suppress(OSError):
                self._process.stdin.close()
            self._process = None
            self._pause_s = 1.0 if now_s - self._started_s > _LIVES_S else self._pause_s
            self._pause()
        self._start(scheduler)

    def _pause(self) -> None:
        self._next_s = time.monotonic() + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)

    def _start(self, scheduler: Scheduler) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise RuntimeError("there is no Python interpreter to run it")
        told = {
            "parent": os.getpid(),
            "session": os.getsid(0),
            "server": describe(scheduler.client.connection_pool),
            "base": scheduler.keys.base,
            "scripts": {name: {"sha": load(name).sha, "source": load(name).source} for name in _ARROWS},
        }
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(Path(__file__).parent)]
        with _blocked(_NOT_FOR_A_GUARD):
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                [*command, f"guard of {self._charge['name']}"],  # ps shows whose it is
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                bufsize=0,
                pass_fds=[self._charge["pulse"], self._charge["kin"][0]],
                start_new_session=True,  # Ctrl-C is for the worker
            )
        self._started_s = time.monotonic()
        self._scheduler = scheduler
        self._tell({**self._charge, **told})

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        self._send(self._process, message)

    @staticmethod
    def _send(process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
        assert process.stdin is not None, "opened by _start"
        unsent = memoryview(json.dumps(message).encode() + b"\n")
        while unsent:
            unsent = unsent[process.stdin.write(unsent) :]


def describe(pool: Any) -> dict[str, Any]:
    """Return what `wire.Connection` needs to reach the server of *pool*, a redis-py pool, as JSON can hold it.

    Raises ValueError for a connection that the guard must not make, since it would verify less than the worker's.
    """
    connection = pool.connection_class(**pool.connection_kwargs)  # it connects later, but knows its defaults
    username, password = _login(connection)
    server: dict[str, Any] = {
        "host": getattr(connection, "host", None),
        "port": int(getattr(connection, "port", None) or 0),
        "path": getattr(connection, "path", None),
        "username": username,
        "password": password,
        "db": int(connection.db or 0),
        "client_name": connection.client_name,
        "tls": _tls(connection),
    }
    if isinstance(pool, SentinelConnectionPool):
        sentinels = pool.sentinel_manager.sentinels
        server["sentinels"] = [describe(each.connection_pool) for each in sentinels]
        server["master"] = pool.service_name
    return server


def _login(connection: Any) -> tuple[str | None, str | None]:
    provider = getattr(connection, "credential_provider", None)
    if provider is None:
        return connection.username, connection.password
    *username, password = provider.get_credentials()
    return (username[0] if username else None), password


def _tls(connection: Any) -> dict[str, Any] | None:
    if not hasattr(connection, "cert_reqs"):
        return None
    if connection.ssl_validate_ocsp or connection.ssl_validate_ocsp_stapled:
        raise ValueError("It cannot ask for a certificate's status (OCSP), as the worker is told to.")
    authorities = connection.ca_data
    return {
        "check_hostname": connection.check_hostname,
        "cert_reqs": int(connection.cert_reqs),
        "include_verify_flags": [int(flag) for flag in getattr(connection, "ssl_include_verify_flags", None) or ()],
        "exclude_verify_flags": [int(flag) for flag in getattr(connection, "ssl_exclude_verify_flags", None) or ()],
        "certfile": connection.certfile,
        "keyfile": connection.keyfile,
        "password": connection.certificate_password,
        "cafile": connection.ca_certs,
        "capath": connection.ca_path,
        "cadata": ssl.DER_cert_to_PEM_cert(authorities) if isinstance(authorities, bytes) else authorities,
        "min_version": None if connection.ssl_min_version is None else int(connection.ssl_min_version),
        "ciphers": connection.ssl_ciphers,
    }
