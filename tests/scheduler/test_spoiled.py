"""Another client deletes or overwrites keys of a running fleet: other jobs continue, and the findings are logged."""

import random
from itertools import chain
from types import SimpleNamespace

import pytest
import redis

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.constants import MAX_SPOILED
from celery_affinity.schema.keys import KEYS, Keys

from ..support import damage
from ..support.apps import APP
from ..support.busy_fleet import Scene
from ..support.ledger import Ledger
from ..support.processes import start_worker, wait_until

#: Kinds of keys that no scene has: damage creates them.
OF_REPAIRS = {"damage_log", "set_aside"}

#: Number of kinds of keys that are damaged together. Kinds that describe jobs are damaged singly, because jobs are lost
#: with them.
TOGETHER = 3
OTHERS = sorted(KEYS.keys() - OF_REPAIRS - damage.TELLS_OF_JOBS)
GROUPS = [[name] for name in sorted(damage.TELLS_OF_JOBS)]
GROUPS += [OTHERS[nth :: len(OTHERS) // TOGETHER + 1] for nth in range(len(OTHERS) // TOGETHER + 1)]

#: The keys that a repair itself writes, with each type that they may have.
OWN_STATES = [(name, kind) for name in ("damage_log", "set_aside", "counters") for kind in damage.TYPES]


def damaged(client, names, fault, text=None, own=None):
    """Apply *fault* to all keys of *names* and to a key of the repair (*own*). Return the problems."""
    client.flushall()
    scene, rng = Scene(client), random.Random(f"{names} {fault} {text}")
    if own:
        name, kind = own
        key = scene.scheduler.keys.key(name, *["heads"] * KEYS[name][0].count("%s"))
        client.delete(key)
        damage.TYPES[kind](client, key, rng.choice(damage.TEXTS))
    done = []
    for name in names:
        keys = scene.keys_of(name)
        assert keys, f"there is a key of {name}"
        done += [damage.do(client, name, key, fault, text or rng.choice(damage.TEXTS), rng) for key in keys]
    return damage.problems(scene, [each for each in done if each])


def report(client, cases):
    """Fail with all problems after the damage in *cases*, arguments of `damaged`. Retry failed groups key by key."""
    wrong = []
    for names, *rest in cases:
        if damaged(client, names, *rest):
            wrong += [f"{names} {rest}: {found}" for name in names if (found := damaged(client, [name], *rest))] or [
                f"{names} {rest}, all together"
            ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow_on_redis
@pytest.mark.parametrize("fault", sorted(damage.FAULTS))
def test_fleet_survives_damage_to_kinds_of_keys(redis_client, fault):
    report(redis_client, [(names, fault) for names in GROUPS])


@pytest.mark.slow_on_redis
def test_fleet_survives_any_member_among_waiting_jobs(redis_client):
    report(redis_client, [(["lane", "key_queue"], "added", text) for text in damage.TEXTS])


@pytest.mark.slow_on_redis
def test_fleet_survives_damage_that_once_stopped_it(redis_client):
    """Each of these scenes once failed: a damaged key hid another, an id was invalid, a setting was negative."""
    check_random_damage(redis_client, (1090, 1140, 1151, 1732, 2157, 2213), most=12)


@pytest.mark.slow  # some minutes of work
@pytest.mark.parametrize("text", damage.TEXTS, ids=ascii)
def test_fleet_survives_any_text_in_any_kind_of_key(redis_client, text):
    report(redis_client, [([name], fault, text) for name in chain.from_iterable(GROUPS) for fault in damage.FAULTS])


@pytest.mark.slow_on_redis
def test_fleet_survives_damage_to_keys_of_the_repair_too(redis_client):
    """Each type of each key of the repair, and each other kind of key."""
    number = max(len(OWN_STATES), len(GROUPS))
    pairs = [(GROUPS[nth % len(GROUPS)], OWN_STATES[nth % len(OWN_STATES)]) for nth in range(number)]
    faults = sorted(damage.FAULTS)
    report(redis_client, [(names, faults[nth % 5], None, own) for nth, (names, own) in enumerate(pairs)])


@pytest.mark.slow  # some minutes of work: all pairs
@pytest.mark.parametrize("own", OWN_STATES, ids=" ".join)
def test_fleet_survives_any_damage_next_to_a_repair_key(redis_client, own):
    report(redis_client, [(names, fault, None, own) for names in GROUPS for fault in damage.FAULTS])


def check_random_damage(client, seeds, most):
    """Damage some keys of a scene at random, once per seed. Fail with all problems."""
    wrong = []
    for seed in seeds:
        client.flushall()
        scene, rng = Scene(client), random.Random(seed)
        done = damage.at_random(scene, rng, rng.randint(1, most))
        if found := damage.problems(scene, done):
            wrong.append(f"seed {seed}: {[*map(str, done)]}: {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow_on_redis
def test_fleet_survives_random_damage_of_several_keys(redis_client):
    check_random_damage(redis_client, range(20), most=6)


@pytest.mark.slow  # some minutes of work
@pytest.mark.parametrize("part", range(10))
def test_fleet_survives_much_random_damage(redis_client, part):
    check_random_damage(redis_client, range(1000 + 200 * part, 1200 + 200 * part), most=12)


def test_undamaged_fleet_has_no_findings(redis_client):
    scene = Scene(redis_client)
    assert scene.scheduler.repair() == []
    assert scene.scheduler.repair(["j1", "w1"]) == []


@pytest.mark.parametrize("fault", ["added", "another type", "deleted"])
def test_reporting_repair_changes_nothing(valkey, redis_client, fault):
    wrong = []
    for name in chain.from_iterable(GROUPS):
        redis_client.flushall()
        scene, rng = Scene(redis_client), random.Random(f"{name} {fault}")
        for key in scene.keys_of(name):
            damage.do(redis_client, name, key, fault, rng.choice(damage.TEXTS), rng)
        before = damage.everything(redis_client)
        said = scene.scheduler.repair(thorough=True, says_only=True)
        if damage.everything(redis_client) != before:
            wrong.append(f"{name}: the report changes something")
        found = scene.scheduler.repair(thorough=True)
        if bool(said) != bool(found):
            wrong.append(f"{name}: reported {said}, repaired {found}")
    assert not wrong, "\n".join(wrong)


def test_findings_are_logged_counted_and_quarantined(redis_client, caplog):
    scene = Scene(redis_client)
    key = scene.scheduler.keys.key
    redis_client.zadd(key("scheduled"), {"ghost": 0})
    redis_client.delete(key("heads"))
    redis_client.set(key("heads"), "garbage")
    scene.publish("pdf")
    scene.scheduler.tick()
    (failed, *found) = [record.getMessage() for record in caplog.records]
    assert "Server function publish failed" in failed
    assert "WRONGTYPE" in failed
    assert any("heads, which held what it must not" in each for each in found)
    scene.scheduler.repair()
    assert "job ghost, found in scheduled" in caplog.text
    assert int(redis_client.hget(key("counters"), "spoiled")) >= len(found)
    assert redis_client.get(key("set_aside", "heads")) == b"garbage"
    assert 0 < redis_client.ttl(key("set_aside", "heads")) <= 7 * 86400


def test_number_of_logged_findings_is_limited(redis_client):
    scheduler = FakeClockScheduler(redis_client, Keys())
    redis_client.zadd(scheduler.keys.key("scheduled"), {f"ghost{number}": 0 for number in range(MAX_SPOILED + 1)})
    scheduler.tick()
    assert redis_client.llen(scheduler.keys.key("damage_log")) == MAX_SPOILED


def test_partly_written_job_is_published_by_a_repetition(fleet, redis_client):
    """A script that fails midway leaves its writes: the id exists, but no lane has the job."""
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


def test_job_with_a_lost_hash_is_dead_lettered(fleet, redis_client):
    key = fleet.scheduler.keys.key
    fleet.publish("gone", "pdf", delay_s=1)
    fleet.publish("job", "pdf", delay_s=1)
    redis_client.delete(key("job", "gone"))
    fleet.scheduler.advance(2)
    assert fleet.scheduler.tick().due == 2
    assert fleet.state("job") == "pending"
    assert redis_client.hmget(key("job", "gone"), "state", "reason") == [b"dead", b"unreadable"]
    assert redis_client.get(key("message", "gone")) == b"message of gone"


def test_real_worker_continues_while_keys_are_damaged(load_app, valkey, tmp_path):
    typed_app = load_app(APP)
    client, ledger, key = redis.Redis.from_url(valkey.url), Ledger(tmp_path / "ledger"), Keys().key
    client.flushall()
    env = {"LEDGER": str(ledger.path), "HEARTBEAT_INTERVAL": "0.5", "WORKER_TIMEOUT": "3"}
    worker = start_worker(APP, valkey.url, ["pdf", "excel"], env=env)
    wait_until(lambda: client.exists(key("heartbeats")), 30, f"it joins\n{worker.log()}")
    (id_,) = (each.decode() for each in client.zrange(key("joined"), 0, -1))
    (profile,) = (each.decode() for each in client.hkeys(key("members")))
    pdf, excel = typed_app.tasks["tests.support.apps.typed.pdf"], typed_app.tasks["tests.support.apps.typed.excel"]

    def another_type(name, *parts):
        client.delete(key(name, *parts))
        client.set(key(name, *parts), "ghost")

    def garbage():
        """Add a text with each separator to every key that describes no jobs, and to the lanes."""
        scene = SimpleNamespace(client=client, scheduler=SimpleNamespace(keys=Keys()))
        rng = random.Random(0)
        for text in damage.TEXTS:
            client.zadd(key("lane", "pdf", "queued.0"), {text: 0})
        for name in sorted(KEYS.keys() - damage.TELLS_OF_JOBS - {"schema", "set_aside"}):
            for each in Scene.keys_of(scene, name):
                damage.do(client, name, each, "added", rng.choice(damage.TEXTS), rng)

    storms = {
        "what the worker reads and the schedule": (
            lambda: another_type("inbox", id_),
            lambda: client.zadd(key("scheduled"), {"ghost": 0}),
            lambda: client.zadd(key("unreported"), {"ghost": 0}),
        ),
        "what is known of workers": (
            lambda: client.hset(key("free_slots"), profile, "x"),
            lambda: client.zadd(key("heartbeats"), {"ghost": 1}),
            lambda: client.hset(key("heads"), "pdf", "x"),
        ),
        "the worker and the records": (
            lambda: client.delete(key("worker", id_)),
            lambda: another_type("counters"),
            lambda: another_type("damage_log"),
            lambda: client.rpush(key("inbox", id_), b"\xff"),
        ),
        "separators everywhere": (garbage,),
    }
    for number, (name, faults) in enumerate(storms.items()):
        jobs = [f"before-{number}", f"at-once-{number}", f"later-{number}", f"sheet-{number}"]
        pdf.apply_async((jobs[0],))
        for fault in faults:
            fault()
        pdf.apply_async((jobs[1],))
        pdf.apply_async((jobs[2],), countdown=0.5)
        excel.apply_async((jobs[3],))
        wait_until(lambda jobs=jobs: all(ledger.ends()[job] for job in jobs), 30, f"after {name}\n{worker.log()}")
    assert worker.is_running
    assert client.zscore(key("unreported"), "ghost") is None
    assert set(ledger.ends().values()) == {1}, "no job ran twice"
    assert "Another program deleted or overwrote" in worker.log()
    assert client.zcard(key("dead")) <= 1, "garbage in a lane becomes no dead letter"
    assert worker.log().count("\n") < 20 * len(damage.TEXTS), worker.log()


def test_repair_of_a_small_fleet_takes_few_invocations(fleet, redis_client):
    fleet.join("worker", "pdf", "excel", slots=2)
    fleet.publish("job", "pdf")

    def calls():
        stats = redis_client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("fcall", "evalsha"))

    before = calls()
    assert not fleet.scheduler.repair()
    assert calls() <= before + 3  # a repair has twelve stages
