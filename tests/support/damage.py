"""Simulate another client that damages the fleet's keys: keys of every kind, and strings with every separator."""

from collections import Counter
from dataclasses import dataclass, field

from celery_affinity.schema.job_record import is_batch
from celery_affinity.schema.keys import KEYS, Keys

from .busy_fleet import PUBLISHED

#: Characters that separate fields in the package's Redis strings or key names.
SEPARATORS = " :/,\n\0%{}"

#: Strings that the other client writes: each separator, all separators, and parts of valid strings of the fleet.
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
        "nan",
        "-inf",
        "1e300",
        "-5",
        "9" * 30,
        "key:tenant%3Ax y",
        "{affinity:default}:job:j1",
    )
)

#: Keys with data that no other key contains: damage to such a key loses jobs or job states. A repair rebuilds all other
#: keys from these keys.
TELLS_OF_JOBS = {"expires", "job", "message", "lane", "scheduled", "callers", "reported_calls"}

#: Redis type -> function that writes a string into a key of this type.
TYPES = {
    "string": lambda client, key, text: client.set(key, text),
    "list": lambda client, key, text: client.rpush(key, text),
    "hash": lambda client, key, text: client.hset(key, text, text),
    "zset": lambda client, key, text: client.zadd(key, {text: 0}),
    "set": lambda client, key, text: client.sadd(key, text),
    "stream": lambda client, key, text: client.xadd(key, {"x": text}),
}

#: Scores that are not valid times, or that are too early or too late.
SCORES = (0, -1, 1.5, 3e18, float("inf"), float("-inf"))


def _delete(client, key, kind, text, rng):
    client.delete(key)


def _another_type(client, key, kind, text, rng):
    client.delete(key)
    TYPES[rng.choice([each for each in TYPES if each != kind])](client, key, text)


def _add(client, key, kind, text, rng):
    """Add an entry, in sorted sets usually before all other entries."""
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
    """Overwrite the value of an existing entry."""
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
    """The damage to one key."""

    #: Kind of the key (its name in `KEYS`).
    name: str
    key: bytes
    #: Kind of the damage (its name in `FAULTS`).
    fault: str
    #: The string that was written.
    text: bytes
    #: Number of entries that may be wrong because of the damage.
    entries: int = 1
    #: Ids of the jobs that may be lost because of the damage.
    lost: set[str] = field(default_factory=set)
    #: Ids of the jobs that may be lost if the list of the keys for which jobs wait is damaged as well: only the two
    #: lists lead to these jobs.
    kept: set[str] = field(default_factory=set)

    def __str__(self):
        return f"{self.key.decode(errors='backslashreplace')} {self.fault} {self.text!r}"


def do(client, name, key, fault, text, rng):
    """Damage *key*, of the kind *name*, with *text*. Return the damage, or None if the key no longer exists."""
    kind = KEYS[name][1]
    if client.type(key).decode() != kind:
        return None
    damage = Damage(name, key, fault, text)
    members = _members(client, key, kind)
    if fault != "added":
        damage.entries = max(1, len(members)) if fault != "overwritten" else 1
        if name == "kept_back":
            lane = key.replace(b":lane:kept:", b":lane:")  # a tick may block more of its jobs
            damage.kept = {each.decode(errors="replace") for each in (*members, *_of_zset(client, lane))}
        if name in TELLS_OF_JOBS:
            damage.lost = {each.decode(errors="replace") for each in members} | {key.decode().rpartition(":")[2]}
            for batch in filter(is_batch, list(damage.lost)):
                callers = _of_zset(client, Keys().key("callers", batch))
                damage.lost |= {call.decode(errors="replace") for call in callers}
    FAULTS[fault](client, key, kind, text, rng)
    return damage


def _of_zset(client, key):
    return client.zrange(key, 0, -1) if client.type(key) == b"zset" else []


def _members(client, key, kind):
    if kind == "zset":
        return client.zrange(key, 0, -1)
    if kind == "hash":
        return client.hkeys(key)
    return [b""] * client.llen(key) if kind == "list" else []


def everything(client):
    """Return all data of the server. Large hashes are returned as fields, because their dumps have no fixed order."""
    keys = sorted(client.scan_iter(count=1000))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
            pipe.dump(key)
        found = pipe.execute()
    kinds, dumps = found[::2], found[1::2]
    with client.pipeline(transaction=False) as pipe:
        hashes = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"hash"]
        for key in hashes:
            pipe.hgetall(key)
        fields = dict(zip(hashes, pipe.execute(), strict=True))
    return {key: fields.get(key, dump) for key, dump in zip(keys, dumps, strict=True)}


def at_random(scene, rng, number, names=KEYS):
    """Damage *number* random keys of *scene*, of the kinds in *names*. Return the list of damages."""
    keys = {name: existing for name in names if (existing := scene.keys_of(name))}
    done = []
    for _ in range(number):
        name = rng.choice(sorted(keys))
        key = rng.choice(keys[name])
        done.append(do(scene.client, name, key, rng.choice(sorted(FAULTS)), rng.choice(TEXTS), rng))
    return [damage for damage in done if damage]


def problems(scene, done):
    """Run *scene* with repairs after the damage in *done*. Return a description of each remaining problem."""
    findings = 0
    try:
        scene.do_everything()
        findings += len(scene.scheduler.repair())  # a dispatcher does this each minute
        scene.do_everything()
        findings += len(scene.scheduler.repair())
        missed = scene.do_everything()
        remaining = scene.scheduler.repair(thorough=True)
        findings += len(remaining)
        remaining = scene.scheduler.repair(thorough=True) if remaining else []
    except Exception as exc:  # the test reports it
        return [f"{type(exc).__name__}: {str(exc)[:300]}"]
    found = []
    if missed:
        found.append(f"jobs published since did not run: {missed}")
    if remaining:
        found.append(f"a second repair still has findings: {remaining[:3]}")
    times = Counter(job for worker in scene.workers + scene.fresh for job in worker.ran)
    touched = set().union(*(damage.lost for damage in done))
    if any(damage.name == "waiting_keys" for damage in done):
        touched |= set().union(*(damage.kept for damage in done))
    if again := {job for job, number in times.items() if number > 1} - touched:
        found.append(f"jobs ran twice: {sorted(again)}")
    if lost := set(scene.jobs) - times.keys() - touched:
        found.append(f"jobs did not run: {sorted(lost)}")
    entries = sum(damage.entries for damage in done)
    if len(strange := [job for job in times if not (job and PUBLISHED.fullmatch(job))]) > entries:
        found.append(f"{len(strange)} unpublished jobs ran after {entries} damaged entries")
    if findings > 40 + 20 * entries:
        found.append(f"{findings} findings of {entries} damaged entries")
    return found
