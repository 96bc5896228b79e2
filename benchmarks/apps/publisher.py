"""A client: publishes what each line of standard input asks for, and answers with what that took."""

import json
import random
import sys
import time

import celery_affinity
from benchmarks.ledger import Ledger

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

    return {"delay": delay, "batch": batch, "publish_many": many}


def dramatiq_ways():
    from .dramatiq_app import noop

    def delay(numbers):
        for number in numbers:
            noop.send(number)

    return {"delay": delay}


def one_at_a_time(publish, numbers, ledger):
    """Publish each when the last has started; return when each was published."""
    pause = random.Random(len(numbers))
    published_ns = []
    for number in numbers:
        published_ns.append(time.monotonic_ns())
        publish([number])
        time.sleep(pause.uniform(*PAUSE_S))
        deadline = time.monotonic() + 30
        while len(ledger) <= number - numbers[0]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"task {number} has not started")
            time.sleep(0.005)
    return published_ns


def main():
    ways = dramatiq_ways() if sys.argv[1] == "dramatiq" else celery_ways()
    for line in sys.stdin:
        request = json.loads(line)
        publish = ways[request["way"]]
        numbers = range(request["first"], request["first"] + request["count"])
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        reply = {}
        if request["ledger"]:
            reply["published_ns"] = one_at_a_time(publish, numbers, Ledger(request["ledger"]))
        else:
            publish(numbers)
        reply |= {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - began_cpu_s}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
