"""Ends: whatever happens after a task's body, its slot is free again, and the server is told soon."""

# Longer than 300 lines: each way to end, in each pool, told by one ledger.

import json
import time
from collections import Counter
from contextlib import nullcontext
from time import sleep
from types import SimpleNamespace
from unittest.mock import Mock, PropertyMock

import pytest
from celery import Celery
from celery.concurrency.base import apply_target
from celery.worker.request import create_request_cls
from kombu.utils import functional
from kombu.utils.functional import retry_over_time

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.membership.held import ACKED, RETURNED
from celery_affinity.observe import dead_letters
from celery_affinity.observe.explain import explain
from celery_affinity.rules.keys import Keys
from celery_affinity.server.reader import Reader
from celery_affinity.server.replies import Claim
from celery_affinity.worker import reconnecting, runs, strays
from celery_affinity.worker.pools import let_pauses_yield, still_has

from ..support.apps import APP
from ..support.fleet import POOLS, Pools, closing
from ..support.members import Pool, telling_of
from ..support.processes import wait_until
from ..support.requests import held, request_of

ENDS = "tests.support.apps.ends"
OURS = "celery_affinity:Transport"


@pytest.mark.parametrize("results", ["on the broker's server", "elsewhere"])
def test_a_result_backend_that_is_away_for_a_while_stops_no_pool(tmp_path, results):
    with (
        EmbeddedServer(directory=tmp_path / "broker", options=("--appendonly", "yes")) as broker,
        EmbeddedServer(directory=tmp_path / "results", options=("--appendonly", "yes")) as backend,
    ):
        killed = broker if results == "on the broker's server" else backend
        with closing(Pools(APP, broker, tmp_path, RESULT_URL=killed.url)) as pools:
            jobs = {f"{pool}-{task}-{n}" for pool in POOLS for task in ("early", "late") for n in range(30)}
            for job in sorted(jobs, key=lambda each: int(each.rpartition("-")[2])):
                pool, task, n = job.split("-")
                pools.send(task, job, pool, 0.02 + 0.005 * (int(n) % 10))
            wait_until(lambda: len(pools.ledger.ends()) > len(jobs) / 6, 30, "a good part has ended")
            killed.kill()
            sleep(1.5)  # the outage
            killed.start()
            wait_until(lambda: set(pools.ledger.ends()) == jobs, 40, f"all end\n{pools.logs()}")
            wait_until(pools.all_slots_are_free, 20, f"all slots are free\n{pools.logs()}")
            assert set(pools.ledger.starts().values()) == {1}
            assert sum(each.pending for each in pools.status().types) == 0
            assert pools.active() == []


def test_what_ends_while_the_server_is_away_is_told_as_soon_as_it_is_back(tmp_path, valkey):
    """Celery's own reconnect comes seconds later: Celery tries after 2 s, 4 s more and 6 s more."""
    with (
        EmbeddedServer(directory=tmp_path / "broker", options=("--appendonly", "yes")) as broker,
        closing(Pools(APP, broker, tmp_path, RESULT_URL=valkey.url)) as pools,
    ):
        jobs = {f"{pool}-{task}" for pool in POOLS for task in ("early", "late")} - {"solo-late"}
        for job in jobs:
            pool, task = job.split("-")
            pools.send(task, job, pool, 2)
        wait_until(lambda: set(pools.ledger.starts()) == jobs, 20, "all run")
        broker.kill()
        wait_until(lambda: set(pools.ledger.ends()) == jobs, 20, "all end")
        wait_until(lambda: "in 6.00 seconds" in pools.workers["prefork"].log(), 20, "it waits long for its next try")
        broker.start()
        wait_until(lambda: not pools.claims(), 3, f"all are told\n{pools.logs()}")
        assert pools.ledger.starts() == dict.fromkeys(jobs, 1)
        wait_until(pools.all_slots_are_free, 20, f"all are back\n{pools.logs()}")


#: Task that fails after its body -> number of runs if acked late: 2 if nobody could say what became of the job.
FAILS = {
    "on_failure_fails": 1,
    "on_failure_exits": 1,
    "on_failure_shuts_down": 1,
    "rejects_after_its_return": 1,
    "signals_fail": 1,
    "signals_fail_after_a_failure": 1,
    "signals_exit_after_a_failure": 1,
    "no_memory_for_the_result": 2,
    "no_place_for_the_result": 1,
    "no_name_for_the_result": 1,
}


