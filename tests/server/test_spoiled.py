"""Somebody deletes or overwrites keys under a running fleet: the rest goes on, and the log says what was found."""

# Longer than 300 lines: each kind of key is spoiled in turn, by one table of ways.

import pytest
import redis

from celery_affinity.client.revokes import stamp
from celery_affinity.rules.keys import KEYS, Keys
from celery_affinity.rules.settings import Settings
from celery_affinity.server.replies import End, Job, Joining

from ..support.apps import APP
from ..support.clocked import ClockedScheduler
from ..support.ledger import Ledger
from ..support.processes import start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet

SETTINGS = Settings(heartbeat_interval=1, worker_timeout=4, dead_max=5).shared()
STAMP = stamp("tenant", "a")

#: Keys with facts that no other key has: a spoiled one takes jobs, or the state of jobs, along. All other keys are made
#: again from the keys there are.
TELLS_OF_JOBS = {"expires", "job", "message", "lane", "scheduled"}

#: Keys that no fault test makes: faults leave these keys behind.
LEFT = {"spoiled", "set_aside"}


class Worker:
    """A worker process, as far as the server sees one."""

    def __init__(self, scheduler, name, *types, slots=2):
        self.scheduler, self.name, self.types, self.slots = scheduler, name, types, slots
        self.held, self.sequence = {}, 0
        self.ran = []
        self.join()

    def join(self):
        joining = Joining(self.name, f"{self.name}@host", self.types, self.slots, app="shop")
        self.scheduler.join(joining, SETTINGS)

    def sync(self):
        running = [(*claim, 0) for claim in self.held.items()]
        synced = self.scheduler.sync(self.name, running, slots=self.slots, other=0, draining=False)
        if not synced.known:
            self.held.clear()
            self.join()
            return
        for job_id in synced.void:
            self.held.pop(job_id, None)
        self.scheduler.requeue(self.name, synced.asked, counted=False)

    def read(self):
        for claim in ScriptedFleet(self.scheduler).inbox(self.name):
            self.held[claim.job_id] = claim.fence

    def work(self):
        """Beat, and run all claims."""
        self.scheduler.beat(self.name, turns=True)
        self.sync()
        self.read()
        while self.held:
            self.settle()

    def settle(self):
        if self.held:
            ends = [End(job_id, fence, "acked") for job_id, fence in self.held.items()]
            self.ran += self.held
            self.held.clear()
            self.sequence += 1
            acks = [end[:2] for end in ends[:1]]
            following = self.scheduler.tell_ends(
                self.name, acks=acks, ends=ends[:10], sequence=self.sequence, inline=True, most_ahead=1
            )
            self.held |= {claim.job_id: claim.fence for claim in following}


