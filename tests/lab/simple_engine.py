"""A small engine, for tests of what is computed of schedules: the score without rarity, the most specialised slot."""

import heapq

from celery_affinity.lab.fast_engine import limits_of_types
from celery_affinity.lab.scenario import Scenario, Schedule, ScheduledRun
from celery_affinity.settings.wire import weights_of


def schedule(scenario: Scenario) -> Schedule:
    """Return what comes of *scenario* by priority, mode and age; of the rules by key it knows none."""
    points = weights_of(scenario.settings)
    limits = limits_of_types(scenario.settings.get("limits", ""))
    running: dict[str, int] = {}
    free = [0] * len(scenario.workers)
    waiting: dict[tuple[str, bool, int], list[int]] = {}
    runs: list[ScheduledRun] = []
    events = [(max(0, worker.joined_us), 0, index) for index, worker in enumerate(scenario.workers)]
    events += [(worker.left_us, 1, n) for n, worker in enumerate(scenario.workers) if worker.left_us is not None]
    events += [(max(0, each.since_us), 3, index) for index, each in enumerate(scenario.arrivals)]
    heapq.heapify(events)
    ends: dict[int, int] = {}
    left: set[int] = set()
    now = 0

    def score(lane: tuple[str, bool, int]) -> float:
        age_s = (now - scenario.arrivals[waiting[lane][0]].enqueued_us) / 1e6
        urgency = (
            points.on_demand + min(age_s, points.on_demand_age_cap_us / 1e6) * points.on_demand_age if lane[1] else 0
        )
        return lane[2] * points.priority + age_s * points.age + urgency

    while events:
        now, kind, index = heapq.heappop(events)
        if kind == 0:
            free[index] += scenario.workers[index].slots
        elif kind == 1:
            left.add(index)
            free[index] = 0
        elif kind == 2:
            worker = ends.pop(index)
            running[scenario.arrivals[index].type] -= 1
            free[worker] += worker not in left
        else:
            each = scenario.arrivals[index]
            waiting.setdefault((each.type, each.on_demand, each.priority), []).append(index)
        if events and events[0][0] == now and events[0][1] != 2 and kind != 2:
            continue
        while True:
            fit = {
                lane: [n for n, worker in enumerate(scenario.workers) if free[n] > 0 and lane[0] in worker.types]
                for lane, jobs in waiting.items()
                if jobs and lane[0] not in scenario.paused and running.get(lane[0], 0) < limits.get(lane[0], 10**9)
            }
            lanes = [lane for lane, found in fit.items() if found]
            if not lanes:
                break
            lane = max(lanes, key=lambda each: (score(each), -waiting[each][0]))
            worker = min(fit[lane], key=lambda n: (len(scenario.workers[n].types), n))
            first = waiting[lane].pop(0)
            arrival = scenario.arrivals[first]
            free[worker] -= 1
            running[lane[0]] = running.get(lane[0], 0) + 1
            ends[first] = worker
            heapq.heappush(events, (now + arrival.took_us, 2, first))
            runs.append(ScheduledRun(arrival.number, scenario.workers[worker].name, now, now + arrival.took_us))
    return Schedule(scenario, tuple(runs))