@pytest.mark.parametrize("acks_late", [False, True])
def test_whatever_fails_after_a_tasks_body_frees_its_slot(tmp_path, valkey, redis_client, acks_late):
    conf = json.dumps({"task_acks_on_failure_or_timeout": False})  # a job that failed is rejected
    late = {"ACKS_LATE": "1", "MAX_DELIVERIES": "2", "CONF": conf} if acks_late else {}
    in_process = POOLS[1:]
    with closing(Pools(ENDS, valkey, tmp_path, pools=in_process, slots=2, **late)) as pools:
        runs = {}
        for pool in in_process:
            for task, times in FAILS.items():
                if (pool, task) != ("solo", "on_failure_shuts_down"):  # a solo worker shuts down, as asked
                    runs[f"{pool}-{task}"] = times if acks_late else 1
                    pools.send(task, f"{pool}-{task}", pool)
        wait_until(lambda: set(pools.ledger.starts()) == set(runs), 30, f"all run\n{pools.logs()}")
        wait_until(lambda: pools.all_slots_are_free() and not pools.claims(), 20, f"all end\n{pools.logs()}")
        wait_until(lambda: pools.ledger.starts() == runs, 10, f"each so often\n{pools.logs()}")
        assert "Connection to broker lost" not in pools.logs()
        dead = dead_letters.find(Reader(pools.redis, Keys()), dead_letters.Filter(task="*.no_*_for_the_result"))
        assert Counter((each.task.rpartition(".")[2], each.reason) for each in dead) == (
            {
                ("no_memory_for_the_result", "max_deliveries"): 4,
                ("no_place_for_the_result", "rejected"): 4,
                ("no_name_for_the_result", "rejected"): 4,
            }
            if acks_late
            else {}
        )


def test_an_end_that_nobody_notices_is_found_and_a_long_task_is_left_alone(tmp_path, valkey, redis_client):
    """Ends of jobs named "lost" go unnoticed here; a worker finds a job that has been nowhere for 2 s."""
    env = {"NOBODY_NOTICES": "1", "HEARTBEAT_INTERVAL": "0.5"}
    with closing(Pools(ENDS, valkey, tmp_path, slots=4, **env)) as pools:
        runs, sent = {}, {}
        for pool in POOLS:
            for task, job, seconds, times in (
                ("late", "long", 6, 1),
                ("early", "lost-early", 0, 1),
                ("late", "lost-late", 0, 2),
                ("early", "next", 0, 1),
            ):
                runs[f"{job}-{pool}"] = times
                sent[f"{job}-{pool}"] = pools.send(task, f"{job}-{pool}", pool, seconds).id
        reader = Reader(redis_client, Keys())
        lost = [sent[f"lost-early-{pool}"] for pool in POOLS]
        wait_until(
            lambda: all("nobody noticed its end" in (explain(reader, each).why or "") for each in lost),
            50,
            f"what was acked early counts as failed\n{pools.logs()}",
        )
        try:
            wait_until(lambda: pools.ledger.ends() == runs, 60, "all end")
        except AssertionError:
            pytest.fail(f"{pools.ledger.ends()} is not {runs}\n{pools.logs()}")
        wait_until(pools.all_slots_are_free, 20, f"all slots are free\n{pools.logs()}")
        assert pools.active() == []
        for pool, worker in pools.workers.items():
            found = [line for line in worker.log().splitlines() if "runs nowhere" in line]
            assert len(found) == 2, f"{pool}: {found}"
            assert sum("so it is pending again" in line for line in found) == 1


@pytest.fixture
def app():
    with Celery("alone", broker="memory://", set_as_current=False) as app:
        yield app


def test_a_job_that_is_revoked_ends_though_nobody_can_store_that(app):
    telling = telling_of()
    revoked, message = request_of(app, telling)
    revoked._announce_revoked("revoked", False, None, False)
    assert message.ack_log_error.called, "it does not come again"
    assert telling.claims.unended() == []
    assert revoked.revoked()