class Scene:
    """A fleet in the middle of its work, with every kind of key."""

    def __init__(self, client):
        self.client = client
        self.scheduler = scheduler = ClockedScheduler(client, Keys())
        self.workers = [
            Worker(scheduler, "w1", "pdf"),
            Worker(scheduler, "w2", "pdf", "excel"),
            Worker(scheduler, "w3", "web", slots=8),
        ]
        self.fresh = []
        self.number = 0
        self.jobs = []
        self._fill()

    def publish(self, type_, number=1, **options):
        jobs = [
            Job(
                f"j{self.number + nth}",
                type_,
                f"message {nth}",
                task_id=f"t{self.number + nth}",
                task_name="n",
                **options,
            )
            for nth in range(number)
        ]
        self.number += number
        published = self.scheduler.publish(*jobs)
        assert all(each.refused is None for each in published)
        return [job.id for job in jobs]

    def _fill(self):
        one, two, three = self.workers
        scheduler = self.scheduler
        # Four claims are held, of which one is acked; one job has ended.
        self.publish("pdf", 5)
        one.read()
        two.read()
        scheduler.advance(1)
        one.work()
        one.read()
        held = next(iter(two.held.items()))
        scheduler.tell_ends(two.name, acks=[held], ends=[], sequence=99, inline=False)
        # Jobs that ended without a worker, and dead letters.
        self.publish("excel", 2, delay_us=60_000_000, stamps=(STAMP,))
        scheduler.revoke([f"t{self.number - 1}"], [STAMP], keep_s=3600)
        self.publish("gone", expires_us=0)
        (dead,) = self.publish("web")
        three.read()
        scheduler.tell_ends(
            three.name, acks=[], ends=[End(dead, three.held.pop(dead), "rejected")], sequence=98, inline=False
        )
        # Jobs that wait.
        for priority in range(8):
            for on_demand in (False, True):
                self.jobs += self.publish("pdf", 2, priority=priority, on_demand=on_demand)
        for type_ in ("excel", "web", "pdf"):
            self.jobs += self.publish(type_, 4)
            self.jobs += self.publish(type_, delay_us=3_000_000)
        self.jobs += self.publish("excel", stamps=("tenant:b",), expires_us=600_000_000)
        # Several jobs of one task, and more jobs than a call looks at.
        several = [Job(f"again{nth}", "excel", "message", task_id="again", task_name="n") for nth in range(3)]
        self.jobs += [job.id for job in several]
        scheduler.publish(*several, *(Job(f"many{nth}", "none", "message", task_id="many") for nth in range(12)))
        scheduler.advance(1)
        scheduler.tick()
        one.read()
        one.settle()
        assert self.keys_of("leaders")
        scheduler.configure({"priority_percentage": "50"})
        for key in self.scheduler.keys.key("nudges", "w1"), self.scheduler.keys.key("nudges", "w3"):
            self.client.lpush(key, "")
        self.client.hset(self.scheduler.keys.key("ahead"), "pdf", "w1")
        self.client.set(self.scheduler.keys.key("claim_number"), 3)

    def keys_of(self, name):
        """Return the keys there are of one kind."""
        pattern = self.scheduler.keys.base + KEYS[name][0].replace("%s", "*")
        found = list(self.client.scan_iter(match=pattern, count=1000))
        others = {"lane": b":lane:leaders", "task": b":task:jobs:"}.get(name, b"\0")
        return sorted(key for key in found if others not in key)

    def dead(self):
        """Return the ids of dead letters."""
        key = self.scheduler.keys.key("dead")
        return [job.decode() for job in self.client.zrange(key, 0, -1)] if self.client.type(key) == b"zset" else []

    def goes_on(self):
        """Do all that a fleet does, for longer than a worker may be silent."""
        scheduler = self.scheduler
        for _ in range(3):
            scheduler.advance(3)
            scheduler.tick()
            while ending := scheduler.announce("shop", again_s=5):
                if ending.how:
                    scheduler.told([ending.job_id])
                else:
                    scheduler.set_aside([ending.job_id])
            for worker in self.workers:
                worker.work()

    def do_everything(self):
        """Call every arrow, on old jobs and workers, on fresh ones, and on names that nobody has."""
        scheduler = self.scheduler
        self.goes_on()
        fresh = Worker(scheduler, f"fresh{self.number}", "web", "fresh")
        self.fresh.append(fresh)
        fresh_jobs = self.publish("fresh", 3) + self.publish("fresh", delay_us=1_000_000)
        scheduler.advance(2)
        scheduler.tick()
        fresh.work()
        assert set(fresh_jobs) <= set(fresh.ran), "jobs of another type and worker run"
        old = [job for type_ in ("pdf", "excel", "web") for job in self.publish(type_, 2)]
        self.goes_on()
        scheduler.requeue("w1", [("j1", "1")], counted=True)
        scheduler.publish(*(Job(f"many{self.number}.{nth}", "none", "message", task_id="many") for nth in range(3)))
        scheduler.revoke(["t1", "many", old[0]], [STAMP], keep_s=60)
        scheduler.replay(["j1", "j2", old[1]])
        scheduler.drop(self.dead())
        scheduler.configure({"priority_percentage": "100"})
        scheduler.purge("nobody's")
        self.publish("web", 3)
        fresh.read()
        scheduler.recover(fresh.name)
        self.goes_on()
        gone = Worker(scheduler, f"gone{self.number}", "pdf")
        scheduler.leave(gone.name)
        self.goes_on()
        return [job for job in old if job not in self.ran]

    @property
    def ran(self):
        return {job for worker in self.workers + self.fresh for job in worker.ran}


