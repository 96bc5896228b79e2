"""Compare waits with ``affinity_stretch`` and with due times, in the lab: ``python -m benchmarks.due_times [CASE]``.

Run times are learned as the jobs end, and unknown before. It prints the tables of benchmarks/results/due-times.md.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from celery_affinity.clock import SECOND_US
from celery_affinity.lab.advise import head_starts_to_try
from celery_affinity.lab.changes import move_arrival
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
from tests.lab.traces import TRACES

#: Sigma of the log-normal error of a run time predicted by a size.
SIGMA = 0.35
#: The demo's documents.
DOCUMENTS = Path(__file__).parents[1] / "examples" / "documents"
_HEAD = ["case", "mean wait today", "best known", "today", "shortest first", "stretch 16", "target wait = mean wait"]
_HEAD += ["least", "with", "most, of today", "bound", "beyond it"]
#: Times that a document is read; the shortest counts.
_READINGS = 3
#: Times that all documents are read.
_ROUNDS = 6
#: Bins for the prices that guide the best known schedule.
_BINS = 2_048


@dataclass(frozen=True)
class Case:
    name: str
    scenario: Scenario
    first: int = 0  #: number of the first job that is measured


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
        yield Case(f"{name}, sizes", replace(scenario, arrivals=tuple(sized)))
        if name == "flood":
            yield _second_day(f"{name}, sizes, second day", replace(scenario, arrivals=tuple(sized)))
        yield Case(f"{name}, names", replace(scenario, arrivals=tuple(named)))


def _second_day(name: str, scenario: Scenario) -> Case:
    """Return a case with the jobs of *scenario* twice. On the second day, their run times were learned."""
    jobs = scenario.arrivals
    later_us = 2 * max(run.ended_us for run in schedule_fast(scenario).runs)
    again = [replace(move_arrival(job, later_us), number=len(jobs) + job.number) for job in jobs]
    return Case(name, replace(scenario, arrivals=(*jobs, *again)), first=len(jobs))


def documents() -> Iterator[Case]:
    """Yield the readings of `make demo`; the size is the number of pages for a PDF, and kilobytes for a spreadsheet.

    All documents are read in rounds, and some on demand, in 20 s.
    """
    found, _ = find(DOCUMENTS)
    read(found[0])  # imports
    kinds = {path: (type_of(path), *_size_and_time(path)) for path in found}
    rng = random.Random(1)
    requests = [(2.4 + 1.6 * nth, path, False) for nth in range(_ROUNDS) for path in rng.sample(found, len(found))]
    requests += [(rng.uniform(0, 18), rng.choice(found), True) for _ in range(30)]
    arrivals = []
    for number, (at_s, path, on_demand) in enumerate(sorted(requests)):
        (type_, size, took_us), at_us = kinds[path], round(at_s * SECOND_US)
        job = Arrival(number, type_, at_us, at_us, took_us, on_demand=on_demand, task=f"{type_}.read", size=size)
        arrivals.append(job)
    workers = [TracedWorker(name, tuple(types), 1) for name, types in WORKERS.items()]
    scenario = Scenario(tuple(workers), tuple(arrivals))
    yield Case("documents, sizes", scenario)
    yield _second_day("documents, sizes, second day", scenario)
    yield Case("documents, names", replace(scenario, arrivals=tuple(replace(job, size=None) for job in arrivals)))


def _size_and_time(path: Path) -> tuple[float, int]:
    times_s, size = [], 1.0
    for _ in range(_READINGS):
        began_s = time.process_time()
        with suppress(UnreadableError):
            read(path)
            size = path.stat().st_size / 1024
        times_s.append(time.process_time() - began_s)
    if type_of(path) == "pdf":
        with suppress(PyPdfError):
            size = min(MAX_PAGES, len(PdfReader(path).pages))
    return size, round(min(times_s) * SECOND_US)


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

    def mean_s(schedule: Schedule) -> float:
        counted = [job for job in schedule.scenario.arrivals if job.number >= case.first]
        return mean_wait_s(counted, starts_of(schedule), equal_weights)

    def tried_with(settings: Mapping[str, str]) -> tuple[float, Schedule]:
        schedule = schedule_fast(replace(scenario, settings={**scenario.settings, **settings}))
        return mean_s(schedule), schedule

    today_s, _ = tried_with({})
    best_s = mean_wait_s(scenario.arrivals, starts_of(best[case.name.split(",")[0]]), equal_weights)
    shortest_s = mean_s(ListScheduler(scenario, {job.number: job.took_us for job in scenario.arrivals}).run())
    in_force = complete_settings(scenario.settings)
    tried = {setting.words: tried_with(setting.settings) for setting in head_starts_to_try(in_force)}
    least = min(tried, key=lambda words: tried[words][0])
    at_mean = {"target_wait_us": str(round(today_s * SECOND_US))}
    short = [tried_with({**at_mean, "stretch": stretch}) for stretch in ("0.25", "1", "4", "16")]
    beyond = sum(len(jobs_beyond_bound(schedule)) for _, schedule in (*tried.values(), *short))
    cells = [
        case.name,
        f"{today_s:.3g} s",
        f"{best_s:.3g} s",
        f"{today_s / best_s:.2f}",
        f"{shortest_s / best_s:.2f}",
        f"{tried['stretch 16'][0] / best_s:.2f}",
        f"{min(wait_s for wait_s, _ in short) / best_s:.2f}",
        f"{tried[least][0] / best_s:.2f}",
        f"`{least}`",
        f"{max(wait_s for wait_s, _ in (*tried.values(), *short)) / today_s:.2f}",
        f"{_bound_s(tried[least][1]):,.0f} s",
        str(beyond),
    ]
    return f"| {' | '.join(cells)} |"


def _bound_s(schedule: Schedule) -> float:
    """Return the largest D + h: no job enqueued that much later passes a job without a head start."""
    settings = complete_settings(schedule.scenario.settings)
    weights = weights_of(settings)
    bounds_s = (overtaking_seconds(job.priority, job.on_demand, weights) for job in schedule.scenario.arrivals)
    return max(bounds_s) + int(settings["target_wait_us"]) / SECOND_US


def with_start_within(load: float, count: int = 40_000) -> str:
    """Return a row: 5 % of the jobs have ``start_within=10``. Runs take 1 s on average, up to 5 s."""
    rng, now_s, jobs = random.Random(1), 0.0, []
    for number in range(count):
        now_s += rng.expovariate(8 * load)
        while (seconds := rng.expovariate(1 / 1.037)) > 5:
            pass
        at_us, within_us = round(now_s * SECOND_US), 10 * SECOND_US if rng.random() < 0.05 else None
        jobs.append(Arrival(number, "work", at_us, at_us, round(seconds * SECOND_US), start_within_us=within_us))
    scenario = Scenario((TracedWorker("w@host", ("work",), 8),), tuple(jobs))
    cells = [f"{load:.0%}"]
    others_s = []
    for settings in ({"target_wait_us": "0"}, {}):
        schedule = schedule_fast(replace(scenario, settings=settings))
        wait_s = {run.number: (run.claimed_us - jobs[run.number].since_us) / SECOND_US for run in schedule.runs}
        due_s = [wait_s[job.number] for job in jobs if job.start_within_us is not None]
        others_s.append(sum(wait_s[job.number] for job in jobs if job.start_within_us is None) / (count - len(due_s)))
        cells += [f"{sum(each <= 10 for each in due_s) / len(due_s):.2%}", f"{others_s[-1]:.2f} s"]
        cells += [str(len(jobs_beyond_bound(schedule)))] if not settings else []
    return f"| {' | '.join([*cells, f'{others_s[1] / others_s[0] - 1:+.1%}'])} |"


_HEAD_OF_DEADLINES = ("load", "in time today", "others' mean wait", "in time", "others' mean wait", "beyond", "change")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="beginnings of names; default: all")
    parser.add_argument("--start-within", action="store_true", help="measure jobs with a due time instead")
    given = parser.parse_args()
    if given.start_within:
        print(f"| {' | '.join(_HEAD_OF_DEADLINES)} |\n|{' --- |' * len(_HEAD_OF_DEADLINES)}")
        for load in (0.9, 0.97, 0.99, 1.02):
            print(with_start_within(load), flush=True)
        return
    best: dict[str, Schedule] = {}
    print(f"| {' | '.join(_HEAD)} |\n|{' --- |' * len(_HEAD)}")
    for cases in (traces(), documents(), mixed()):
        for case in cases:
            if not given.cases or case.name.startswith(tuple(given.cases)):
                name = case.name.split(",")[0]
                if name not in best:
                    best[name] = bounds_of(case.scenario, bins=_BINS).listed
                print(compare(case, best), flush=True)


if __name__ == "__main__":
    main()
