"""Workers of one and two cohorts: jobs run where their types are, slots move to work, no server blocks another."""

import json
from contextlib import contextmanager
from threading import Event, Thread

import pytest
import redis
from celery import Celery

from celery_affinity.embedded.server import EmbeddedServer
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys
from tests.support.apps import APP
from tests.support.fleet import in_time
from tests.support.ledger import Ledger
from tests.support.processes import start_worker, wait_until

pytestmark = pytest.mark.whole

HEARTBEAT_S = 1.0


class CohortsFleet:
    """Workers with the cohorts "ml", "eu" and "default".

    Types that begin with ``eu.`` are on the server *other*. Types that begin with ``gpu`` have their own Redis keys on
    *server*. All other types are in `default` on *server*.
    """

    def __init__(self, server, client, other, tmp_path):
        self.url = server.url
        self.ledger = Ledger(tmp_path / "ledger")
        self.conf = {"affinity_cohorts": {"ml": {"types": ["gpu*"]}, "eu": {"types": ["eu.*"], "url": other.url}}}
        self.app = Celery("producer", broker=server.url, set_as_current=False)
        self.app.conf.update(broker_transport="celery_affinity:Transport", **self.conf)
        self.clients = {"default": client, "ml": client, "eu": redis.Redis.from_url(other.url)}

    def close(self):
        self.clients["eu"].close()
        self.app.close()

    def status(self, cohort):
        return Report(Reader(self.clients[cohort], Keys(cohort=cohort))).status()

    def start(self, name, cohorts, *queues, pool="prefork", concurrency=1, **env):
        """Start a worker, and wait until it has joined *cohorts*."""
        env = {
            "LEDGER": str(self.ledger.path),
            "HEARTBEAT_INTERVAL": str(HEARTBEAT_S),
            "CONF": json.dumps(self.conf),
        } | env
        worker = start_worker(APP, self.url, queues, name=name, pool=pool, concurrency=concurrency, env=env)
        for cohort in cohorts:
            wait_until(lambda cohort=cohort: self.names(cohort), 30, f"{name} joins {cohort}\n{worker.log()}")
        return worker

    def names(self, cohort):
        return {each.name.partition("@")[0] for each in self.status(cohort).workers}

    def slots(self, *cohorts):
        return [sum(each.slots for each in self.status(cohort).workers) for cohort in cohorts]

    def send(self, job, type_, seconds=0.0, task="late"):
        return self.app.send_task(f"{APP}.{task}", (job, seconds), queue=type_)

    def wait_until_ran(self, jobs, within_s, worker):
        jobs = {str(each) for each in jobs}
        wait_until(lambda: jobs <= self.ledger.ends().keys(), within_s, f"{jobs} run\n{worker.log()[-6000:]}")


@pytest.fixture
def other():
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def cohorts(valkey, redis_client, other, tmp_path):
    fleet = CohortsFleet(valkey, redis_client, other, tmp_path)
    yield fleet
    fleet.close()


@contextmanager
def watched(fleet, *cohorts):
    """Repeatedly collect the claims of one worker in its two *cohorts*, until the context ends."""
    ended, seen = Event(), []
    first, second = cohorts
    keys = [Keys(cohort=each).key("claims", fleet.status(each).workers[0].id) for each in cohorts]

    def held(cohort, key):
        return fleet.clients[cohort].hgetall(key).items()

    def watch():
        while not ended.is_set():
            # A slot can move between two reads. A claim seen both before and after existed during the read in between.
            before, its, after = held(first, keys[0]), held(second, keys[1]), held(first, keys[0])
            seen.append((len(before & after), len(its)))

    thread = Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def test_worker_of_one_cohort_joins_only_its_server(cohorts):
    worker = cohorts.start("eu", ["eu"], "eu.pdf")
    calls = [cohorts.send(f"eu{number}", "eu.pdf") for number in range(5)]
    cohorts.wait_until_ran([f"eu{number}" for number in range(5)], 20, worker)
    assert cohorts.names("default") == set()
    assert calls
    (reply,) = cohorts.app.control.inspect(timeout=3).stats().values()
    assert reply["affinity"]["cohorts"]["eu"]["slots"] == 1
    worker.term()
    worker.wait(20)
    assert cohorts.names("eu") == set()
    assert "left the fleet" in worker.log()


@pytest.mark.parametrize("pool", in_time("prefork", "threads", "gevent", "eventlet"))
def test_free_slots_move_to_cohorts_with_waiting_jobs(cohorts, pool):
    worker = cohorts.start("both", ["default", "eu"], "pdf", "eu.pdf", pool=pool, concurrency=4)
    wait_until(lambda: cohorts.slots("default", "eu") == [2, 2], 10, "each cohort has half of the slots")
    with watched(cohorts, "default", "eu") as claims:
        for number in range(16):
            cohorts.send(f"eu{number}", "eu.pdf", 0.5)
        wait_until(lambda: cohorts.slots("default", "eu") == [0, 4], 2 * HEARTBEAT_S + 1, f"all go\n{worker.log()}")
        cohorts.send("rare", "pdf")
        cohorts.wait_until_ran([*(f"eu{number}" for number in range(16)), "rare"], 20, worker)
    assert max(map(sum, claims)) <= 4
    assert max(eu for _, eu in claims) == 4