def _delete(client, key, kind):
    client.delete(key)


def _another_type(client, key, kind):
    client.delete(key)
    if kind == "string":
        client.rpush(key, "ghost")
    else:
        client.set(key, "ghost")


def _ghost(client, key, kind):
    if kind == "hash":
        client.hset(key, "ghost", "ghost")
    elif kind == "zset":
        client.zadd(key, {"ghost": 0})
    elif kind == "list":
        client.rpush(key, "ghost", "a b c d e\nghost")
    else:
        client.append(key, " ghost")


def _values(value):
    def spoil(client, key, kind):
        if kind == "hash":
            client.hset(key, mapping=dict.fromkeys(client.hkeys(key), value))
        elif kind == "zset":
            score = "-inf" if value == "inf" else "+inf" if value == "1e400" else 1.5
            client.zadd(key, dict.fromkeys(client.zrange(key, 0, -1), score))
        elif kind == "list":
            client.rpush(key, value)
        else:
            client.set(key, value)

    return spoil


FAULTS = {
    "deleted": _delete,
    "another type": _another_type,
    "ghost": _ghost,
    "x": _values("x"),
    "empty": _values(""),
    "nan": _values("nan"),
    "inf": _values("inf"),
    "1e400": _values("1e400"),
    "no UTF-8": _values(b"\xff\n "),
}


@pytest.mark.parametrize("name", sorted(KEYS.keys() - LEFT))
def test_whatever_is_spoiled_the_rest_goes_on(redis_client, name):
    is_valkey = "valkey_version" in redis_client.info("server")
    faults = FAULTS if is_valkey else {each: FAULTS[each] for each in ("deleted", "another type", "x")}
    for fault, spoil in faults.items():
        redis_client.flushall()
        scene = Scene(redis_client)
        keys = scene.keys_of(name)
        assert keys, f"there is a key of {name}"
        for key in keys:
            spoil(redis_client, key, KEYS[name][1])
        try:
            scene.do_everything()
            scene.scheduler.repair()  # as a dispatcher does each minute
            missed = scene.do_everything()
            assert not missed, "jobs published since run"
            if name not in TELLS_OF_JOBS:
                assert not set(scene.jobs) - scene.ran, "no job was lost"
        except Exception as exc:
            exc.add_note(f"{name}, {fault}")
            raise


def test_where_nothing_is_spoiled_nothing_is_found(redis_client):
    scene = Scene(redis_client)
    assert scene.scheduler.repair() == []
    assert scene.scheduler.repair(["j1", "w1"]) == []


def test_what_is_found_is_told_counted_and_kept_for_a_while(redis_client, caplog):
    scene = Scene(redis_client)
    key = scene.scheduler.keys.key
    redis_client.zadd(key("scheduled"), {"ghost": 0})
    redis_client.delete(key("heads"))
    redis_client.set(key("heads"), "garbage")
    scene.publish("pdf")
    scene.scheduler.tick()
    (failed, *found) = [record.getMessage() for record in caplog.records]
    assert "publish failed: WRONGTYPE" in failed
    assert any("heads, which held what it must not" in each for each in found)
    scene.scheduler.repair()
    assert "job ghost, found in scheduled" in caplog.text
    assert int(redis_client.hget(key("counters"), "spoiled")) >= len(found)
    assert redis_client.get(key("set_aside", "heads")) == b"garbage"
    assert 0 < redis_client.ttl(key("set_aside", "heads")) <= 7 * 86400


