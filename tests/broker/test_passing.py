"""Transient server errors are recognised by their text."""

import ast
from pathlib import Path

import pytest
import redis
from redis._parsers.base import BaseParser

import celery_affinity
from celery_affinity.broker.failover import is_transient, parse_redirect, refuses_writes, short_traceback
from celery_affinity.embedded.server import EmbeddedServer, free_port
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.passing_errors import LOGIN, PASSING, REFUSES_WRITES, STAYING
from ..support.processes import wait_until

parse = BaseParser.parse_error

#: Log calls about one task that no state of a server can cause.
ALWAYS_TRACED = [
    "merged.py: The outcome of the merged run cannot be reported to the caller of task %s; retrying",
    "reporter.py: The message of task %s cannot be read: only its caller gets the outcome",
    "request.py: Task %s[%s] cannot be given to the pool: it is rejected",
]


def test_errors_are_classified_by_their_replies(subtests):
    for replies, transient, refused in ((PASSING, True, False), (REFUSES_WRITES, False, True), (STAYING, False, False)):
        for reply in replies:
            with subtests.test(reply):
                assert (is_transient(parse(reply)), bool(refuses_writes(parse(reply)))) == (transient, refused)
    for reply in LOGIN:
        with subtests.test(reply):
            assert isinstance(parse(reply), redis.ConnectionError)


@pytest.mark.parametrize("make", [parse, redis.ResponseError], ids=["newer redis-py", "older"])
def test_redirect_is_parsed_from_the_error(make):
    assert parse_redirect(make("MOVED 3999 127.0.0.1:6381")) == (3999, "127.0.0.1", 6381, False)
    assert parse_redirect(make("ASK 3999 ::1:6381")) == (3999, "::1", 6381, True)
    assert parse_redirect(make("MOVED 3999 :6381")) == (3999, "", 6381, False)
    assert [reply for reply in (*PASSING[2:6], *STAYING) if parse_redirect(make(reply))] == []


def test_errors_of_server_state_are_logged_without_traceback():
    states = [*map(parse, (*PASSING, *REFUSES_WRITES)), redis.TimeoutError("away"), OSError("refused")]
    assert [exc for exc in states if short_traceback(exc) is not None] == []
    assert [exc for exc in (KeyError("x"), parse("WRONGTYPE ...")) if short_traceback(exc) is not exc] == []


def test_task_log_calls_have_no_unconditional_traceback():
    """An error of one task can repeat for thousands, so `traceback_of` decides."""
    package = Path(celery_affinity.__file__).parent
    found = []
    for path in [*(package / "worker").rglob("*.py"), *(package / "results").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "exception":
                text = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
                found += [f"{path.name}: {text}"] if "ask %s" in text else []
    assert sorted(found) == ALWAYS_TRACED


@pytest.mark.parametrize("reply", [*PASSING, *REFUSES_WRITES])
def test_pipeline_error_is_classified_like_a_single_one(redis_client, reply):
    error = parse(reply)
    redis_client.pipeline().annotate_exception(error, 1, ["SET", "name", "value"])
    assert is_transient(error) or refuses_writes(error)


@pytest.mark.parametrize("reply", [*PASSING, *REFUSES_WRITES, *LOGIN, *STAYING])
def test_server_state_errors_start_no_repair(redis_client, monkeypatch, reply):
    def answer(*_):
        raise parse(reply)

    def repair(*_):
        raise AssertionError("the data are sound")

    scheduler = Scheduler(redis_client, Keys())
    monkeypatch.setattr(redis_client, "execute_command", answer)
    monkeypatch.setattr(scheduler, "repair", repair)
    with pytest.raises(redis.RedisError):
        scheduler.tick()


@pytest.fixture
def nodes(server, tmp_path):
    """Clients of two cluster nodes: the slot of "moving" migrates from the first to the second."""
    started = []
    try:
        for name in ("one", "two"):
            options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            started.append(EmbeddedServer(directory=tmp_path / name, options=options, executable=server._executable))
            started[-1].start()
        with redis.Redis(port=started[0].port) as one, redis.Redis(port=started[1].port) as two:
            slot = one.execute_command("CLUSTER KEYSLOT", "moving")
            one.execute_command("CLUSTER ADDSLOTSRANGE", slot, 16383)
            two.execute_command("CLUSTER ADDSLOTSRANGE", 0, slot - 1)
            one.execute_command("CLUSTER MEET", "127.0.0.1", started[1].port, started[1]._options[-1])
            for node in (one, two):
                wait_until(lambda node=node: _is_up(node), 20, "the node has the slot map")
            one.set("{moving}here", 1)
            one.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", two.execute_command("CLUSTER MYID"))
            yield one, two
    finally:
        for node in started:
            node.stop()


def _is_up(node):
    return node.execute_command("CLUSTER INFO")["cluster_state"] == "ok"


READ = "return redis.call('MGET', '{moving}here', '{moving}gone')"


def test_errors_during_a_slot_migration_are_transient(nodes):
    one, two = nodes
    errors = [
        error_of(one, "MGET", "{moving}here", "{moving}gone"),
        error_of(one, "EVAL", READ, 1, "{moving}gone"),
        error_of(one, "EVAL", READ, 1, "{moving}here"),
        error_of(two, "EVAL", READ, 0),
        error_of(two, "GET", "{moving}here"),
    ]
    two.execute_command("CLUSTER DELSLOTS", 0)
    wait_until(lambda: not _is_up(two), 20, "the node reports the cluster as down")
    errors += [error_of(two, "EVAL", READ, 0), error_of(two, "GET", "{moving}here")]
    assert [str(error) for error in errors if not is_transient(error)] == []


def error_of(node, *command):
    with pytest.raises(redis.RedisError) as raised:
        node.execute_command(*command)
    return raised.value
