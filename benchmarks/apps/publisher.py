"""A client that publishes tasks: it reads a JSON request per line of stdin, and prints a JSON reply with the times."""

import json
import random
import sys
import time

import celery_affinity
from benchmarks.ledger import Ledger
from benchmarks.systems import KEYS, LENGTHS_MS, MERGED, TASKS_A_TURN, TENANTS

BATCH = 1000

#: Random pause in seconds before the next job, so that the worker is idle when it arrives.
PAUSE_S = (0.015, 0.025)


def celery_ways():
    """Return Celery's ways to publish: name -> function that publishes tasks with the given numbers."""
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
        """Return a way to publish that sets *option* in every other turn, to *different* values in rotation."""

        def publish(numbers):
            for number in numbers:
                position = number // (2 * TASKS_A_TURN) * TASKS_A_TURN + number % TASKS_A_TURN
                options = {option: f"{name}-{position % different}"} if number // TASKS_A_TURN % 2 else {}
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
    """Return a way to publish tasks that sleep for *length_ms*."""
    from .celery_app import lasting

    def delay(numbers):
        for number in numbers:
            lasting.delay(number, length_ms / 1_000)

    return delay


def merged_way(name):
    """Return a way to publish calls of a merging task."""

    def delay(numbers):
        from . import merging_app  # not at the top, because other clients must not import it

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
    """Publish as fast as possible. Return the duration and the CPU time."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    publish(range(request["first"], request["first"] + request["count"]))
    return {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - began_cpu_s}


def one_at_a_time(publish, request):
    """Publish each task after the previous one has started. Return the publish times."""
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


def by_rng(request):
    """Publish queued and on-demand tasks at random times (Poisson), each mode at its rate. Return the publish times.

    The numbers of on-demand tasks start at `first_on_demand`.
    """
    from .celery_app import lasting

    rng = random.Random(request["seed"])
    began_s = time.monotonic()
    queued = _arrivals(rng, request["queued"], request["seconds"], 0)
    on_demand = _arrivals(rng, request["on_demand"], request["seconds"], request["first_on_demand"])
    published_ns = {}
    for due_s, number, lasts_s in sorted([*queued, *on_demand]):
        time.sleep(max(0.0, began_s + due_s - time.monotonic()))
        published_ns[number] = time.monotonic_ns()
        lasting.apply_async((number, lasts_s), on_demand=number >= request["first_on_demand"])
    return {"published_ns": published_ns}


def _arrivals(rng, stream, seconds, first):
    due_s, number = 0.0, first
    while (due_s := due_s + rng.expovariate(stream["rate"])) < seconds:
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
            reply = by_rng(request)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
