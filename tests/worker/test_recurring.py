"""Recurring calls on real workers: any number of workers makes one call when no equal call arrives."""

import json
import time
from itertools import pairwise

import pytest

from celery_affinity import recur, stop
from celery_affinity.reports.explain import explain
from celery_affinity.reports.recurring import recurring_rows
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.command import affinity
from ..support.fleet import POOLS_IN_TIME
from ..support.ledger import whole_lines
from ..support.processes import start_worker, wait_until

APP = "tests.support.apps.recurring"

#: An interval, and the maximum delay of a firing, in seconds: a tick, plus the delay of a busy machine.
STALE_S, LATE_S = 2.0, 8.0

CONF = {"affinity_recurring": {"hh": {"task": "reroute", "args": ["HH"], "stale_after": STALE_S}}}


class Recurring:
    """Workers of the app, the runs of its task, and the server's records of its recurring calls."""

    def __init__(self, app, server, redis_client, ledger):
        self.app, self.server, self.redis, self.ledger = app, server, redis_client, ledger
        self.reroute = app.tasks["reroute"]
        self.scheduler = Scheduler(redis_client, Keys())

    def start(self, pool="threads", conf=None, concurrency=1):
        env = {"LEDGER": str(self.ledger), "CONF": json.dumps(conf or {})}
        return start_worker(APP, self.server.url, ["route"], pool=pool, concurrency=concurrency, env=env)

    def runs(self, city="HH"):
        return [run for run in map(json.loads, whole_lines(self.ledger)) if run["city"] == city]

    def rows(self):
        return {row.name: row for row in recurring_rows(self.scheduler.reader)}

    def claims(self):
        return self.redis.keys(self.scheduler.keys.key("claims", "*"))

    def counter(self, name):
        return int(self.redis.hget(self.scheduler.keys.key("counters"), name) or 0)


@pytest.fixture
def recurring(load_app, valkey, redis_client, tmp_path):
    return Recurring(load_app(APP), valkey, redis_client, tmp_path / "ledger")


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_configured_call_is_made_when_no_equal_call_arrives(recurring, pool):
    recurring.start(pool, CONF)
    wait_until(lambda: len(recurring.runs()) > 1, 3 * (STALE_S + LATE_S), "it is made twice")
    for one, other in pairwise(recurring.runs()):
        assert STALE_S - 0.5 < other["at"] - one["at"] < STALE_S + LATE_S
    assert recurring.counter("recurring_fired") >= 2


def test_three_workers_make_one_recurring_call(recurring):
    for _ in range(3):
        recurring.start(conf=CONF)
    wait_until(lambda: len(recurring.runs()) > 2, 4 * (STALE_S + LATE_S), "it is made three times")
    fired, runs = recurring.counter("recurring_fired"), len(recurring.runs())
    assert abs(fired - runs) <= 1, "one may be on its way"
    assert all(other["at"] - one["at"] > STALE_S - 0.5 for one, other in pairwise(recurring.runs()))


def test_arriving_call_postpones_the_recurring_call(recurring):
    recurring.start(conf=CONF)
    wait_until(lambda: "hh" in recurring.rows(), 20, "it is declared")
    until = time.monotonic() + 2 * STALE_S
    while time.monotonic() < until:
        recurring.reroute.delay("HH")
        time.sleep(STALE_S / 10)  # the interval of the calls; it hides no race
    assert recurring.counter("recurring_fired") == 0
    assert recurring.counter("recurring_reset") > 10
    wait_until(lambda: recurring.counter("recurring_fired"), STALE_S + LATE_S, "it fires once they are over")


def test_recurring_calls_are_declared_again_after_data_loss(recurring):
    recurring.start(conf=CONF)
    wait_until(lambda: recurring.rows(), 20, "it is declared")
    recurring.redis.flushall()
    wait_until(lambda: recurring.rows(), 20, "it is declared again")


def test_removed_entry_is_deleted_at_the_next_start(recurring):
    first = recurring.start(conf=CONF)
    wait_until(lambda: recurring.rows(), 20, "it is declared")
    first.end()
    recur("by hand", recurring.reroute.s("B"), stale_after=300)
    recurring.start(conf={"affinity_recurring": {"b": {"task": "reroute", "args": ["B"], "stale_after": 300}}})
    wait_until(lambda: set(recurring.rows()) == {"b", "by hand"}, 20, "the other one is declared")