def test_a_job_of_which_half_was_written_is_published_when_that_is_repeated(redis_client):
    """A script that fails midway leaves its writes so far: the id is known, but no lane has the job."""
    fleet = ScriptedFleet(ClockedScheduler(redis_client, Keys()))
    fleet.publish("half", "pdf")
    fleet.publish("later", "pdf", delay_s=60)
    redis_client.delete(
        *redis_client.keys("*lane:*"), fleet.scheduler.keys.key("heads"), fleet.scheduler.keys.key("scheduled")
    )
    assert fleet.publish("half", "pdf")
    assert not fleet.publish("half", "pdf")
    assert fleet.publish("later", "pdf", delay_s=60)
    assert not fleet.publish("later", "pdf", delay_s=60)
    fleet.join("worker", "pdf", slots=5)
    assert fleet.jobs("worker") == ["half"]


def test_a_job_whose_row_is_gone_is_kept_among_the_dead_letters_with_its_message(redis_client):
    fleet = ScriptedFleet(ClockedScheduler(redis_client, Keys()))
    key = fleet.scheduler.keys.key
    fleet.publish("gone", "pdf", delay_s=1)
    fleet.publish("job", "pdf", delay_s=1)
    redis_client.delete(key("job", "gone"))
    fleet.scheduler.advance(2)
    assert fleet.scheduler.tick().due == 2
    assert fleet.state("job") == "pending"
    assert redis_client.hmget(key("job", "gone"), "state", "reason") == [b"dead", b"unreadable"]
    assert redis_client.get(key("message", "gone")) == b"message of gone"


def test_a_real_worker_goes_on_while_keys_are_spoiled(load_app, valkey, tmp_path):
    typed_app = load_app(APP)
    client, ledger, key = redis.Redis.from_url(valkey.url), Ledger(tmp_path / "ledger"), Keys().key
    client.flushall()
    env = {"LEDGER": str(ledger.path), "HEARTBEAT_INTERVAL": "0.5", "WORKER_TIMEOUT": "3"}
    worker = start_worker(APP, valkey.url, ["pdf", "excel"], env=env)
    wait_until(lambda: client.exists(key("beats")), 30, f"it joins\n{worker.log()}")
    (id_,) = (each.decode() for each in client.zrange(key("joined"), 0, -1))
    (profile,) = (each.decode() for each in client.hkeys(key("members")))
    pdf, excel = typed_app.tasks["tests.support.apps.typed.pdf"], typed_app.tasks["tests.support.apps.typed.excel"]

    def spoil(name):
        {
            "the inbox": lambda: _another_type(client, key("inbox", id_), "list"),
            "the free slots": lambda: client.hset(key("free_slots"), profile, "x"),
            "the schedule": lambda: client.zadd(key("scheduled"), {"ghost": 0}),
            "what is to be told": lambda: client.zadd(key("untold"), {"ghost": 0}),
            "the workers' times": lambda: client.zadd(key("beats"), {"ghost": 1}),
            "the heads": lambda: client.hset(key("heads"), "pdf", "x"),
            "the worker": lambda: client.delete(key("worker", id_)),
            "the counters": lambda: _another_type(client, key("counters"), "hash"),
            "what it reads": lambda: client.rpush(key("inbox", id_), b"\xff"),
        }[name]()

    spoilt = ["the inbox", "the free slots", "the schedule", "what is to be told", "the workers' times", "the heads"]
    spoilt += ["the worker", "the counters", "what it reads"]
    for number, name in enumerate(spoilt):
        spoil(name)
        jobs = [f"at-once-{number}", f"later-{number}", f"sheet-{number}"]
        pdf.apply_async((jobs[0],))
        pdf.apply_async((jobs[1],), countdown=0.5)
        excel.apply_async((jobs[2],))
        wait_until(lambda jobs=jobs: all(ledger.ends()[job] for job in jobs), 30, f"after {name}\n{worker.log()}")
    assert worker.is_running
    assert client.zscore(key("untold"), "ghost") is None
    assert set(ledger.ends().values()) == {1}, "no job ran twice"
    assert "Somebody else deleted or overwrote" in worker.log()
