"""Small random scenarios with many ties: times on a coarse grid, few types, few priorities."""

from dataclasses import replace

from hypothesis import strategies as st

from celery_affinity.lab.scenario import Arrival, Scenario
from celery_affinity.lab.trace import TracedWorker

TYPES = ("pdf", "xls", "ocr", "röntgen 1")

#: µs between two points of the grid.
GRID_US = 500_000


def _scenario(random, *, jobs):
    types = TYPES[: random.randint(1, len(TYPES))]
    workers = tuple(_worker(random, types, nth) for nth in range(random.randint(1, 5)))
    grid = random.choice((1, GRID_US, 60 * GRID_US))
    arrivals = [_arrival(random, types, nth, grid, jobs) for nth in range(random.randint(1, jobs))]
    if random.random() < 0.3:
        arrivals = [_held(random, each, workers) for each in arrivals]
    arrivals.sort(key=lambda each: (each.since_us, each.number))
    paused = tuple(type_ for type_ in types if random.random() < 0.05)
    return Scenario(workers, tuple(arrivals), _settings(random, types), paused)


def _worker(random, types, nth):
    served = tuple(random.sample(types, random.randint(1, len(types))))
    joined_us = random.choice((0, 0, random.randint(0, 20) * GRID_US))
    left_us = joined_us + random.randint(0, 30) * GRID_US if random.random() < 0.3 else None
    return TracedWorker(f"w{nth}@h", served, random.choice((1, 1, 2, 3, 12)), joined_us, left_us)


def _arrival(random, types, number, grid, jobs):
    since_us = random.randint(-1, jobs // 2) * grid
    back_us = random.randint(1, 5) * grid if random.random() < 0.1 else 0
    return Arrival(
        number,
        random.choice(types),
        since_us,
        since_us - back_us,
        random.choice((0, 1, 2, 3, 5, 8, 40)) * grid,
        on_demand=random.random() < 0.3,
        priority=random.choice((5, 5, 0, 3, 10)),
        **_key(random),
        **_due(random, grid),
    )


def _held(random, arrival, workers):
    """Return *arrival* as a job already held by a worker, if it arrived before the start."""
    if arrival.since_us >= 0:
        return arrival
    name = random.choice([each.name for each in workers if arrival.type in each.types] or ["nobody"])
    since_us = -random.randint(1, 9) * GRID_US
    enqueued_us = min(arrival.enqueued_us, since_us)
    return replace(arrival, since_us=-1, enqueued_us=enqueued_us, held_by=name, held_since_us=since_us)


def _key(random):
    """Return the key fields of a job, often without a key."""
    tenant = random.choice((None, None, None, "t1", "t2"))
    kind = random.random()
    if kind < 0.15:
        return {"exclusive": random.choice(("a", "b b")), "exclusive_limit": random.choice((None, "1", "2"))}
    if kind < 0.25:
        return {"rate": random.choice("ab"), "rate_limit": random.choice(("1/s", "2/m", "3/s"))}
    return {"tenant": tenant}


def _due(random, grid):
    """Return the due time and the size of a job, often without either."""
    return {
        "task": random.choice((None, "read", "render", "répeter")),
        "size": random.choice((None, None, 0, 0.5, 1, 7)),
        "start_within_us": random.choice((None, None, None, 0, 2 * grid, 20 * grid)),
        "deadline_us": random.choice((None, None, None, -grid, 5 * grid, 30 * grid)),
        "head_us": random.choice((None, None, None, None, 0, 10 * grid)),
        "is_learned": random.random() < 0.9,
    }


def _settings(random, types):
    settings = {}
    choices = {
        "priority_weight": ("1024", "0", "0.5", "16"),
        "age_weight": ("16", "1", "0.3", "100"),
        "rarity_weight": ("500", "0", "17.25"),
        "on_demand_weight": ("4096", "0", "8"),
        "on_demand_age_weight": ("32", "0", "0.7"),
        "on_demand_age_cap_us": ("256000000", "0", "3000000"),
        "priority_percentage": ("100", "90", "50", "0"),
        "rarity": ("capacity", "free"),
        "key_patience_us": ("0", "1000000", "3000000"),
        "tenants": ("t1=max:1", "t1=max:2 *=max:1", "t2=max:0"),
        "priority_reversed": ("0", "1"),
        "stretch": ("0", "1", "2.5", "16"),
        "target_wait_us": ("256000000", "10000000", "0"),
    }
    for name, values in choices.items():
        if random.random() < 0.4:
            settings[name] = random.choice(values)
    limited = [type_ for type_ in types if random.random() < 0.3 and " " not in type_]
    if limited:
        settings["limits"] = " ".join(f"type%3A{type_}={random.choice((0, 1, 1, 2, 3))}" for type_ in limited)
    return settings


@st.composite
def scenarios(draw, jobs=40):
    """Draw a scenario with rules that the fast engine supports."""
    return _scenario(draw(st.randoms(use_true_random=False)), jobs=jobs)


def at_random(random, *, jobs=40):
    """Return a random scenario with rules that the fast engine supports."""
    return _scenario(random, jobs=jobs)
