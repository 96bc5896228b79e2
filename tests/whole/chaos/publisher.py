"""One of the publishers: ``python -m tests.whole.chaos.publisher SEED JOBS JOBS_A_SECOND LONG_ONES_PERCENT``."""

import random
import sys
import time

from celery import chord

from celery_affinity import Exclusive

from . import app as app_module
from .app import HOW_MANY, MANY, RULES, TYPES, app, early, late, ledger, part, retrying, total

#: Share, %, of each kind of call; long calls come on top, as many as the storm wants.
SHARES = {"early": 41, "late": 29, "eta": 12, "retry": 8, "expires": 6, "chord": 1}

#: Share, %, of the calls of tasks that have a key, and of those that have one of many.
WITH_A_KEY, WITH_ONE_OF_MANY = 9, 6

#: Number of calls of which one waits for its result, at the end, and the longest wait, s.
ONE_WAITS_IN, WAITS_S = 100, 10.0


def main(seed: str, jobs: int, rate: float, long: int) -> None:
    rng = random.Random(seed)
    began = time.monotonic()
    waited_for = []
    with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        for number in range(jobs):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            try:
                result = _publish(rng, producer, long)
                if number % ONE_WAITS_IN == 0:
                    waited_for.append(result)
            except Exception as exc:  # the error that a caller sees; the judge says whether rightly
                ledger.note("refused", app_module.last_intended, error=type(exc).__name__, text=str(exc)[:200])
    ledger.note("published", seed)
    for result in waited_for:
        _wait_for(result)


def _wait_for(result) -> None:
    asked = time.monotonic()
    try:
        result.get(timeout=WAITS_S, propagate=False)
        ledger.note("got", result.id, state=result.state)
    except Exception as exc:
        ledger.note("waited", result.id, asked=asked, error=type(exc).__name__)


def _publish(rng: random.Random, producer, long: int):
    """Return the result of a call, as its task's own backend has it."""
    kind = rng.choices([*SHARES, "long"], [*SHARES.values(), long])[0]
    seconds = rng.choice((0.0, 0.002, 0.005, 0.01, 0.02))
    options = {
        "affinity": rng.choice(TYPES),
        "priority": rng.choice((0, 0, 0, 3, 5, 10)),
        "on_demand": rng.random() < 0.2,
        "producer": producer,
    }
    chosen = rng.random() * 100
    if chosen < WITH_A_KEY + WITH_ONE_OF_MANY:
        rule = rng.choice(RULES) if chosen < WITH_A_KEY else Exclusive(f"{MANY}{rng.randrange(HOW_MANY)}")
        options[rule.option] = rule
    task = {"early": early, "late": late, "retry": retrying}.get(kind) or rng.choice((early, late))
    if kind == "eta":
        options["countdown"] = rng.uniform(0.1, 4)
    elif kind == "long":
        seconds = rng.uniform(0.3, 1.5)
    elif kind == "expires":  # at once if a slot is free, or never: some jobs are due only after they have expired
        options |= {"countdown": rng.choice((0, rng.uniform(0.1, 2))), "expires": rng.uniform(0.2, 3)}
    if kind == "chord":
        parts = [part.s(number, seconds).set(affinity=rng.choice(TYPES)) for number in range(rng.randint(3, 8))]
        result = chord(parts)(total.s())
        ledger.note("chord", result.id, parts=",".join(each.id for each in result.parent.results))
        return result
    return task.AsyncResult(task.apply_async((seconds,), **options).id)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
