"""Deterministic traces in the shapes of public cluster traces.

Durations have heavy tails (log-normal, Pareto), jobs arrive in bursts and in a daily rhythm, and workers are
specialised or versatile. `TRACES` maps the name of each shape to a function of a job count and a seed.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from celery_affinity.lab import fast_engine
from celery_affinity.lab.scenario import scenario_of
from celery_affinity.lab.trace import Trace, TracedJob, TracedWorker
from examples.made_up_trace import with_claims

S = 1_000_000


def log_normal_us(drawn: random.Random, median_s: float, sigma: float) -> int:
    return max(1_000, round(drawn.lognormvariate(math.log(median_s), sigma) * S))


def pareto_us(drawn: random.Random, least_s: float, shape: float, most_s: float) -> int:
    return round(min(most_s, least_s * drawn.paretovariate(shape)) * S)


def poisson_us(drawn: random.Random, rate: Callable[[float], float], most_rate: float, number: int) -> Iterator[int]:
    """Yield *number* arrival times of jobs. *rate* maps the time in s to jobs per second."""
    now_s = 0.0
    while number:
        now_s += drawn.expovariate(most_rate)
        if drawn.random() * most_rate <= rate(now_s):
            number -= 1
            yield round(now_s * S)


def trace(workers: list[TracedWorker], jobs: list[tuple[TracedJob, int]], **settings: str) -> Trace:
    """Return a trace of *jobs*, each with its length in µs, scheduled by the fast engine."""
    come = sorted(jobs, key=lambda each: each[0].since_us)
    bare = Trace(0, tuple(workers), tuple(each for each, _ in come), settings)
    scenario = scenario_of(bare)
    arrivals = tuple(replace(each, took_us=come[each.number][1]) for each in scenario.arrivals)
    return with_claims(bare, fast_engine.schedule_fast(replace(scenario, arrivals=arrivals)))


def job(type: str, at_us: int, **more: object) -> TracedJob:
    return TracedJob(type=type, enqueued_us=at_us, since_us=at_us, **more)  # type: ignore[arg-type]


def workers(*fleet: tuple[str, int]) -> list[TracedWorker]:
    """Return a worker for each pair of space-separated types and slots."""
    return [TracedWorker(f"w{n}@host", tuple(types.split()), slots) for n, (types, slots) in enumerate(fleet, 1)]


def flood(number: int = 1_000, seed: int = 1) -> Trace:
    """Return a burst of reports in a steady stream of on-demand pdf jobs."""
    drawn = random.Random(seed)
    batch = [(job("report", 10 * S + n * 1_000), log_normal_us(drawn, 1.0, 0.8)) for n in range(number // 2)]
    users = poisson_us(drawn, lambda _: 2.0, 2.0, number - number // 2)
    return trace(
        workers(("pdf", 1), ("report", 2), ("pdf report", 3)),
        [*batch, *((job("pdf", at, on_demand=True), log_normal_us(drawn, 0.6, 0.6)) for at in users)],
    )


def diurnal(number: int = 2_000, seed: int = 1) -> Trace:
    """Return a day of three types with heavy tails: a quarter of the load at night, slight overload at noon."""
    drawn = random.Random(seed)
    mean_s, slots = 4.0, 8
    noon = 1.15 * slots / mean_s
    length_s = number / (0.6 * noon)

    def rate(at_s: float) -> float:
        return noon * (0.6 - 0.4 * math.cos(2 * math.pi * at_s / length_s))

    jobs = []
    for at in poisson_us(drawn, rate, noon, number):
        type_ = drawn.choices(("pdf", "excel", "index"), (5, 3, 2))[0]
        took = {"pdf": (2.2, 1.1), "excel": (2.0, 1.2), "index": (2.5, 1.0)}[type_]
        jobs.append((job(type_, at, on_demand=drawn.random() < 0.2), log_normal_us(drawn, *took)))
    return trace(workers(("pdf", 3), ("excel", 1), ("index", 1), ("pdf excel", 1), ("pdf excel index", 2)), jobs)


def heavy_tail(number: int = 2_000, seed: int = 1) -> Trace:
    """Return bursts of jobs that use 70 % of the slots; most take less than a second, some a minute."""
    drawn = random.Random(seed)
    jobs, at_s = [], 0.0
    while len(jobs) < number:
        at_s += drawn.expovariate(0.6)
        for _ in range(min(60, int(drawn.paretovariate(1.1)))):
            type_ = drawn.choices(("thumb", "video"), (4, 1))[0]
            took = pareto_us(drawn, 0.2, 1.1, 60.0) if type_ == "thumb" else pareto_us(drawn, 1.0, 1.3, 90.0)
            jobs.append((job(type_, round(at_s * S) + drawn.randrange(S // 2)), took))
    return trace(workers(("thumb", 2), ("video", 2), ("thumb video", 2)), jobs[:number])


def tenants(number: int = 1_000, seed: int = 1) -> Trace:
    """Return jobs of tenants with very different sizes; the largest sends a third of all jobs in one burst."""
    drawn = random.Random(seed)
    large = [(job("mail", 30 * S + n * 2_000, tenant="t0"), log_normal_us(drawn, 0.5, 0.5)) for n in range(number // 3)]
    rest = poisson_us(drawn, lambda _: 3.0, 3.0, number - number // 3)
    small = [
        (job("mail", at, tenant=f"t{1 + int(drawn.paretovariate(0.8)) % 20}"), log_normal_us(drawn, 0.5, 0.5))
        for at in rest
    ]
    return trace(workers(("mail", 3)), large + small)


def keys(number: int = 500, seed: int = 1) -> Trace:
    """Return jobs with an exclusive key per host, and jobs of another type with a rate."""
    drawn = random.Random(seed)
    jobs = []
    for at in poisson_us(drawn, lambda _: 4.0, 4.0, number):
        if drawn.random() < 0.7:
            host = f"h{min(9, int(drawn.expovariate(0.4)))}"
            jobs.append((job("crawl", at, exclusive=host, exclusive_limit="1"), log_normal_us(drawn, 0.7, 0.6)))
        else:
            jobs.append((job("mail", at, rate="smtp", rate_limit="60/m"), log_normal_us(drawn, 0.2, 0.3)))
    return trace(workers(("crawl", 4), ("crawl mail", 1)), jobs)


TRACES: dict[str, Callable[[int, int], Trace]] = {
    "flood": flood,
    "diurnal": diurnal,
    "heavy_tail": heavy_tail,
    "tenants": tenants,
    "keys": keys,
}
