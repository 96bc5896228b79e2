"""Locality hints: hints of jobs, an operator's placement settings, and the hints in Redis of a quiet fleet."""

import random

import redis

from celery_affinity.schema.constants import MAX_HINTS
from celery_affinity.schema.keys import Keys
from celery_affinity.schema.rules_codec import HINTED

#: Percentage of jobs with a hint, and their hints: more than a worker can hold.
WITH_A_HINT = 20
HINTS = tuple(f"model:{number}" for number in range(MAX_HINTS + 4))

#: Setting -> the values that an operator chooses from.
PREFERENCES = {
    "placement": ("idle", "weighted", "weighted"),
    "locality_bonus": ("0", "80", "800"),
    "tenant_turns": ("age", "age", "share"),  # fair share ignores the bonus
    "placement_locality_weight": ("0", "5", "50"),
    "stretch": ("0", "2"),  # run times give jobs a head start
}


def some_hint(rng: random.Random) -> dict[str, str]:
    """Return the options of a job, sometimes with a hint."""
    return {"locality": rng.choice(HINTS)} if rng.random() * 100 < WITH_A_HINT else {}


def some_preference(rng: random.Random) -> dict[str, str]:
    return {name: rng.choice(values) for name, values in PREFERENCES.items()}


def without_mark(job: str) -> str:
    """Return the id of a job without the suffix of its hint, like in the ledger."""
    return job.removesuffix(HINTED)


def leaks(client: redis.Redis, keys: Keys) -> list[str]:
    """Return the inconsistencies between the hints of workers and the holders of hints."""
    key = keys.key
    live = {worker.decode() for worker in client.zrange(key("heartbeats"), 0, -1)}
    held = {name: _members(client, keys.key("hints", name)) for name in _names(client, keys.key("hints", ""))}
    holders = {name: _members(client, keys.key("holders", name)) for name in _names(client, keys.key("holders", ""))}
    found = [f"hints of a worker that left: {worker}" for worker in held.keys() - live]
    for worker in live:
        in_hash = (client.hget(key("worker", worker), "hints") or b"").decode().split()
        if in_hash != sorted(held.get(worker, ())) or len(in_hash) > MAX_HINTS:
            found.append(f"{worker} has the hints {in_hash} in its hash, and {held.get(worker)} in its key")
    pairs = {(worker, hint) for worker, hints in held.items() for hint in hints}
    others = {(worker, hint) for hint, workers in holders.items() for worker in workers}
    return found + [f"a hint in only one of both keys: {pair}" for pair in sorted(pairs ^ others)]


def _names(client: redis.Redis, prefix: str) -> list[str]:
    return [name.decode().removeprefix(prefix) for name in client.scan_iter(f"{prefix}*", count=1000)]


def _members(client: redis.Redis, name: str) -> set[str]:
    return {each.decode() for each in client.zrange(name, 0, -1)}