@pytest.mark.parametrize("task", in_time("late", "early"))
def test_solo_workers_slot_serves_both_cohorts_in_turn(cohorts, task):
    worker = cohorts.start("solo", ["default", "eu"], "pdf", "eu.pdf", pool="solo")
    with watched(cohorts, "default", "eu") as claims:
        for number in range(3):
            cohorts.send(f"pdf{number}", "pdf", task=task)
            cohorts.send(f"eu{number}", "eu.pdf", task=task)
        cohorts.wait_until_ran([f"{type_}{number}" for type_ in ("pdf", "eu") for number in range(3)], 30, worker)
    assert not any(default and eu for default, eu in claims), "a slot is in one cohort at a time"
    assert set(cohorts.ledger.starts().values()) == {1}


def test_server_that_is_down_delays_only_its_own_jobs(cohorts, other):
    worker = cohorts.start("both", ["default", "eu"], "pdf", "eu.pdf", concurrency=2)
    cohorts.send("long", "eu.pdf", 3.0)
    wait_until(lambda: "long" in cohorts.ledger.starts(), 10, "it runs")
    cohorts.clients["eu"].save()
    other.kill()
    for number in range(4):
        cohorts.send(f"pdf{number}", "pdf")
    cohorts.wait_until_ran([f"pdf{number}" for number in range(4)], 10, worker)
    other.start()
    cohorts.send("after", "eu.pdf")
    cohorts.wait_until_ran(["long", "after"], 20, worker)
    wait_until(lambda: sum(each.held for each in cohorts.status("eu").workers) == 0, 10, "all ended")
    assert cohorts.ledger.starts()["long"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("flooded", "rare"), [("eu.pdf", "pdf"), ("pdf", "eu.pdf")])
def test_server_that_dies_under_skewed_load_blocks_no_other(cohorts, other, flooded, rare):
    worker = cohorts.start("both", ["default", "eu"], "pdf", "eu.pdf", concurrency=4)
    flood = [f"flood{number}" for number in range(200)]
    for job in flood:
        cohorts.send(job, flooded, 0.2)
    cohorts.send("rare0", rare, 0.2)
    cohorts.wait_until_ran(["rare0"], 20, worker)
    cohorts.clients["eu"].save()
    other.kill()
    ran = set(flood) & cohorts.ledger.ends().keys()
    assert len(ran) < len(flood) / 2, "the flood goes on when the server dies"
    if flooded == "pdf":
        cohorts.wait_until_ran(flood, 60, worker)
    else:
        for number in range(1, 6):
            cohorts.send(f"rare{number}", rare, 0.2)
            cohorts.wait_until_ran([f"rare{number}"], 10, worker)
        assert len(set(flood) & cohorts.ledger.ends().keys()) < len(flood) / 2, "nothing of the flood is claimed"
    other.start()
    cohorts.send("after", "eu.pdf")
    cohorts.wait_until_ran([*flood, "after"], 60, worker)
    wait_until(lambda: sum(each.held for each in cohorts.status("eu").workers) == 0, 10, "all ended")
    wait_until(lambda: sum(cohorts.slots("default", "eu")) == 4, 10, "all slots are somewhere")


@pytest.mark.slow
def test_worker_joins_a_cohort_once_its_server_answers(cohorts, other):
    other.kill()
    worker = cohorts.start("both", ["default"], "pdf", "eu.pdf", concurrency=2)
    for number in range(4):
        cohorts.send(f"pdf{number}", "pdf", 0.3)
    wait_until(lambda: cohorts.slots("default") == [2], 5, "all slots are where work is")
    cohorts.wait_until_ran([f"pdf{number}" for number in range(4)], 10, worker)
    other.start()
    wait_until(lambda: cohorts.names("eu"), 10, f"it joins\n{worker.log()}")
    cohorts.send("eu", "eu.pdf")
    cohorts.wait_until_ran(["eu"], 10, worker)


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "task"), [("prefork", "early"), ("threads", "late")])
def test_flood_in_one_cohort_starves_no_other_cohort(cohorts, pool, task):
    worker = cohorts.start("both", ["default", "eu"], "pdf", "eu.pdf", pool=pool, concurrency=4)

    def begun():
        return [each.job for each in cohorts.ledger.entries() if each.event == "start"]

    for number in range(250):
        cohorts.send(f"flood{number}", "pdf", 0.2, task=task)
    wait_until(lambda: cohorts.slots("default") == [4], 10, f"all slots are where work is\n{worker.log()[-4000:]}")
    ahead = []
    for number in range(8):
        before = len(begun())
        cohorts.send(f"rare{number}", "eu.pdf", 0.2, task=task)
        cohorts.wait_until_ran([f"rare{number}"], 20, worker)
        ahead.append(begun().index(f"rare{number}") - before)
    print(f"{pool}, {task}: jobs of the flood that began before each rare job: {ahead}")
    assert max(ahead) <= 50, ahead
    before = len(begun())
    for number in range(250):
        cohorts.send(f"other{number}", "eu.pdf", 0.2, task=task)
    wait_until(lambda: len(begun()) >= before + 100, 30, "both go on")
    both = begun()[before + 40 : before + 100]
    part = sum(each.startswith("other") for each in both) / len(both)
    print(f"{pool}, {task}: part of the second flood: {part:.2f}")
    assert 0.3 < part < 0.7