@pytest.mark.parametrize("acks", [True, False])
def test_a_task_that_takes_too_long_ends_as_its_author_wishes_though_nobody_can_store_that(app, acks):
    telling = telling_of()
    long, message = request_of(app, telling, acks_late=True, acks_on_failure_or_timeout=acks)
    long.on_timeout(soft=False, timeout=1)
    assert (message.ack_log_error.called, message.reject_log_error.called) == (acks, not acks)
    assert telling.claims.unended() == []


@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_a_task_whose_start_cannot_be_told_runs_or_has_ended(app, error):
    telling = telling_of()
    started, _ = request_of(app, telling, eventer=Mock(enabled=True, **{"send.side_effect": error}), send_events=True)
    with pytest.raises(error) if error is SystemExit else nullcontext():
        started.on_accepted(1, 0.0)
    assert len(telling.claims.unended()) == (error is not SystemExit)


class Late:
    """A green pool whose greenlets are all busy: a task begins when the test calls `begin`."""

    is_green = True

    def __init__(self):
        self._pool_map = {}
        runs.report_all_errors(self)

    def apply_async(self, target, args=(), kwargs=None, **options):
        wanted = {name: options[name] for name in ("callback", "accept_callback")}
        self.begin = lambda: apply_target(target, args, kwargs or {}, **wanted)


def give(app, telling, began, eventer=None, **options):
    """Give a job to a pool; return the job's message and the pool. A body that begins adds to *began*."""
    made, message = request_of(app, telling, eventer, **options)
    pool = Late()

    def trace(*_):
        began.append(True)
        return 0, "done", 0.1

    generated = create_request_cls(type(made), made.task, pool, "here", eventer, trace=trace, app=app)
    generated(message, app=app, task=made.task, eventer=eventer).execute_using_pool(pool)
    return message, pool


def loses_it(claims):
    claims.void_up_to(10)


def is_silent(claims):
    claims.lease.renew(asked_at_s=0, timeout_s=0)


@pytest.mark.parametrize("happens", [loses_it, is_silent])
@pytest.mark.parametrize("when", ["before the task is accepted", "while its event is sent"])
@pytest.mark.parametrize("acks_late", [True, False])
def test_a_task_does_not_begin_when_its_job_may_be_anothers_by_then(app, happens, when, acks_late):
    telling, began = telling_of(), []
    sends = Mock(enabled=True, **{"send.side_effect": lambda *_, **__: happens(telling.claims)})
    eventer = sends if when == "while its event is sent" else None
    options = {"eventer": eventer, "send_events": eventer is not None, "acks_late": acks_late}
    message, pool = give(app, telling, began, **options)
    if eventer is None:
        happens(telling.claims)
    pool.begin()
    assert not began
    assert telling.claims.unended() == []
    assert message.ack_log_error.called == (eventer is not None and not acks_late)
    if happens is is_silent:
        assert [each.outcome for each in telling.claims._ends.values()] == [RETURNED]


def test_an_early_ack_that_was_told_is_followed_by_its_task(app):
    telling, began = telling_of(), []
    message, pool = give(app, telling, began)

    def is_told(*_, **__):
        telling.settle(message.delivery_tag, ACKED)
        telling.outbox.flush(Mock(), inline=False)
        is_silent(telling.claims)

    message.ack_log_error.side_effect = is_told
    pool.begin()
    assert began, "nobody else would run it"


def test_what_a_green_pool_was_given_is_kept_when_the_worker_drains(app):
    telling, pool = telling_of(), Late()
    claimed, _ = request_of(app, telling)
    assert claimed._apply_result is None
    claimed.is_in_the_pool = runs.while_given
    assert telling.claims.renounce(Pool(has=lambda each: still_has(pool, each))) == []
    claimed.is_in_the_pool = None  # a request that waits for its ETA, say
    assert len(telling.claims.renounce(Pool(has=lambda each: still_has(pool, each)))) == 1


class Consumer:
    """The part of Celery's consumer where requests wait."""

    def __init__(self, waiting=(), limited=()):
        self.controller = SimpleNamespace(
            semaphore=SimpleNamespace(_waiting=[(print, (each,), {}) for each in waiting])
        )
        self.task_buckets = {"other": None, "limited": SimpleNamespace(contents=[(each, 1) for each in limited])}


class Requested:
    """A request. *is_in_the_pool*: None if no pool has the request, "runs" if the pool says that the task runs."""

    name, id = "task", "id"

    def __init__(self, is_in_the_pool=None):
        self.is_in_the_pool = is_in_the_pool and (lambda: is_in_the_pool == "runs")
        self.has_ended = False

    def end_unnoticed(self):
        self.has_ended = True


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(strays, "monotonic", lambda: now.s)
    return now