def test_invalid_entry_is_logged_and_others_take_effect(recurring):
    conf = {"affinity_recurring": {**CONF["affinity_recurring"], "gone": {"task": "proj.gone", "stale_after": 1}}}
    worker = recurring.start(conf=conf)
    words = "affinity_recurring['gone'] has no effect: affinity_recurring: the app has no task 'proj.gone'"
    wait_until(lambda: words in worker.log(), 20, "the log says so")
    wait_until(lambda: set(recurring.rows()) == {"hh"}, 20, "the other one is declared")


def test_call_recurs_until_it_is_stopped(recurring):
    recur("b", recurring.reroute.s("B"), stale_after=1)
    recurring.start()
    wait_until(lambda: recurring.runs("B"), 20, "it is made")
    assert stop("b")
    assert not stop("b")
    assert recurring.rows() == {}
    fired = recurring.counter("recurring_fired")
    recurring.reroute.delay("B")
    wait_until(lambda: len(recurring.runs("B")) > fired, 20, "what was called runs")
    assert recurring.counter("recurring_fired") == fired


def test_interval_counts_from_the_last_runs_end_if_set(recurring):
    recur("b", recurring.reroute.s("B", seconds=1.5), stale_after=1, since="end")
    recurring.start(concurrency=2)
    wait_until(lambda: len(recurring.runs("B")) > 2, 40, "it is made three times")
    assert all(other["at"] - one["end"] > 0.9 for one, other in pairwise(recurring.runs("B")))


@pytest.mark.parametrize("how", ["fails", "ignores"])
def test_unsuccessful_run_postpones_no_interval_since_end(recurring, how):
    recur("b", recurring.reroute.s("B"), stale_after=300, since="end")
    recurring.start()
    bad = recurring.reroute.delay("B", **{how: True})
    wait_until(lambda: explain(recurring.scheduler.reader, bad.id).state in ("done", "failed"), 60, "it has ended")
    assert recurring.counter("recurring_reset") == 0
    recurring.reroute.delay("B")
    wait_until(lambda: recurring.counter("recurring_reset"), 60, "one that succeeds counts")


def test_fleet_makes_one_call_after_being_down(recurring):
    worker = recurring.start(conf=CONF)
    wait_until(recurring.runs, 20, "it is made")
    wait_until(lambda: not recurring.claims(), 20, "its end is told: otherwise it would run again, by late acks")
    worker.end()
    fired = recurring.counter("recurring_fired")
    wait_until(lambda: recurring.rows()["hh"].fires_in_s < -STALE_S, 20, "two intervals are over")
    began = time.time()
    recurring.start(conf=CONF)
    wait_until(lambda: recurring.counter("recurring_fired") > fired, 20, "it is made")
    wait_until(lambda: [run for run in recurring.runs() if run["at"] > began], 20, "it runs")
    first = next(run for run in recurring.runs() if run["at"] > began)
    soon = [run for run in recurring.runs() if began < run["at"] < first["at"] + STALE_S - 0.5]
    assert soon == [first]


def test_operators_list_fire_pause_resume_and_remove(recurring):
    def run(*words):
        return affinity(recurring.server.url, "recurring", *words, app=APP)

    assert run().stdout == "there are no recurring calls\n"
    recur("b", recurring.reroute.s("B"), stale_after=300)
    row = run().stdout.splitlines()[1]
    assert row.split()[:9] == ["b", "reroute", "route", "B", "5", "min", "0", "s", "-"]
    assert row.endswith("run time")
    (row,) = json.loads(run("--json").stdout)
    assert (row["name"], row["merge_key"], row["is_suspended"]) == ("b", "B", False)
    assert run("fire", "b").stdout == "made: b; again in 5 min 0 s unless a matching call comes\n"
    assert recurring.scheduler.reader.pending("route") == 1
    assert explain_only(recurring).recurring == "b"
    assert run("pause", "b").stdout == "paused: b\n"
    assert "paused" in run().stdout
    assert run("resume", "b").stdout == "resumed: b\n"
    assert run("remove", "b").stdout == "removed: b\n"
    assert run("remove", "b").stderr == "Error: no recurring call is named 'b'\n"
    recur("plan-hamburg", recurring.reroute.s("HH"), stale_after=300)
    assert run("fire", "plan-hamburgh").stderr.endswith("did you mean 'plan-hamburg'?\n")


def explain_only(recurring):
    (key,) = recurring.redis.keys("*}:task:*")
    return explain(recurring.scheduler.reader, key.decode().rpartition(":")[2])
