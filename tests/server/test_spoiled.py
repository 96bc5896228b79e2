"""Somebody deletes or overwrites keys under a running fleet: the rest goes on, and the log says what was found."""

import pytest
import redis

from celery_affinity.rules.protocol import MOST_SPOILED
from celery_affinity.rules.redis_keys import KEYS, Keys

from ..support.apps import APP
from ..support.busy_fleet import Scene
from ..support.clocked import ClockedScheduler
from ..support.ledger import Ledger
from ..support.processes import start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet

#: Keys with facts that no other key has: a spoiled one takes jobs, or the state of jobs, along. All other keys are made
#: again from the keys there are.
TELLS_OF_JOBS = {"expires", "job", "message", "lane", "scheduled", "callers", "told_callers"}

#: Keys that no fault test makes: faults leave these keys behind.
LEFT = {
    "spoiled",
    "set_aside",
    "idempotency",
    "trend",
    "trend_written",
    "recording",
    "recorded",
    "remote_worker",
    "left_to_celery",
    "remote_end",
}

#: The jobs of these tests have no hints: `test_locality` spoils what is known of those.
LEFT |= {"hints", "holders", "near_heads", "near_lane"}
#: Nor may they be stopped: `test_preemption` spoils what is known of stops.
LEFT |= {"preemptible", "giving", "vacating"}


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

#: Those with which each test of a repair tries each key.
USUAL = ("deleted", "another type", "x")

#: Faults that do to the scores of a sorted set what "x" does.
ALIKE_TO_SCORES = {"empty", "nan", "no UTF-8"}


def _faults_of(name):
    """Return the faults that a key is tried with: two, and one of the others, each key another one."""
    always = ["deleted", "x"]
    rest = sorted(FAULTS.keys() - set(always))
    return [*always, rest[sorted(KEYS).index(name) % len(rest)]]


@pytest.mark.slow_on_redis
@pytest.mark.parametrize("name", sorted(KEYS.keys() - LEFT))
def test_whatever_is_spoiled_the_rest_goes_on(redis_client, name):
    _spoil(redis_client, name, _faults_of(name))


@pytest.mark.slow  # some minutes of work: all faults of each key
@pytest.mark.parametrize("name", sorted(KEYS.keys() - LEFT))
def test_whatever_is_spoiled_in_whatever_way_the_rest_goes_on(redis_client, name):
    _spoil(redis_client, name, FAULTS)


def _spoil(redis_client, name, faults):
    kind = KEYS[name][1]
    for fault in faults:
        spoil = FAULTS[fault]
        if kind == "zset" and fault in ALIKE_TO_SCORES:
            continue
        redis_client.flushall()
        scene = Scene(redis_client)
        keys = scene.keys_of(name)
        assert keys, f"there is a key of {name}"
        for key in keys:
            spoil(redis_client, key, kind)
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


@pytest.mark.parametrize("name", sorted(KEYS.keys() - LEFT))
def test_a_repair_that_only_says_what_is_wrong_changes_nothing(valkey, redis_client, name):
    for fault in USUAL:
        redis_client.flushall()
        scene = Scene(redis_client)
        for key in scene.keys_of(name):
            FAULTS[fault](redis_client, key, KEYS[name][1])
        before = everything(redis_client)
        said = scene.scheduler.repair(thorough=True, says_only=True)
        assert everything(redis_client) == before, fault
        found = scene.scheduler.repair(thorough=True)
        assert bool(said) == bool(found), (fault, said, found)


def everything(client):
    """Return all that the server has; of a large hash the fields, which have no order."""
    return {key: client.hgetall(key) if client.type(key) == b"hash" else client.dump(key) for key in client.scan_iter()}


def test_what_is_found_is_told_counted_and_kept_for_a_while(redis_client, caplog):
    scene = Scene(redis_client)
    key = scene.scheduler.keys.key
    redis_client.zadd(key("scheduled"), {"ghost": 0})
    redis_client.delete(key("heads"))
    redis_client.set(key("heads"), "garbage")
    scene.publish("pdf")
    scene.scheduler.tick()
    (failed, *found) = [record.getMessage() for record in caplog.records]
    assert "The call of publish failed" in failed
    assert "WRONGTYPE" in failed
    assert any("heads, which held what it must not" in each for each in found)
    scene.scheduler.repair()
    assert "job ghost, found in scheduled" in caplog.text
    assert int(redis_client.hget(key("counters"), "spoiled")) >= len(found)
    assert redis_client.get(key("set_aside", "heads")) == b"garbage"
    assert 0 < redis_client.ttl(key("set_aside", "heads")) <= 7 * 86400


def test_of_very_many_finds_some_are_told(redis_client):
    scheduler = ClockedScheduler(redis_client, Keys())
    redis_client.zadd(scheduler.keys.key("scheduled"), {f"ghost{number}": 0 for number in range(MOST_SPOILED + 1)})
    scheduler.tick()
    assert redis_client.llen(scheduler.keys.key("spoiled")) == MOST_SPOILED


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
    wait_until(lambda: client.exists(key("heartbeats")), 30, f"it joins\n{worker.log()}")
    (id_,) = (each.decode() for each in client.zrange(key("joined"), 0, -1))
    (profile,) = (each.decode() for each in client.hkeys(key("members")))
    pdf, excel = typed_app.tasks["tests.support.apps.typed.pdf"], typed_app.tasks["tests.support.apps.typed.excel"]

    def spoil(name):
        {
            "the inbox": lambda: _another_type(client, key("inbox", id_), "list"),
            "the free slots": lambda: client.hset(key("free_slots"), profile, "x"),
            "the schedule": lambda: client.zadd(key("scheduled"), {"ghost": 0}),
            "what is to be told": lambda: client.zadd(key("untold"), {"ghost": 0}),
            "the workers' times": lambda: client.zadd(key("heartbeats"), {"ghost": 1}),
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
    assert "Another program deleted or overwrote" in worker.log()


def test_a_repair_of_a_small_fleet_takes_few_calls(redis_client):
    fleet = ScriptedFleet(ClockedScheduler(redis_client, Keys()))
    fleet.join("worker", "pdf", "excel", slots=2)
    fleet.publish("job", "pdf")

    def calls():
        stats = redis_client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("fcall", "evalsha"))

    before = calls()
    assert not fleet.scheduler.repair()
    assert calls() <= before + 3  # it has twelve stages
