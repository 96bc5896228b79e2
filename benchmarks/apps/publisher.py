"""A client: publishes what each line of standard input asks for, and answers with what that took."""

import json
import random
import sys
import time

import celery_affinity
from benchmarks.ledger import Ledger
from benchmarks.systems import KEYS, LENGTHS_MS, MERGED, TASKS_A_TURN, TENANTS

BATCH = 1000

#: Between two jobs that are to find the worker idle, s.
PAUSE_S = (0.015, 0.025)


def celery_ways():
    """Return the ways to publish of Celery, by name: functions of the numbers that tasks are to get."""
    from .celery_app import app, noop

    def delay(numbers):
        for number in numbers:
            noop.delay(number)

    def batch(numbers):
        with app.producer_pool.acquire(block=True) as producer, producer.batch(max_size=BATCH):
            for number in numbers:
                noop.apply_async((number,), producer=producer)

    def many(numbers):
        celery_affinity.publish_many(noop, ((number,) for number in numbers))

    def in_turns(option, name, different):
        """Return the way to publish every other turn of tasks with *option*: so many *different* names."""

        def publish(numbers):
            for number in numbers:
                nth_with_it = number // (2 * TASKS_A_TURN) * TASKS_A_TURN + number % TASKS_A_TURN
                options = {option: f"{name}-{nth_with_it % different}"} if number // TASKS_A_TURN % 2 else {}
                noop.apply_async((number,), **options)

        return publish

    return {
        "delay": delay,
        "batch": batch,
        "publish_many": many,
        "keyed in turns": in_turns("exclusive", "key", KEYS),
        "of tenants in turns": in_turns("tenant", "tenant", TENANTS),
        **{f"lasting {length_ms} ms": lasting_way(length_ms) for length_ms in LENGTHS_MS},
        **{way: merged_way(name) for name, way in MERGED.items()},
        "shared": merged_way("shared"),
    }


def lasting_way(length_ms):
    """Return the way to publish tasks of a length."""
    from .celery_app import lasting

    def delay(numbers):
        for number in numbers:
            lasting.delay(number, length_ms / 1_000)

    return delay


def merged_way(name):
    """Return the way to publish calls of a task that merges."""

    def delay(numbers):
        from . import merging_app  # only when it is asked for: stock's clients are to import nothing more

        task = getattr(merging_app, name)
        for number in numbers:
            task.delay(number)

    return delay


def dramatiq_ways():
    from .dramatiq_app import noop

    def delay(numbers):
        for number in numbers:
            noop.send(number)

    return {"delay": delay}


def all_at_once(publish, request):
    """Publish as fast as can be; return what it took."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    publish(range(request["first"], request["first"] + request["count"]))
    return {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - began_cpu_s}


def one_at_a_time(publish, request):
    """Publish each when the last has started; return when each was published."""
    ledger, pause, published_ns = Ledger(request["ledger"]), random.Random(1), []
    for number in range(request["count"]):
        published_ns.append(time.monotonic_ns())
        publish([number])
        time.sleep(pause.uniform(*PAUSE_S))
        deadline = time.monotonic() + 30
        while len(ledger) <= number:
            if time.monotonic() > deadline:
                raise TimeoutError(f"task {number} has not started")
            time.sleep(0.005)
    return {"published_ns": published_ns}


def by_chance(request):
    """Publish tasks of both modes, each at its rate and by chance, for so many seconds; return when each was.

    The numbers of on-demand tasks begin with `first_on_demand`.
    """
    from .celery_app import lasting

    chance = random.Random(request["seed"])
    began_s = time.monotonic()
    queued = _arrivals(chance, request["queued"], request["seconds"], 0)
    on_demand = _arrivals(chance, request["on_demand"], request["seconds"], request["first_on_demand"])
    published_ns = {}
    for due_s, number, lasts_s in sorted([*queued, *on_demand]):
        time.sleep(max(0.0, began_s + due_s - time.monotonic()))
        published_ns[number] = time.monotonic_ns()
        lasting.apply_async((number, lasts_s), on_demand=number >= request["first_on_demand"])
    return {"published_ns": published_ns}


def _arrivals(chance, stream, seconds, first):
    due_s, number = 0.0, first
    while (due_s := due_s + chance.expovariate(stream["rate"])) < seconds:
        yield due_s, number, stream["lasts_s"]
        number += 1


def main():
    ways = dramatiq_ways() if sys.argv[1] == "dramatiq" else celery_ways()
    for line in sys.stdin:
        request = json.loads(line)
        if request["how"] == "all at once":
            reply = all_at_once(ways[request["way"]], request)
        elif request["how"] == "one at a time":
            reply = one_at_a_time(ways["delay"], request)
        else:
            reply = by_chance(request)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
