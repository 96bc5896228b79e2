"""Damage that another program does to the fleet's keys: any kind of key, and texts that contain every separator."""

from collections import Counter
from dataclasses import dataclass, field

from celery_affinity.rules.marks import is_batch
from celery_affinity.rules.redis_keys import KEYS, Keys

from .busy_fleet import PUBLISHED

#: Characters at which some text in Redis, or a key's name, is split.
SEPARATORS = " :/,\n\0%{}"

#: Texts that other programs write: each separator, all together, and what looks like a part of a text of the fleet's.
TEXTS = tuple(
    text.encode("latin-1")
    for text in (
        *(f"x{separator}y" for separator in SEPARATORS),
        SEPARATORS,
        "a b c d e",
        "queued.0 5 ghost",
        "pdf queued.0",
        "x\ty\x0bz",
        "\xff\xfe z",
        "%20",
        "",
        "ghost",
        *(f"{begin}{mark}" for begin in ("ghost", "g h") for mark in ("!", "&", "$", "~", "*", "+", "*!")),
        "1e400",
        "-5",
        "9" * 30,
        "key:tenant%3Ax y",
        "{affinity:default}:job:j1",
    )
)

#: Keys with facts that no other key has: a damaged one takes jobs, or the state of jobs, along. All other keys are made
#: again from the keys there are.
TELLS_OF_JOBS = {"expires", "job", "message", "lane", "scheduled", "callers", "told_callers"}

#: The types that a key can have, by a function that writes a key of that type with a text.
TYPES = {
    "string": lambda client, key, text: client.set(key, text),
    "list": lambda client, key, text: client.rpush(key, text),
    "hash": lambda client, key, text: client.hset(key, text, text),
    "zset": lambda client, key, text: client.zadd(key, {text: 0}),
    "set": lambda client, key, text: client.sadd(key, text),
    "stream": lambda client, key, text: client.xadd(key, {"x": text}),
}

#: Scores that are no times, and times that are too early or too late.
SCORES = (0, -1, 1.5, 3e18, float("inf"), float("-inf"))


def _delete(client, key, kind, text, rng):
    client.delete(key)


def _another_type(client, key, kind, text, rng):
    client.delete(key)
    TYPES[rng.choice([each for each in TYPES if each != kind])](client, key, text)


def _add(client, key, kind, text, rng):
    """Add an entry, mostly one that goes before all others."""
    if kind == "zset":
        client.zadd(key, {text: rng.choice((*SCORES, 0, 0, 0))})
    elif kind == "hash":
        client.hset(key, text, rng.choice(TEXTS))
    elif kind == "list":
        rng.choice((client.rpush, client.lpush))(key, text)
    elif kind == "stream":
        client.xadd(key, {"x": text})
    else:
        client.append(key, text)


def _overwrite(client, key, kind, text, rng):
    """Write another value into an entry that is there."""
    if kind == "zset":
        client.zadd(key, {rng.choice(sorted(client.zrange(key, 0, -1))): rng.choice(SCORES)})
    elif kind == "hash":
        client.hset(key, rng.choice(sorted(client.hkeys(key))), text)
    elif kind == "list":
        client.lset(key, rng.randrange(client.llen(key)), text)
    elif kind == "stream":
        client.xadd(key, {"worker": text})
    else:
        client.set(key, text)


def _overwrite_all(client, key, kind, text, rng):
    if kind == "zset":
        client.zadd(key, dict.fromkeys(client.zrange(key, 0, -1), rng.choice(SCORES)))
    elif kind == "hash":
        client.hset(key, mapping=dict.fromkeys(client.hkeys(key), text))
    elif kind == "list":
        client.delete(key)
        client.rpush(key, text, text)
    else:
        _overwrite(client, key, kind, text, rng)


FAULTS = {
    "deleted": _delete,
    "another type": _another_type,
    "added": _add,
    "overwritten": _overwrite,
    "all overwritten": _overwrite_all,
}


@dataclass
class Damage:
    """What another program did to one *key* of the kind *name*. *entries*: number of entries that may be wrong since.

    *lost*: ids of jobs that may be lost with it.
    """

    name: str
    key: bytes
    fault: str
    text: bytes
    entries: int = 1
    lost: set[str] = field(default_factory=set)

    def __str__(self):
        return f"{self.key.decode(errors='backslashreplace')} {self.fault} {self.text!r}"


def do(client, name, key, fault, text, rng):
    """Damage *key*, of the kind *name*, with *text*. Return what was done; None if the key is gone already."""
    kind = KEYS[name][1]
    if client.type(key).decode() != kind:
        return None
    damage = Damage(name, key, fault, text)
    members = _members(client, key, kind)
    if fault != "added":
        damage.entries = max(1, len(members)) if fault != "overwritten" else 1
        if name in TELLS_OF_JOBS:
            damage.lost = {each.decode(errors="replace") for each in members} | {key.decode().rpartition(":")[2]}
            for batch in filter(is_batch, list(damage.lost)):
                damage.lost |= {call.decode() for call in client.zrange(Keys().key("callers", batch), 0, -1)}
    FAULTS[fault](client, key, kind, text, rng)
    return damage


def _members(client, key, kind):
    if kind == "zset":
        return client.zrange(key, 0, -1)
    if kind == "hash":
        return client.hkeys(key)
    return [b""] * client.llen(key) if kind == "list" else []


def at_random(scene, rng, number, names=KEYS):
    """Damage *number* keys of *scene*, of any kinds in *names*. Return what was done."""
    keys = {name: found for name in names if (found := scene.keys_of(name))}
    done = []
    for _ in range(number):
        name = rng.choice(sorted(keys))
        key = rng.choice(keys[name])
        done.append(do(scene.client, name, key, rng.choice(sorted(FAULTS)), rng.choice(TEXTS), rng))
    return [damage for damage in done if damage]


def problems(scene, done):
    """Have *scene* go on after the damage in *done*, with repairs. Return what is wrong then, in words."""
    findings = 0
    try:
        scene.do_everything()
        findings += len(scene.scheduler.repair())  # as a dispatcher does each minute
        scene.do_everything()
        findings += len(scene.scheduler.repair())
        missed = scene.do_everything()
        left = scene.scheduler.repair(thorough=True)
        findings += len(left)
        left = scene.scheduler.repair(thorough=True) if left else []
    except Exception as exc:  # the test reports it
        return [f"{type(exc).__name__}: {str(exc)[:300]}"]
    found = []
    if missed:
        found.append(f"jobs published since did not run: {missed}")
    if left:
        found.append(f"a repair does not mend it: {left[:3]}")
    times = Counter(job for worker in scene.workers + scene.fresh for job in worker.ran)
    touched = set().union(*(damage.lost for damage in done))
    if again := {job for job, number in times.items() if number > 1} - touched:
        found.append(f"jobs ran twice: {sorted(again)}")
    if lost := set(scene.jobs) - times.keys() - touched:
        found.append(f"jobs did not run: {sorted(lost)}")
    entries = sum(damage.entries for damage in done)
    if len(strange := [job for job in times if not (job and PUBLISHED.fullmatch(job))]) > entries:
        found.append(f"{len(strange)} jobs ran that nobody published, after {entries} damaged entries")
    if findings > 40 + 20 * entries:
        found.append(f"{findings} findings of {entries} damaged entries")
    return found
