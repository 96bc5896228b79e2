"""One of the publishers: ``python -m tests.whole.chaos.publisher SEED JOBS JOBS_A_SECOND LONG MERGING STOPPABLE``.

The last three arguments are percentages.
"""

import random
import sys
import time

from celery import chain, chord

from celery_affinity import Exclusive

from . import app as app_module
from . import merged_tasks
from .app import BODY, HOW_MANY, MANY, RULES, TENANTS, TYPES, app, early, late, ledger, part, retrying, stoppable, total
from .hints import some_hint
from .merged_tasks import Token, step, whole

#: Kind of call -> weight in percent; the storm adds the weights of long and preemptible calls.
SHARES = {"early": 41, "late": 29, "eta": 12, "retry": 8, "expires": 6, "chord": 1}

#: Percentages of calls with a key, and of calls with one of many keys.
WITH_A_KEY, WITH_ONE_OF_MANY = 9, 6

#: Percentage of calls with a due time.
WITH_A_DUE_TIME = 20

#: Percentage of jobs with a tenant, with or without a key.
OF_A_TENANT = 15

#: Share of jobs with a key that have both a rate and an exclusive key.
WITH_ANOTHER = 0.2

#: Number of merge keys; maximum calls in a burst; percentage of calls at which a process dies, if many calls merge.
MERGE_KEYS, BURST, DEADLY = 5, 12, 2

#: At the end, one in this many calls waits for its result. Max seconds to wait for one result and for all results,
#: since a server that lost its data never sends it.
ONE_WAITS_IN, WAITS_S, WAITS_IN_ALL_S = 100, 10.0, 60.0


def main(seed: str, jobs: int, rate: float, long: int, merging: int, may_stop: int) -> None:
    rng = random.Random(seed)
    began = time.monotonic()
    waited_for = []
    with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        burst: list = []
        for number in range(jobs):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            try:
                if burst or rng.random() * 100 * BURST / 2 < merging:
                    burst = burst or _burst(rng)
                    result = _call(rng, producer, *burst.pop(), f"{seed}-{number}", merging)
                else:
                    result = _publish(rng, producer, long, may_stop)
                if number % ONE_WAITS_IN == 0:
                    waited_for.append(result)
            except Exception as exc:  # the checker decides if the caller's error is justified
                name = app_module.last_intended
                kind = "call_refused" if ":" in name else "refused"
                ledger.note(kind, name, error=type(exc).__name__, text=str(exc)[:200])
    ledger.note("published", seed)
    until = time.monotonic() + WAITS_IN_ALL_S
    for result in waited_for:
        if time.monotonic() < until:
            _wait_for(result)


def _wait_for(result) -> None:
    asked = time.monotonic()
    try:
        result.get(timeout=WAITS_S, propagate=False)
        ledger.note("got", result.id, state=result.state)
    except Exception as exc:
        ledger.note("waited", result.id, asked=asked, error=type(exc).__name__)


def _publish(rng: random.Random, producer, long: int, may_stop: int):
    """Publish a call; return its result in the task's backend."""
    kind = rng.choices([*SHARES, "long", "stoppable"], [*SHARES.values(), long, may_stop])[0]
    seconds = rng.choice((0.0, 0.002, 0.005, 0.01, 0.02))
    options = {"affinity": rng.choice(TYPES), "priority": rng.choice((0, 0, 0, 3, 5, 10))}
    options |= {"on_demand": rng.random() < 0.2, "producer": producer, **some_hint(rng)}
    options |= _some_due_time(rng)
    chosen = rng.random() * 100
    if chosen < WITH_A_KEY + WITH_ONE_OF_MANY:
        rule = rng.choice(RULES) if chosen < WITH_A_KEY else Exclusive(f"{MANY}{rng.randrange(HOW_MANY)}")
        options[rule.option] = rule
        if rng.random() < WITH_ANOTHER:
            options |= {other.option: other for other in RULES[-2:] if other.option != rule.option}
            if rule == Exclusive(rule.key) and rng.random() < 0.5:
                options["exclusive"] = rule.key  # a literal key is more specific, so it is acquired first
    if kind == "stoppable" or rng.random() * 100 < OF_A_TENANT:
        options["tenant"] = rng.choice(("free", "batch") if kind == "stoppable" else [*TENANTS])
    tasks = {"early": early, "late": late, "retry": retrying, "stoppable": stoppable}
    task = tasks.get(kind) or rng.choice((early, late))
    if kind == "eta":
        options["countdown"] = rng.uniform(0.1, 4)
    elif kind == "long":
        seconds = rng.uniform(0.3, 1.5)
    elif kind == "stoppable":
        seconds = rng.uniform(0.5, 4)
    elif kind == "expires":  # some jobs expire before they are due
        options |= {"countdown": rng.choice((0, rng.uniform(0.1, 2))), "expires": rng.uniform(0.2, 3)}
    if kind == "chord":
        parts = [part.s(number, seconds).set(affinity=rng.choice(TYPES)) for number in range(rng.randint(3, 8))]
        result = chord(parts)(total.s().set(**BODY))
        ledger.note("chord", result.id, parts=",".join(each.id for each in result.parent.results))
        return result
    return task.AsyncResult(task.apply_async((seconds,), **options).id)


def _some_due_time(rng: random.Random) -> dict[str, float]:
    if rng.random() * 100 >= WITH_A_DUE_TIME:
        return {}
    return rng.choice(({"start_within": rng.uniform(0.01, 60)}, {"deadline": rng.uniform(-1, 60)}))


def _burst(rng: random.Random) -> list[tuple]:
    """Return (task, key, type) of consecutive calls; most are equal."""
    alike = rng.choice(merged_tasks.TASKS), rng.randrange(MERGE_KEYS), rng.choice(TYPES)
    other = rng.choice(merged_tasks.TASKS), rng.randrange(MERGE_KEYS), rng.choice(TYPES)
    return [rng.choice((alike, alike, alike, alike, other)) for _ in range(rng.randint(2, BURST))]


def _call(rng: random.Random, producer, task, key: int, type_: str, name: str, merging: int):
    """Publish a merging call, with or without a follow-up; return its result."""

    def token(number: int = 0) -> str:
        is_deadly = merging >= 10 and rng.random() * 100 < DEADLY
        dies_at = rng.choice((1, 2, 4, 9, -1, -2, -4)) if is_deadly else 0
        seconds = rng.choice((0.0, 0.0, 0.01, 0.05, 0.3))
        return str(Token(f"k{key}", f"{name}-{number}", seconds, dies_at))

    options = {"affinity": type_, "priority": rng.choice((0, 0, 5)), "on_demand": rng.random() < 0.1}
    options |= _some_due_time(rng)
    follows = rng.choices(("", "link", "chain", "chord", "eta"), (4, 2, 2, 1, 1))[0]
    own = token()
    ledger.note("follows", own, what=follows)
    if follows == "chain":
        return chain(task.s([own]).set(**options), step.s(own).set(affinity=type_))().parent
    if follows == "chord" and task is not merged_tasks.last:  # `last` has another backend, and a chord has only one
        tokens = [own, *(token(number) for number in range(1, rng.randint(3, 6)))]
        header = [task.s([each]).set(**options) for each in tokens]
        result = chord(header)(whole.s(tokens))
        ledger.note("merged_chord", result.id, calls=",".join(tokens))
        return result
    if follows == "link":
        options["link"] = step.s(own).set(affinity=type_)
    elif follows == "eta":
        options["countdown"] = rng.uniform(0.1, 1)
    return task.AsyncResult(task.apply_async(([own],), producer=producer, **options).id)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:7]))
