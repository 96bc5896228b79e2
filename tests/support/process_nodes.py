"""Processes instead of pytest-celery's containers, for machines without Docker.

pytest-celery's nodes use few methods of a container: kill, restart, logs, status, host name and ports. `Container`
implements them for a local process, so pytest-celery's fixtures and tests run unmodified. A test module overrides the
fixtures that start containers with the fixtures below, or with `worker` for custom workers.
"""

import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import suppress

import psutil
import pytest

from celery_affinity.embedded import EmbeddedServer

from .processes import Process, wait_until

START_TIMEOUT_S = 60
PORT = "6379/tcp"


def docker_answers() -> bool:
    docker = shutil.which("docker")
    return bool(docker) and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


class Container:
    """The part of docker-py's containers that pytest-celery uses. Subclasses define `_start`, `_end` and `_log`."""

    def __init__(self):
        self.id = uuid.uuid4().hex
        self.name = f"process-{self.id[:12]}"
        self.status = "created"
        self.attrs = {
            "Config": {"Hostname": "127.0.0.1", "Env": []},
            "NetworkSettings": {"Networks": {"host": {"IPAddress": "127.0.0.1"}}, "Ports": {}},
            "HostConfig": {"PortBindings": {}},
        }

    def start(self):
        self._start()
        self.reload()

    def stop(self, timeout=10):
        self.kill("SIGTERM", timeout)
        self.kill()

    def restart(self, timeout=10):
        self.stop(timeout)
        self.start()

    def kill(self, signal=None, timeout=10):
        self._end(signal or "SIGKILL", timeout)
        self.reload()

    def reload(self):
        self.status = "running" if self._is_running() else "exited"

    def logs(self):
        return self._log().encode()


class ServerContainer(Container):
    """A server that keeps its port and, depending on its options, its data."""

    def __init__(self, directory, options):
        super().__init__()
        self._server = EmbeddedServer(directory=directory, options=options)

    def _start(self):
        self._server.start()
        # Workers run on the same host, so they use the same port as a test.
        self.attrs["Config"]["Hostname"] = f"127.0.0.1:{self._server.port}"
        self.attrs["NetworkSettings"]["Ports"][PORT] = [{"HostPort": str(self._server.port)}]

    def _end(self, signal_name, timeout):
        if signal_name == "SIGKILL":
            self._server.kill()
        else:
            self._server.stop()

    def _is_running(self):
        return self._server.is_running

    def _log(self):
        return self._server.log_path.read_text()


class WorkerContainer(Container):
    """A worker. All its processes, including the guard, end with the main process, like in a container."""

    def __init__(self, directory, command, env):
        super().__init__()
        # The host name inside a container is its id.
        self._command = [sys.executable, "-m", *(word.replace("%h", self.id[:12]) for word in command)]
        self._env = {**env, "PYTHONPATH": str(directory)}
        self._process = None
        self._earlier = ""

    def _start(self):
        self._process = Process(self.name, self._command, self._env)

    def _end(self, signal_name, timeout):
        if self._process is None:
            return
        if signal_name != "SIGKILL":
            self._process.signal(getattr(signal, signal_name))
            self._wait(timeout)
            return
        if self._process.is_running:
            main = psutil.Process(self._process.pid)
            main.suspend()  # a stopped process starts no others, and is not reported dead
            for each in [*main.children(recursive=True), main]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self._process.wait(timeout)
        self._earlier += self._process.log()
        self._process.end()
        self._process = None

    def _wait(self, timeout):
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def _is_running(self):
        return self._process is not None and self._process.is_running

    def _log(self):
        return self._earlier + (self._process.log() if self._process else "")


class OnThisHost:
    """Replaces the Docker queries of pytest-docker-tools' wrapper for a process of this host."""

    def get_open_tcp_ports(self):
        return [port.partition("/")[0] for port in self.ports]

    def get_addr(self, port):
        return "127.0.0.1", self.ports[port][0]


def wrapped(cls, container):
    """Start *container*, wrap it in pytest-celery's class *cls*, and return it when it is ready."""
    container.start()
    node = type(cls.__name__, (OnThisHost, cls), {})(container)
    wait_until(lambda: node.ready_prompt in node.logs(), START_TIMEOUT_S, f"{cls.__name__} is ready: {node.logs()}")
    return node


@pytest.fixture
def default_redis_broker(default_redis_broker_cls, default_redis_broker_command, tmp_path_factory):
    yield from _server(default_redis_broker_cls, default_redis_broker_command, tmp_path_factory)


@pytest.fixture
def default_redis_backend(default_redis_backend_cls, default_redis_backend_command, tmp_path_factory):
    yield from _server(default_redis_backend_cls, default_redis_backend_command, tmp_path_factory)


def _server(cls, command, tmp_path_factory):
    container = ServerContainer(tmp_path_factory.mktemp("redis"), command[1:])
    yield wrapped(cls, container)
    container.kill()


def worker(cls=None):
    """Return a fixture for a worker of pytest-celery's class *cls*, or for pytest-celery's default worker."""

    @pytest.fixture
    def container_fixture(request, default_worker_env, default_worker_initial_content, tmp_path_factory):
        directory = tmp_path_factory.mktemp("worker")
        for name, content in default_worker_initial_content.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
        command = cls.command() if cls else request.getfixturevalue("default_worker_command")
        container = WorkerContainer(directory, command, default_worker_env)
        yield wrapped(cls or request.getfixturevalue("default_worker_container_cls"), container)
        container.kill()

    return container_fixture


default_worker_container = worker()
