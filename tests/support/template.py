"""A template process that has imported Celery and is forked, since imports are most of a worker's start-up cost.

A forked process has its own session, environment, arguments, signals and exit code, and runs ``python -m celery ...``
from the beginning. It differs from a new interpreter in one respect: modules are already loaded. Three kinds of
commands need a new interpreter: green pools replace modules before Celery is loaded, this package patches Flower's
classes, and a folder of ``PYTHONPATH`` may contain another release.

As a program, the module serves requests over the socket whose number is the only argument.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

#: Modules that a worker or a command loads.
_LOADED = (
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "celery.worker.control",
    "celery_affinity.cli",
    "celery_affinity.web.server",
    "kombu.transport.redis",
)

#: Arguments of a command that needs a new interpreter.
_NEED_AN_INTERPRETER = {"gevent", "eventlet", "flower"}

#: Environment variables that Celery reads on import.
_READ_AT_IMPORT = {"REMAP_SIGTERM"}

#: Modules that an interpreter would load from a folder of ``PYTHONPATH``, and a fork has loaded from elsewhere.
_OTHERWISE = ("celery", "celery_affinity", "kombu", "opentelemetry", "redis", "sitecustomize.py")

#: Max size of a request in bytes: arguments and environment.
_MAX_BYTES = 1 << 17
_POLL_S = 0.005
_ROOT = Path(__file__).parents[2]


def may_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return True if *command* is a Celery command that a template can run."""
    is_celery = list(command[:3]) == [sys.executable, "-m", "celery"]
    needs_its_own = _NEED_AN_INTERPRETER.intersection(command) or _READ_AT_IMPORT.intersection(env)
    return is_celery and not needs_its_own and not _has_other_modules(env)


def _has_other_modules(env: Mapping[str, str]) -> bool:
    own = {str(_ROOT), *_folders(os.environ)}
    return any(Path(folder, name).exists() for folder in _folders(env) if folder not in own for name in _OTHERWISE)


def _folders(env: Mapping[str, str]) -> list[str]:
    return [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]


class Forked:
    """A process forked from a template, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, template: "Template", pid: int) -> None:
        self._template = template
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._template.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = monotonic() + (1e9 if timeout is None else timeout)
        while self.poll() is None:
            if monotonic() >= deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
            sleep(_POLL_S)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Template:
    """The process that others are forked from: one per test run, started by the first command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._popen and self._popen.pid

    def start(self, command: Sequence[str], env: Mapping[str, str], cwd: Path, *, stdout: int, stderr: int) -> Forked:
        """Run *command*, which `may_fork`. *stdout* and *stderr* are file descriptors."""
        request = {"argv": command[3:], "env": dict(env), "cwd": str(cwd)}
        return Forked(self, self.ask(request, [stdout, stderr]))

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        with self._lock:
            if self._socket is None:
                self._begin()
            assert self._socket is not None
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            return json.loads(self._socket.recv(_MAX_BYTES))

    def _begin(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            number = other.fileno()
            command = [sys.executable, "-m", __name__, str(number)]
            self._popen = subprocess.Popen(command, pass_fds=[number], cwd=_ROOT, start_new_session=True)

    def end(self) -> None:
        if self._socket is not None and self._popen is not None:
            self._socket.close()
            self._popen.wait()
            self._socket = self._popen = None


TEMPLATE = Template()


# -- the template process


def _serve(requests: socket.socket) -> list[str]:
    """Serve *requests*. Return only in a forked process, with the arguments of its command."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _MAX_BYTES, 2)
        if not data:
            os._exit(0)  # skips the exit handlers of modules
        request = json.loads(data)
        if "poll" in request:
            reply = _exit_code(request["poll"])
        else:
            is_ready, ready = os.pipe()
            reply = os.fork()
            if not reply:
                os.close(is_ready)
                return _become(request, requests, descriptors, ready)
            os.close(ready)
            os.read(is_ready, 1)  # waits until its session has started
            for each in (is_ready, *descriptors):
                os.close(each)
        requests.send(json.dumps(reply).encode())


def _exit_code(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(request: Mapping[str, Any], requests: socket.socket, descriptors: Sequence[int], ready: int) -> list[str]:
    os.setsid()
    os.close(ready)
    requests.close()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, each in enumerate(descriptors, 1):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    if "PYTHONUNBUFFERED" in os.environ:
        sys.stdout.reconfigure(write_through=True)
    sys.path[1:1] = [folder for folder in _folders(os.environ) if folder not in sys.path]
    return request["argv"]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in _LOADED:
        importlib.import_module(name)
    from celery_affinity.lua.library import load_library

    assert load_library().functions
    gc.collect()
    gc.freeze()
    sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("celery", run_name="__main__", alter_sys=True)