def test_what_waits_or_runs_is_no_stray_and_the_rest_is_one_after_a_while(clock):
    waiting, limited, running, queued_nowhere, ended = (
        Requested(),
        Requested(),
        Requested("runs"),
        Requested(),
        Requested("ended"),
    )
    telling = telling_of(lookahead=10)
    claims = telling.claims
    for fence, each in enumerate((waiting, limited, running, queued_nowhere, ended), start=1):
        held(claims, fence, each)
    telling.lookahead.add(Claim("job-8", "8", "pdf", 0, 0, b""), held(claims, 8))
    forgotten = held(claims, 9)
    found = strays.Strays(Consumer([waiting], [limited]), telling)
    for clock.s in (0.0, 10.0, 29.0):
        assert found.free(loop_turns=True) is not None, "it looks again soon"
    assert not ended.has_ended
    assert forgotten in dict(claims.unended())
    clock.s = 30.0
    found.free(loop_turns=True)
    assert [each.has_ended for each in (waiting, limited, running, queued_nowhere, ended)] == [False] * 3 + [True] * 2
    assert forgotten not in dict(claims.unended())


def test_nothing_is_a_stray_while_the_event_loop_stands_still(clock):
    telling = telling_of(lookahead=10)
    claims = telling.claims
    ended = Requested("ended")
    held(claims, 1, ended)
    found = strays.Strays(Consumer(), telling)
    found.free(loop_turns=True)
    clock.s = 40.0
    found.free(loop_turns=False)
    found.free(loop_turns=True)
    assert not ended.has_ended, "its end may have been read since"


class Server:
    """A server that refuses the first *refuses* of kombu's tries to connect."""

    def __init__(self, refuses):
        self.refuses = refuses

    def ensure_connection(self, errback, max_retries, *intervals, callback=None):
        def connect():
            self.refuses -= 1
            if self.refuses >= 0:
                raise ConnectionError

        def on_error(exc, pauses, retries):
            pause = next(pauses)
            errback(exc, pause)
            return pause

        retry_over_time(connect, ConnectionError, (), {}, on_error, max_retries, *intervals, callback)
        return self


def reconnect(server, monkeypatch, returns):
    """Return, in s, the waits before the tries and the pauses told to Celery's callback. No real time passes."""
    said, waited, now = [], [], SimpleNamespace(s=0.0)

    def sleeping(seconds):
        now.s += seconds
        waited[-1] += seconds

    def said_and_tried(exc, pause_s):
        said.append(pause_s)
        waited.append(0.0)

    monkeypatch.setattr(reconnecting, "sleep", sleeping)
    monkeypatch.setattr(reconnecting, "monotonic", lambda: now.s)
    consumer = SimpleNamespace(ensure_connected=lambda conn: conn.ensure_connection(said_and_tried, 100), pool=None)
    telling = Mock()
    type(telling).returns = PropertyMock(side_effect=lambda: returns(now.s))
    reconnecting.Reconnecting(consumer, Mock(telling=telling))
    assert consumer.ensure_connected(server) is server
    return [round(each) for each in waited], said


def test_a_reconnect_waits_as_celery_does_and_no_longer_than_the_server_is_away(monkeypatch):
    assert reconnect(Server(3), monkeypatch, returns=lambda now_s: int(now_s >= 7)) == ([2, 4, 1], [2, 4, 6])


def test_a_server_that_answers_others_alone_is_not_asked_more_often(monkeypatch):
    assert reconnect(Server(4), monkeypatch, returns=lambda _: 0) == ([2, 4, 6, 8], [2, 4, 6, 8])


@pytest.mark.parametrize("is_green", [True, False])
def test_kombus_pauses_leave_other_greenlets_their_turn(monkeypatch, is_green):
    """kombu imported `time.sleep` before gevent patched the function; other pools patch nothing."""
    before, patched = functional.sleep, Mock()
    monkeypatch.setattr(functional, "sleep", before)
    monkeypatch.setattr(time, "sleep", patched)
    let_pauses_yield(SimpleNamespace(is_green=is_green))
    assert functional.sleep is (patched if is_green else before)
