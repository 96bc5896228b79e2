"""Hints of locality: jobs that have some, what an operator has them count for, and what is left of them when all is
quiet.
"""

import random

import redis

from celery_affinity.schema.constants import MAX_HINTS
from celery_affinity.schema.keys import Keys
from celery_affinity.schema.rules_codec import HINTED

#: Share, %, of jobs with a hint; their hints: more than a worker holds.
WITH_A_HINT = 20
HINTS = tuple(f"model:{number}" for number in range(MAX_HINTS + 4))

#: What an operator chooses from, by setting.
PREFERENCES = {
    "placement": ("idle", "weighted", "weighted"),
    "locality_bonus": ("0", "80", "800"),
    "tenant_turns": ("age", "age", "share"),  # by shares there is no bonus
    "placement_locality_weight": ("0", "5", "50"),
}


def some_hint(rng: random.Random) -> dict[str, str]:
    """Return the options of a job, some of which have a hint."""
    return {"locality": rng.choice(HINTS)} if rng.random() * 100 < WITH_A_HINT else {}


def some_preference(rng: random.Random) -> dict[str, str]:
    return {name: rng.choice(values) for name, values in PREFERENCES.items()}


def without_mark(job: str) -> str:
    """Return the id of a job without the mark of its hint: the ledger has it so."""
    return job.removesuffix(HINTED)


def leaks(client: redis.Redis, keys: Keys) -> list[str]:
    """Return what is wrong with the hints of workers, and with the holders of hints."""
    key = keys.key
    live = {worker.decode() for worker in client.zrange(key("heartbeats"), 0, -1)}
    held = {name: _members(client, keys.key("hints", name)) for name in _names(client, keys.key("hints", ""))}
    holders = {name: _members(client, keys.key("holders", name)) for name in _names(client, keys.key("holders", ""))}
    found = [f"hints of a worker that is gone: {worker}" for worker in held.keys() - live]
    for worker in live:
        words = (client.hget(key("worker", worker), "hints") or b"").decode().split()
        if words != sorted(held.get(worker, ())) or len(words) > MAX_HINTS:
            found.append(f"{worker} holds {words} by its row, and {held.get(worker)} by its key")
    pairs = {(worker, hint) for worker, its in held.items() for hint in its}
    others = {(worker, hint) for hint, its in holders.items() for worker in its}
    return found + [f"a hint that only one side knows: {pair}" for pair in sorted(pairs ^ others)]


def _names(client: redis.Redis, prefix: str) -> list[str]:
    return [name.decode().removeprefix(prefix) for name in client.scan_iter(f"{prefix}*", count=1000)]


def _members(client: redis.Redis, name: str) -> set[str]:
    return {each.decode() for each in client.zrange(name, 0, -1)}
