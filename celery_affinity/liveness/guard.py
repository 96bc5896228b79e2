"""The worker's side of the guard, a small process that sends heartbeats and reports the worker's death within 1 s.

The worker cannot send heartbeats while a C call holds the interpreter, a greenlet does not yield, or the solo pool runs
a long task. Nor does any other process notice immediately that the worker was killed.
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
    """Return the address of the server of *pool*, and the worker's login, as JSON-serialisable data.

    Raises ValueError for a connection that the guard must not open, because it would verify less than the worker does.
    """
    connection: Any = pool.connection_class(**pool.connection_kwargs)  # not opened; used for redis-py's defaults
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
        address["sentinels"] = [address_of(sentinel.connection_pool) for sentinel in pool.sentinel_manager.sentinels]
        address["master"] = pool.service_name
    cluster = getattr(connection, "cluster", None)
    if cluster is not None:
        address["nodes"], address["slot"] = [tuple(node) for node in cluster.nodes], cluster.slot
    return address


def has_credential_provider(pool: redis.ConnectionPool) -> bool:
    """Return True if connections of *pool* log in with a credential provider, whose login can change."""
    return pool.connection_kwargs.get("credential_provider") is not None


def _login(connection: Any) -> tuple[str | None, str | None]:
    """Return username and password, from the credential provider if there is one."""
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

#: Code that the guard's interpreter runs: `guard_process` without celery_affinity's __init__, which imports Celery. A
#: guard must be small and must start fast.
_PROGRAM = f"""
import sys, types
package = sys.modules[{__package__!r}] = types.ModuleType({__package__!r})
package.__path__ = [sys.argv[1]]
from {__package__}.guard_process import main
main()
"""

_FUNCTIONS = ("heartbeat", "recover", "claim")

#: Seconds below which a guard's lifetime counts as a failure.
_MIN_LIFETIME_S = 10.0
#: Maximum number of seconds before another guard is started. The pause doubles with each failure.
_MAX_PAUSE_S = 300.0

#: Seconds between two queries of a credential provider for the guard. The guard can have to connect at any moment,
#: above all when the worker has died. Shorter than the default worker timeout.
_LOGIN_INTERVAL_S = 15.0

#: Maximum seconds to wait for a dismissed guard, and for a thread that runs `Guard.tend`.
_DISMISS_WAIT_S = 2.0

#: Signals that a service manager or a terminal sends to all of its processes. The worker can take its time to end, and
#: stays guarded until then; the guard ends with the worker.
_BLOCKED_SIGNALS = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


class ForkMarker:
    """Marks this process and all its forks: a pipe to which no process writes. A fork that calls exec loses the mark.

    A worker creates the marker before its pool forks processes.
    """

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        weakref.finalize(self, _close, self.read, self.write)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def end_orphans() -> Callable[..., None]:
    """Return a handler for the start of a pool process: it exits the process if the worker has been killed.

    Celery's own check for the worker's death starts later. A pool process that reaches it after that death would wait
    for work forever.
    """
    parent = os.getpid()

    def end(**_: object) -> None:
        if os.getpid() != parent != os.getppid():  # in the solo pool, the worker itself runs this
            os._exit(1)

    return end


@contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Block *signals* in this thread, and in processes started in this context, which inherit the block."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class Guard:
    """The guard of this process: the worker with the id *worker* and the node name *name*.

    *interval_s* is the number of seconds between two heartbeats. *ends_children* is True if the pool's processes are
    forks of this process; the guard then ends them after this process has died.
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
        self._sent_server: Address | None = None
        self._next_login_s = 0.0
        self._login_thread: threading.Thread | None = None
        self._started_s = self._next_s = 0.0
        self._pause_s = 1.0
        self._dismissed = False

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id of the guard; None while there is no guard."""
        process = self._process
        return process.pid if process is not None and self.is_running else None

    def tend(self, scheduler: Scheduler) -> None:
        """Start a guard if there is none. Send a running guard the server of a new *scheduler*. Raises nothing."""
        with self._lock:
            if self._dismissed:
                return
            try:
                if not self.is_running:
                    self._replace(scheduler)
                elif scheduler is not self._scheduler:
                    self._scheduler = scheduler
                    self._send_server(address_of(scheduler.client.connection_pool))
                else:
                    self._refresh_login_periodically(scheduler)
            except Exception as exc:
                self._pause()
                logger.warning(
                    "No guard: this worker's death will be noticed only after affinity_worker_timeout. %s", exc
                )

    def dismiss(self) -> None:
        """End the guard permanently, after the worker has left: only the guard reports a death immediately."""
        self._dismissed = True
        if not self._lock.acquire(timeout=_DISMISS_WAIT_S):  # `tend` can wait for a password or a fork
            logger.warning(
                "The guard has been restarting for over %g s: it will end with this process", _DISMISS_WAIT_S
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
            process.wait(_DISMISS_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_DISMISS_WAIT_S)
                return
            logger.warning("Not waiting for the guard, pid %d, which was killed but does not end", process.pid)

    def _refresh_login_periodically(self, scheduler: Scheduler) -> None:
        """Query the credential provider, if there is one, in a separate thread because the provider can block."""
        now_s = time.monotonic()
        is_querying = self._login_thread is not None and self._login_thread.is_alive()
        if is_querying or now_s < self._next_login_s or not has_credential_provider(scheduler.client.connection_pool):
            return
        self._next_login_s = now_s + _LOGIN_INTERVAL_S
        self._login_thread = threading.Thread(
            target=self._refresh_login, args=(scheduler,), name="affinity-logins", daemon=True
        )
        self._login_thread.start()

    def _refresh_login(self, scheduler: Scheduler) -> None:
        """Send the guard a changed login from the provider. Raises nothing."""
        try:
            server = address_of(scheduler.client.connection_pool)
            with self._lock:
                if (
                    scheduler is self._scheduler
                    and server != self._sent_server
                    and self.is_running
                    and not self._dismissed
                ):
                    self._send_server(server)
        except Exception as exc:
            logger.warning("The guard keeps its present login: %s", exc)

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
            self._pause_s = 1.0 if now_s - self._started_s > _MIN_LIFETIME_S else self._pause_s
            self._pause()
        self._start(scheduler)

    def _pause(self) -> None:
        self._next_s = time.monotonic() + self._pause_s
        self._pause_s = min(_MAX_PAUSE_S, self._pause_s * 2)

    def _start(self, scheduler: Scheduler) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise RuntimeError("there is no Python interpreter to run it")
        guarded_worker = self._guarded_worker(scheduler)
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(Path(__file__).parent)]
        with _blocked(_BLOCKED_SIGNALS):
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                [*command, f"guard of {self._name}"],  # for `ps`
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                bufsize=0,
                pass_fds=[self._pulse.fileno(), self._kin.read],
                start_new_session=True,  # Ctrl-C is for the worker
            )
        self._started_s = time.monotonic()
        self._scheduler, self._sent_server = scheduler, guarded_worker["server"]
        self._send_message(guarded_worker)

    def _guarded_worker(self, scheduler: Scheduler) -> GuardedWorker:
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
            commands={
                name: [str(part) for part in scheduler.command((server_function(name), []))] for name in _FUNCTIONS
            },
            replies={name: server_function(name).reply for name in _FUNCTIONS},
            loads=list(scheduler.way.loading(_FUNCTIONS[0])),
            log_file=_log_file(),
        )

    def _send_server(self, server: Address) -> None:
        self._sent_server = server
        self._send_message(GuardUpdate(server=server))

    def _send_message(self, message: GuardedWorker | GuardUpdate) -> None:
        assert self._process is not None
        self._send(self._process, message)

    @staticmethod
    def _send(process: "subprocess.Popen[bytes]", message: GuardedWorker | GuardUpdate) -> None:
        assert process.stdin is not None, "opened by _start"
        unsent = memoryview(json.dumps(message).encode() + b"\n")
        while unsent:
            unsent = unsent[process.stdin.write(unsent) :]


def _log_file() -> str | None:
    """Return the file of Celery's ``--logfile``; None if the log only goes to the standard error."""
    handlers = [*logging.getLogger().handlers, *logging.getLogger("celery").handlers]
    return next((handler.baseFilename for handler in handlers if isinstance(handler, logging.FileHandler)), None)
