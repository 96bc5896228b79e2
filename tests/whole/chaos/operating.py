"""One function per change of an operator in a storm: pauses, limits, reserves, quotas, preferences."""

from collections.abc import Callable

import redis

from .app import OF_MANY, TENANTS, TYPES
from .faults import Field
from .hints import some_preference
from .operator import LIMITED_KEYS, PAUSABLE


def pause_something(on: Field) -> None:
    """Pause a type, a key or everything for a while, with or without an expiry."""
    kind, name = on.rng.choice(PAUSABLE)
    for_s = on.rng.choice((None, None, on.rng.uniform(0.5, 3)))
    if not on.operator.is_paused(kind, name):
        end = on.operator.pause(kind, name, for_s)
        on.later(for_s - 0.2 if for_s else on.rng.uniform(0.3, 1.5 if kind == "all" else 4), lambda: _try(on, end))


def _try(on: Field, call: Callable[[], None]) -> None:
    """Run *call*, and repeat it while the server is down, in the same thread as the fault that restarts the server."""
    try:
        call()
    except (redis.RedisError, OSError):
        on.later(0.3, lambda: _try(on, call))


def change_limit(on: Field) -> None:
    """Set or remove the limit of a type, a key or many keys."""
    kind = on.rng.choices(("type", "key", "many"), (3, 1, 1))[0]
    if kind == "many":
        on.operator.limit(OF_MANY, on.rng.choice((None, 0, 1)))
    else:
        pattern = f"type:{on.rng.choice(TYPES)}" if kind == "type" else on.rng.choice(LIMITED_KEYS)
        on.operator.limit(pattern, on.rng.choice((None, 0, 1, 2, 3, 5)))


def change_reserve(on: Field) -> None:
    """Set or remove a reserve: the number or share of slots that jobs of a class leave to others."""
    name = f"{on.rng.choice(TYPES)}:{on.rng.choice(('queued', 'on_demand', '0', '0-4'))}"
    on.operator.reserve(name, on.rng.choice((None, "1", "3", "25%", "60%")))


def change_quota(on: Field) -> None:
    """Set the maximum of a tenant, or restore the app's maximum."""
    on.operator.quota(on.rng.choice([*TENANTS]), on.rng.choice((None, 0, 1, 2, 4)))


def change_preference(on: Field) -> None:
    """Change the weights of worker priority and locality hints, and the order of tenants."""
    on.operator.prefer(some_preference(on.rng))
