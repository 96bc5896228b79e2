"""Simulates the waits in a fleet of specialists and versatile workers, with a short model and with the reference model.

Both must give the same waits. All calls have the same priority, and all types have the same number of slots. Therefore
the oldest waiting call starts first, in the free slot of the most specialised worker.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from celery_affinity.clock import SECOND_US
from celery_affinity.schema.job_record import NewJob
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings
from tests.conformance.reference.reference import Reference

TYPES = ("pdf", "excel", "index")

#: Types of a worker -> number of slots.
Slots = Mapping[tuple[str, ...], int]


class Call(NamedTuple):
    at_us: int
    type: str
    run_us: int


def fleet_of(specialists: int, versatile: int) -> Slots:
    """Return the slots of a fleet: *specialists* slots per type, and *versatile* slots for all types."""
    slots = {(type_,): specialists for type_ in TYPES if specialists}
    return slots | ({TYPES: versatile} if versatile else {})


def calls_at_random(count: int, *, per_s: float, run_s: float, seed: int = 1) -> list[Call]:
    """Return calls at random times (Poisson), with exponential run times of mean *run_s*."""
    random, at_s, calls = Random(seed), 0.0, []
    for _ in range(count):
        at_s += random.expovariate(per_s)
        calls.append(
            Call(round(at_s * SECOND_US), random.choice(TYPES), round(random.expovariate(1 / run_s) * SECOND_US))
        )
    return calls


def waits_s(slots: Slots, calls: Sequence[Call]) -> list[float]:
    """Return the wait of each call in seconds."""
    free, waiting = dict(slots), {type_: deque() for type_ in TYPES}
    waits, ends, started = [0.0] * len(calls), [], 0

    def start(number, types, now_us):
        free[types] -= 1
        waits[number] = (now_us - calls[number].at_us) / SECOND_US
        heappush(ends, (now_us + calls[number].run_us, types))

    while started < len(calls) or any(waiting.values()):
        if started < len(calls) and (not ends or calls[started].at_us <= ends[0][0]):
            call = calls[started]
            fitting = [types for types in free if call.type in types and free[types]]
            if fitting:
                start(started, min(fitting, key=len), call.at_us)
            else:
                waiting[call.type].append(started)
            started += 1
        else:
            now_us, types = heappop(ends)
            free[types] += 1
            oldest = [waiting[type_] for type_ in types if waiting[type_]]
            if oldest:
                start(min(oldest, key=lambda queue: queue[0]).popleft(), types, now_us)
    return waits


def waits_by_specification_s(slots: Slots, calls: Sequence[Call]) -> list[float]:
    """Return the same as `waits_s`, computed by the reference model."""
    fleet, waits, ends, published = Reference(), [0.0] * len(calls), [], 0
    for number, (types, count) in enumerate(slots.items()):
        name, settings = f"worker-{number}", shared_settings(Settings())
        fleet.join(name, name=name, types=types, slots=count, other=0, app="shop", settings=settings, now_us=0)
    while published < len(calls) or ends:
        if published < len(calls) and (not ends or calls[published].at_us <= ends[0][0]):
            now_us = calls[published].at_us
            fleet.publish([NewJob(str(published), calls[published].type, "{}")], now_us=now_us)
            published += 1
        else:
            now_us, worker, delivery = heappop(ends)
            end = (delivery.job_id, delivery.fence, "acked")
            fleet.release(worker, delivery.job_id, [end], inline=False, now_us=now_us)
            del fleet.jobs[delivery.job_id]
        for worker, delivery in _started(fleet):
            number = int(delivery.job_id)
            waits[number] = (now_us - calls[number].at_us) / SECOND_US
            heappush(ends, (now_us + calls[number].run_us, worker, delivery))
    return waits


def _started(fleet: Reference) -> Iterator:
    for worker in fleet.workers.values():
        while worker.inbox:
            yield worker.id, worker.inbox.pop(0)
