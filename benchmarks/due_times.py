"""Compare waits with ``affinity_stretch`` and with due times, in the lab: ``python -m benchmarks.due_times [CASE]``.

Run times are learned as the jobs end; nothing is known before. It prints the tables of benchmarks/results/due-times.md.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pypdf import PdfReader

from celery_affinity.clock import SECOND_US
from celery_affinity.lab.advise import head_starts_to_try
from celery_affinity.lab.fast_engine import schedule_fast
from celery_affinity.lab.list_schedules import ListScheduler, equal_weights, mean_wait_s
from celery_affinity.lab.optimum import bounds_of, starts_of
from celery_affinity.lab.replay import jobs_beyond_bound
from celery_affinity.lab.scenario import Arrival, Scenario, Schedule, scenario_of
from celery_affinity.lab.trace import Trace, TracedWorker
from celery_affinity.settings.wire import complete_settings, overtaking_seconds, weights_of
from examples.made_up_trace import make_trace
from examples.pipeline.documents import MAX_PAGES, UnreadableError, find, read, type_of
from examples.pipeline.measure import WORKERS
from examples.pipeline.plan import make
from tests.lab.traces import TRACES

#: Sigma of the log-normal error with which a size predicts a run time.
SIGMA = 0.35
#: The demo's documents.
DOCUMENTS = Path(__file__).parents[1] / "examples" / "documents"
_HEAD = ("case", "today", "best known", "today", "shortest first", "stretch 16", "target wait = mean wait", "lowest")
_HEAD += ("with", "highest, of today", "bound", "beyond it")
#: Bins for the prices that guide the best known schedule.
_BINS = 2_048


@dataclass(frozen=True)
class Case:
    name: str
    scenario: Scenario
    has_days: bool = False  #: True to repeat it, with what was learned on the first day


def traces() -> Iterator[Case]:
    made: Mapping[str, Callable[[int, int], Trace]] = {
        **TRACES,
        "made up": lambda count, seed: make_trace(count, seed=seed),
    }
    sizes = {"flood": 1_000, "tenants": 1_000, "keys": 500}
    for name, maker in made.items():
        scenario = scenario_of(maker(sizes.get(name, 2_000), 1))
        rng = random.Random(1)
        named = [replace(job, task=f"read.{job.type}") for job in scenario.arrivals]
        sized = [replace(job, size=job.took_us / SECOND_US * rng.lognormvariate(0, SIGMA)) for job in named]
        yield Case(f"{name}, sizes", replace(scenario, arrivals=tuple(sized)), name == "flood")
        yield Case(f"{name}, names", replace(scenario, arrivals=tuple(named)))


def documents() -> Iterator[Case]:
    """Yield the readings of `make demo`; pages are the sizes of PDFs, and kilobytes those of spreadsheets."""
    found, _ = find(DOCUMENTS)
    costs: dict[str, tuple[str, float, int]] = {}
    for path in found:
        began = time.perf_counter()
        try:
            read(path)
            pages = min(MAX_PAGES, len(PdfReader(path).pages)) if type_of(path) == "pdf" else path.stat().st_size / 1024
        except UnreadableError:
            pages = 1
        costs[str(path)] = type_of(path), pages, round((time.perf_counter() - began) * SECOND_US)
    arrivals = []
    for number, request in enumerate(make(found, 20.0).requests):
        type_, pages, took_us = costs[request.path]
        at_us, on_demand = round(request.at * SECOND_US), request.mode == "on_demand"
        job = Arrival(number, type_, at_us, at_us, took_us, on_demand=on_demand, task=f"{type_}.read", size=pages)
        arrivals.append(job)
    workers = [TracedWorker(name, tuple(types), 1) for name, types in WORKERS.items()]
    yield Case("documents, sizes", Scenario(tuple(workers), tuple(arrivals)))


def mixed(count: int = 3_000, load: float = 0.9) -> Iterator[Case]:
    """Yield tasks of 0.1, 2 and 60 s, whose run times vary by less than a factor of two, on eight slots."""
    kinds = (("quick", 0.1, 0.7), ("usual", 2.0, 0.25), ("long", 60.0, 0.05))
    rng, now_s, jobs = random.Random(1), 0.0, []
    mean_s = sum(seconds * share for _, seconds, share in kinds)
    for number in range(count):
        now_s += rng.expovariate(load * 8 / mean_s)
        ((task, seconds, _),) = rng.choices(kinds, [kind[2] for kind in kinds])
        at_us, took_us = round(now_s * SECOND_US), round(seconds * 2 ** rng.uniform(-0.49, 0.49) * SECOND_US)
        jobs.append(Arrival(number, "work", at_us, at_us, took_us, task=task))
    yield Case("0.1, 2 and 60 s, names", Scenario((TracedWorker("w@host", ("work",), 8),), tuple(jobs)))


def compare(case: Case, best: Mapping[str, Schedule]) -> str:
    """Return the row of *case*. *best*: the best known schedule by the first word of a case."""
    scenario = case.scenario
    today_s = _mean_s(schedule_fast(scenario))
    best_s = _mean_s(best[case.name.split(",")[0]])
    shortest_s = _mean_s(ListScheduler(scenario, {job.number: job.took_us for job in scenario.arrivals}).run())
    tried: dict[str, tuple[float, Schedule]] = {}
    for setting in head_starts_to_try(complete_settings(scenario.settings)):
        schedule = schedule_fast(replace(scenario, settings={**scenario.settings, **setting.settings}))
        tried[setting.words] = _mean_s(schedule), schedule
    lowest = min(tried, key=lambda words: tried[words][0])
    at_mean_us = str(round(today_s * SECOND_US))
    at_mean = []
    for stretch in ("0.25", "1", "4", "16"):
        settings = {**scenario.settings, "stretch": stretch, "target_wait_us": at_mean_us}
        schedule = schedule_fast(replace(scenario, settings=settings))
        at_mean.append(_mean_s(schedule))
        tried[f"{stretch} at the mean"] = at_mean[-1], schedule
    beyond = sum(len(jobs_beyond_bound(schedule)) for _, schedule in tried.values())
    cells = [
        case.name,
        f"{today_s:.3g} s",
        f"{best_s:.3g} s",
        f"{today_s / best_s:.2f}",
        f"{shortest_s / best_s:.2f}",
        f"{tried['stretch 16'][0] / best_s:.2f}",
        f"{min(at_mean) / best_s:.2f}",
        f"{tried[lowest][0] / best_s:.2f}",
        f"`{lowest}`",
        f"{max(schedule_s for schedule_s, _ in tried.values()) / today_s:.2f}",
        f"{_bound_s(tried[lowest][1]):,.0f} s",
        str(beyond),
    ]
    return f"| {' | '.join(cells)} |"


def _mean_s(schedule: Schedule) -> float:
    return mean_wait_s(schedule.scenario.arrivals, starts_of(schedule), equal_weights)


def _bound_s(schedule: Schedule) -> float:
    """Return the largest D + h: nobody enqueued so much later passes a job without a head start."""
    settings = complete_settings(schedule.scenario.settings)
    weights = weights_of(settings)
    bounds_s = (overtaking_seconds(job.priority, job.on_demand, weights) for job in schedule.scenario.arrivals)
    return max(bounds_s) + int(settings["target_wait_us"]) / SECOND_US


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="beginnings of names; default: all")
    given = parser.parse_args()
    best: dict[str, Schedule] = {}
    head = (
        "case|today|best known|today|shortest first|stretch 16|wait = mean|lowest|with|highest, of today|bound|beyond"
    )
    print(f"| {' | '.join(head.split('|'))} |\n|{' --- |' * len(head.split('|'))}")
    for cases in (traces(), documents(), mixed()):
        for case in cases:
            if not given.cases or case.name.startswith(tuple(given.cases)):
                name = case.name.split(",")[0]
                if name not in best:
                    best[name] = bounds_of(case.scenario, bins=_BINS).listed
                print(compare(case, best), flush=True)


if __name__ == "__main__":
    main()
