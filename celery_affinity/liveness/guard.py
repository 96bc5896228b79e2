"""The address of a worker's server and the worker's login, as JSON can hold them: the guard connects by these.

The guard: a small process that sends heartbeats for its worker, and reports the worker's death within a second.

The worker itself can do neither while a C call holds the interpreter, a greenlet never yields, or the solo pool is in a
long task; and no other process sees at once that the worker was killed. This module is the worker's side, which starts
the guard; the guard runs `program`.
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

import redis
from redis.sentinel import SentinelConnectionPool

from ..log_limit import limited_logger
from ..lua.library import server_function
from ..scheduler.scheduler import Scheduler
from .guard_process import GuardedWorker, GuardUpdate
from .pulse import Pulse
from .redis_client import TLS, Address


def address_of(pool: redis.ConnectionPool) -> Address:
    """Return the address of the server of *pool*.

    Raises ValueError for a connection that the guard must not make: the guard would verify less than the worker does.
    """
    connection: Any = pool.connection_class(**pool.connection_kwargs)  # not opened: read for redis-py's defaults
    username, password = _login(connection)
    address = Address(
        host=getattr(connection, "host", None),
        port=int(getattr(connection, "port", None) or 0),
        path=getattr(connection, "path", None),
        username=username,
        password=password,
        db=int(connection.db or 0),
        client_name=connection.client_name,
        tls=_tls(connection),
    )
    if isinstance(pool, SentinelConnectionPool):
        address["sentinels"] = [address_of(each.connection_pool) for each in pool.sentinel_manager.sentinels]
        address["master"] = pool.service_name
    cluster = getattr(connection, "cluster", None)
    if cluster is not None:
        address["nodes"], address["slot"] = [tuple(each) for each in cluster.nodes], cluster.slot
    return address


def has_credential_provider(pool: redis.ConnectionPool) -> bool:
    """Return whether connections of *pool* log in by a provider, whose next answer may be another login."""
    return pool.connection_kwargs.get("credential_provider") is not None


def _login(connection: Any) -> tuple[str | None, str | None]:
    """Return username and password, by the credential provider if there is one."""
    provider = getattr(connection, "credential_provider", None)
    if provider is None:
        return connection.username, connection.password
    *username, password = provider.get_credentials()
    return (username[0] if username else None), password


def _tls(connection: Any) -> TLS | None:
    if not hasattr(connection, "cert_reqs"):
        return None
    if connection.ssl_validate_ocsp or connection.ssl_validate_ocsp_stapled:
        raise ValueError("It cannot check a certificate's status (OCSP), which the worker's settings require.")
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


logger = limited_logger(__name__)

#: Code that the guard's interpreter runs: `program` without celery_affinity's __init__, which imports Celery. A guard
#: has to be small, and ready at once.
_PROGRAM = f"""
import sys, types
package = sys.modules[{__package__!r}] = types.ModuleType({__package__!r})
package.__path__ = [sys.argv[1]]
from {__package__}.guard_process import main
main()
"""

_ARROWS = ("heartbeat", "recover", "claim")

#: Lifetime, s, below which a guard counts as failed; and longest pause, s, before another guard is started. The pause
#: doubles with each failure.
_LIVES_S = 10.0
_LONGEST_PAUSE_S = 300.0

#: Interval, s, at which a provider of logins is asked for the guard: the guard may have to connect at any moment, above
#: all when the worker has died. Shorter than the worker timeout by default.
_ASKS_AGAIN_S = 15.0

#: Longest wait, s, for a guard that was told to end, and for a thread that is in `Guard.tend`.
_LEAVES_WITHIN_S = 2.0

#: Signals that a service manager or a terminal sends to all of its processes. The worker may take its time to end, and
#: is guarded meanwhile; the guard ends with the worker.
_NOT_FOR_A_GUARD = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


class ForkMarker:
    """A mark of this process and of all its forks: a pipe to which no process writes. A fork that execs loses the mark.

    A worker makes the mark before its pool forks processes.
    """

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        weakref.finalize(self, _close, self.read, self.write)


def _close(*descriptors: int) -> None:
    for each in descriptors:
        with suppress(OSError):
            os.close(each)


def end_orphans() -> Callable[..., None]:
    """Return a handler for the start of a pool process: it ends the process if the worker was killed meanwhile.

    Celery ends a pool process with its worker only from a certain moment on: a process that gets there after the
    worker's death would wait for work for ever.
    """
    parent = os.getpid()

    def end(**_: object) -> None:
        if os.getpid() != parent != os.getppid():  # in the solo pool, the worker itself runs this
            os._exit(1)

    return end


@contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Block *signals* in this thread. A process started meanwhile inherits the block: the signals never reach it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Guard:
    """The guard of this process: the worker with the id *worker* and the node name *name*.

    *interval_s*: the time between two heartbeats. *ends_children*: whether the pool's processes are forks of this
    process; the guard then ends them after this process' death.
    """

    def __init__(
        self, worker: str, name: str, interval_s: float, *, pulse: Pulse, kin: ForkMarker, ends_children: bool
    ) -> None:
        self._worker = worker
        self._name = name
        self._interval_s = interval_s
        self._pulse = pulse
        self._kin = kin
        self._ends_children = ends_children
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._scheduler: Scheduler | None = None
        self._told: Address | None = None
        self._asks_again_s = 0.0
        self._asking: threading.Thread | None = None
        self._started_s = self._next_s = 0.0
        self._pause_s = 1.0
        self._dismissed = False

    @property
    def is_there(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id of the guard; None while there is no guard."""
        process = self._process
        return process.pid if process is not None and self.is_there else None

    def tend(self, scheduler: Scheduler) -> None:
        """Start a guard if there is none. Tell a running guard the server of a new *scheduler*. Raises nothing."""
        with self._lock:
            if self._dismissed:
                return
            try:
                if not self.is_there:
                    self._replace(scheduler)
                elif scheduler is not self._scheduler:
                    self._scheduler = scheduler
                    self._tell_server(address_of(scheduler.client.connection_pool))
                else:
                    self._ask_now_and_then(scheduler)
            except Exception as exc:
                self._pause()
                logger.warning(
                    "No guard: this worker's death will be noticed only after affinity_worker_timeout. %s", exc
                )

    def dismiss(self) -> None:
        """End the guard, for good. Only for a worker that has left, since the guard alone reports a death at once."""
        self._dismissed = True
        if not self._lock.acquire(timeout=_LEAVES_WITHIN_S):  # `tend` may wait for a password or a fork
            logger.warning(
                "The guard has been restarting for over %g s: it will end with this process", _LEAVES_WITHIN_S
            )
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
            Guard._send(process, GuardUpdate(leave=True))
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
            logger.warning("Not waiting for the guard, pid %d, which was killed but does not end", process.pid)

    # -- logins that a provider knows

    def _ask_now_and_then(self, scheduler: Scheduler) -> None:
        """Begin to ask the provider of logins, if there is one, in a thread of its own: the provider may hang."""
        now_s = time.monotonic()
        is_asked = self._asking is not None and self._asking.is_alive()
        if is_asked or now_s < self._asks_again_s or not has_credential_provider(scheduler.client.connection_pool):
            return
        self._asks_again_s = now_s + _ASKS_AGAIN_S
        self._asking = threading.Thread(target=self._ask, args=(scheduler,), name="affinity-logins", daemon=True)
        self._asking.start()

    def _ask(self, scheduler: Scheduler) -> None:
        """Tell the guard another login, if the provider knows one. Raises nothing."""
        try:
            server = address_of(scheduler.client.connection_pool)
            with self._lock:
                if scheduler is self._scheduler and server != self._told and self.is_there and not self._dismissed:
                    self._tell_server(server)
        except Exception as exc:
            logger.warning("The guard keeps the login that it has: %s", exc)

    # -- starting and telling it

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
        charge = self._charge(scheduler)
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(Path(__file__).parent)]
        with _blocked(_NOT_FOR_A_GUARD):
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                [*command, f"guard of {self._name}"],  # for `ps`
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                bufsize=0,
                pass_fds=[self._pulse.fileno(), self._kin.read],
                start_new_session=True,  # Ctrl-C is for the worker
            )
        self._started_s = time.monotonic()
        self._scheduler, self._told = scheduler, charge["server"]
        self._tell(charge)

    def _charge(self, scheduler: Scheduler) -> GuardedWorker:
        return GuardedWorker(
            worker=self._worker,
            name=self._name,
            interval_s=self._interval_s,
            pulse=self._pulse.fileno(),
            kin=(self._kin.read, self._kin.write),
            ends_children=self._ends_children,
            parent=os.getpid(),
            session=os.getsid(0),
            server=address_of(scheduler.client.connection_pool),
            arrows={name: [str(word) for word in scheduler.command((server_function(name), []))] for name in _ARROWS},
            loads=list(scheduler.way.loading(_ARROWS[0])),
            log_file=_log_file(),
        )

    def _tell_server(self, server: Address) -> None:
        self._told = server
        self._tell(GuardUpdate(server=server))

    def _tell(self, message: GuardedWorker | GuardUpdate) -> None:
        assert self._process is not None
        self._send(self._process, message)

    @staticmethod
    def _send(process: "subprocess.Popen[bytes]", message: GuardedWorker | GuardUpdate) -> None:
        assert process.stdin is not None, "opened by _start"
        unsent = memoryview(json.dumps(message).encode() + b"\n")
        while unsent:
            unsent = unsent[process.stdin.write(unsent) :]


def _log_file() -> str | None:
    """Return the file of Celery's ``--logfile``; None if the log goes to the standard error alone."""
    handlers = [*logging.getLogger().handlers, *logging.getLogger("celery").handlers]
    return next((each.baseFilename for each in handlers if isinstance(each, logging.FileHandler)), None)
