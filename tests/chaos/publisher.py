"""One of the publishers: ``python -m tests.chaos.publisher SEED JOBS JOBS_A_SECOND LONG_ONES_PERCENT``."""

import random
import sys
import time

from celery import chord

from . import app as app_module
from .app import TYPES, app, early, late, ledger, part, retrying, total

#: Share of each kind of call, in percent; to which come the long ones, as many as the storm wants.
SHARES = {"early": 44, "late": 32, "eta": 12, "retry": 8, "chord": 1}


def main(seed: str, jobs: int, rate: float, long: int) -> None:
    rng = random.Random(seed)
    began = time.monotonic()
    with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        for number in range(jobs):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            try:
                _publish(rng, producer, long)
            except Exception as exc:  # what a caller sees; the judge says whether it should have
                ledger.note("refused", app_module.last_intended, error=type(exc).__name__, text=str(exc)[:200])
    ledger.note("published", seed)


def _publish(rng: random.Random, producer, long: int) -> None:
    kind = rng.choices([*SHARES, "long"], [*SHARES.values(), long])[0]
    seconds = rng.choice((0.0, 0.002, 0.005, 0.01, 0.02))
    options = {
        "affinity": rng.choice(TYPES),
        "priority": rng.choice((0, 0, 0, 3, 5, 10)),
        "on_demand": rng.random() < 0.2,
        "producer": producer,
    }
    if kind == "early":
        early.apply_async((seconds,), **options)
    elif kind == "late":
        late.apply_async((seconds,), **options)
    elif kind == "eta":
        rng.choice((early, late)).apply_async((seconds,), countdown=rng.uniform(0.1, 4), **options)
    elif kind == "retry":
        retrying.apply_async((seconds,), **options)
    elif kind == "long":
        rng.choice((early, late)).apply_async((rng.uniform(0.3, 1.5),), **options)
    else:
        parts = [part.s(number, seconds).set(affinity=rng.choice(TYPES)) for number in range(rng.randint(3, 8))]
        result = chord(parts)(total.s())
        ledger.note("chord", result.id, parts=",".join(each.id for each in result.parent.results))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
