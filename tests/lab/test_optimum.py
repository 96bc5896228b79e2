"""The bounds of `optimum`, compared with the best schedule where it can be found."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from celery_affinity.lab import fast_engine, list_schedules
from celery_affinity.lab.list_schedules import ListScheduler, equal_weights, mean_wait_s, open_slots, priority_weights
from celery_affinity.lab.lower_bounds import Market, Program, classes_of
from celery_affinity.lab.optimum import bounds_of, optimum, starts_of
from celery_affinity.lab.scenario import Arrival, Scenario, Schedule, scenario_of
from celery_affinity.lab.trace import TracedWorker

from .traces import TRACES, S, job, trace, workers

FLEETS = (
    workers(("a", 1)),
    workers(("a", 2)),
    workers(("a", 1), ("a b", 1)),
    workers(("a", 1), ("b", 1)),
    [TracedWorker("w1", ("a", "b"), 1), TracedWorker("w2", ("a",), 1, joined_us=4 * S)],
    [TracedWorker("w1", ("a", "b"), 1, left_us=3 * S), TracedWorker("w2", ("a", "b"), 1, joined_us=2 * S)],
)


def scenario_with(fleet: Sequence[TracedWorker], jobs: Sequence[tuple[str, int, int, int]]) -> Scenario:
    """Return a scenario of jobs (type, arrival in s, length in s, priority)."""
    come = sorted(jobs, key=lambda each: each[1])
    arrivals = [
        Arrival(n, type_, at * S, at * S, took * S, priority=priority)
        for n, (type_, at, took, priority) in enumerate(come)
    ]
    return Scenario(tuple(fleet), tuple(arrivals))


@st.composite
def scenarios(draw: st.DrawFn, most: int = 5) -> Scenario:
    fleet = draw(st.sampled_from(FLEETS))
    types = sorted({each for worker in fleet for each in worker.types})
    job = st.tuples(st.sampled_from(types), st.integers(0, 6), st.integers(1, 6), st.integers(0, 10))
    return scenario_with(fleet, draw(st.lists(job, min_size=1, max_size=most)))


def best_of_all(scenario: Scenario, weight) -> float:
    """Return the lowest mean weighted wait in s of all schedules that claim every job: each order on each slot."""
    slots = [worker for worker in scenario.workers for _ in range(worker.slots)]
    best = [float("inf")]

    def search(remaining: tuple[Arrival, ...], free_us: tuple[int, ...], cost: float) -> None:
        if cost >= best[0]:
            return
        if not remaining:
            best[0] = cost
            return
        job, rest = remaining[0], remaining[1:]
        for n, slot in enumerate(slots):
            at = max(job.since_us, free_us[n], slot.joined_us)
            if job.type in slot.types and (slot.left_us is None or at < slot.left_us):
                after = (*free_us[:n], at + job.took_us, *free_us[n + 1 :])
                search(rest, after, cost + weight(job) * (at - job.since_us))

    for order in permutations(scenario.arrivals):
        search(order, (0,) * len(slots), 0.0)
    return best[0] / sum(map(weight, scenario.arrivals)) / 1e6


@settings(max_examples=20, deadline=None)
@given(scenarios(), st.sampled_from([equal_weights, priority_weights]))
def test_best_schedule_is_between_the_bounds(scenario, weight):
    exact = best_of_all(scenario, weight)
    lower, listed, *_ = bounds_of(scenario, weight, bins=32)
    if exact < float("inf"):  # otherwise no schedule claims all jobs: the worker has left
        assert max(lower.values()) <= exact + 1e-9, lower
    if len(listed.runs) == len(scenario.arrivals):
        assert exact <= mean_wait_s(scenario.arrivals, starts_of(listed), weight) + 1e-9


@settings(max_examples=20, deadline=None)
@given(scenarios(most=12), st.lists(st.floats(0, 10), min_size=12, max_size=12), st.booleans(), st.data())
def test_no_list_schedule_is_below_the_lower_bounds(scenario, places, ahead, data):
    made = ListScheduler(scenario, dict(enumerate(places)), ahead=ahead).run()
    if len(made.runs) < len(scenario.arrivals):
        return
    waited = mean_wait_s(scenario.arrivals, starts_of(made), equal_weights) * len(scenario.arrivals)
    slots = open_slots(scenario.workers, scenario.arrivals)
    assert list_schedules.weighted_wait_us(scenario.arrivals, slots, equal_weights) / 1e6 <= waited + 1e-9
    edges = np.unique([0.0, *data.draw(st.lists(st.floats(0.1, 40), min_size=2, max_size=30))])
    for by_length in (1, 2, 8):
        solved = Program(classes_of(scenario.arrivals, equal_weights, by_length), slots, edges).solve()
        assert solved is not None
        assert solved.bound_s <= waited + 1e-9
    market = Market(scenario.arrivals, slots, equal_weights, float(edges[-1]), len(edges))
    prices = data.draw(st.lists(st.floats(0, 3), min_size=len(edges), max_size=len(edges)))
    any_prices = np.tile(prices, (len(market.profiles), 1))
    assert market.value(any_prices).bound_s <= waited + 1e-9


def exact_by_milp(scenario: Scenario, until: int) -> float:
    """Return the lowest mean wait in s, from an integer program over start seconds and profiles of jobs."""
    profiles = sorted({tuple(worker.types) for worker in scenario.workers})
    slots = [sum(worker.slots for worker in scenario.workers if worker.types == each) for each in profiles]
    columns = [
        (n, f, at)
        for n, each in enumerate(scenario.arrivals)
        for f, profile in enumerate(profiles)
        if each.type in profile
        for at in range(each.since_us // S, until)
    ]
    once = np.zeros((len(scenario.arrivals), len(columns)))
    busy = np.zeros((len(profiles) * (until + 20), len(columns)))
    for column, (n, f, at) in enumerate(columns):
        once[n, column] = 1
        busy[f * (until + 20) + at : f * (until + 20) + at + scenario.arrivals[n].took_us // S, column] = 1
    cost = [at - scenario.arrivals[n].since_us / S for n, _, at in columns]
    most = np.repeat(slots, until + 20)
    found = milp(
        cost,
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(busy, -np.inf, most)],
        integrality=np.ones(len(columns)),
        bounds=Bounds(0, 1),
    )
    return float(found.fun) / len(scenario.arrivals)


TEN = [("a", 0, 9, 5), ("a", 0, 1, 5), ("b", 1, 3, 5), ("a", 1, 2, 5), ("b", 2, 8, 5)]
TEN += [("a", 3, 1, 5), ("b", 4, 1, 5), ("b", 4, 2, 5), ("a", 5, 4, 5), ("a", 6, 1, 5)]


@pytest.mark.parametrize("fleet", [workers(("a", 1), ("a b", 1)), workers(("a b", 2)), workers(("a", 1), ("b", 1))])
def test_integer_program_is_between_the_bounds(fleet):
    scenario = scenario_with(fleet, TEN)
    exact = exact_by_milp(scenario, 34)
    lower, listed, *_ = bounds_of(scenario, bins=128)
    assert max(lower.values()) <= exact + 1e-6
    assert exact <= mean_wait_s(scenario.arrivals, starts_of(listed), equal_weights) + 1e-6
    assert max(lower.values()) > 0.6 * exact, "the bound is not trivial"


def test_bounds_meet_for_three_jobs_on_one_slot():
    """Jobs of 1, 2 and 3 s arrive together; shortest first, they wait 0, 1 and 3 s."""
    scenario = scenario_with(workers(("a", 1)), [("a", 0, 3, 5), ("a", 0, 1, 5), ("a", 0, 2, 5)])
    lower, listed, *_ = bounds_of(scenario, bins=128)
    assert mean_wait_s(scenario.arrivals, starts_of(listed), equal_weights) == pytest.approx(4 / 3)
    assert lower["one fast slot"] == pytest.approx(4 / 3)
    assert lower["prices"] == pytest.approx(4 / 3, rel=0.03)


def test_slot_is_kept_for_a_short_job_arriving_soon():
    """A job of 100 s waits, and a job of 1 s arrives after 2 s. The slot is kept, so the two wait 3 s and 0 s."""
    scenario = scenario_with(workers(("a", 1)), [("a", 0, 100, 5), ("a", 2, 1, 5)])
    listed = bounds_of(scenario).listed
    assert [run.claimed_us // S for run in listed.runs] == [2, 3]


def test_list_schedule_obeys_keys_rates_and_type_limits():
    jobs = [(job("a", 0, exclusive="k", exclusive_limit="1"), 2 * S)] * 2
    jobs += [(job("b", 0, rate="r", rate_limit="1/m"), S)] * 2
    jobs += [(job("c", 0), 3 * S)] * 3
    scenario = scenario_of(trace(workers(("a b c", 9)), jobs, limits="type:c=2"))
    listed = list_schedules.best_schedule(scenario, equal_weights)
    starts = {"a": [], "b": [], "c": []}
    for run in listed.runs:
        starts[scenario.arrivals[run.number].type].append(run.claimed_us // S)
    assert starts == {"a": [0, 2], "b": [0, 60], "c": [0, 0, 3]}


@pytest.mark.parametrize("name", ["flood", "diurnal", "heavy_tail", "tenants"])
def test_bounds_of_a_trace_are_ordered(name):
    recorded = TRACES[name](250, 3)
    replayed = fast_engine.schedule_fast(scenario_of(recorded))
    found = optimum(recorded, replayed, bins=32)
    assert found.jobs == 250
    assert found.lower_s <= found.upper_s <= found.replayed_s
    assert found.recorded_s == pytest.approx(found.replayed_s)
    assert 1 <= found.replayed_at_least <= found.replayed_at_most


def heavy_tailed(count: int, seed: int, profiles: Sequence[str]) -> Scenario:
    """Return a scenario with jobs of 0.1 s to twelve hours that keep two slots per profile busy."""
    chance = Random(seed)
    fleet = workers(*((types, 2) for types in profiles))
    types = sorted({type_ for each in fleet for type_ in each.types})
    lengths = [min(12 * 3600, max(0.1, chance.lognormvariate(3, 2.3))) for _ in range(count)]
    gap, at, arrivals = sum(lengths) / count / (2 * len(fleet)), 0.0, []
    for number, took in enumerate(lengths):
        at += chance.expovariate(1 / gap)
        since, priority = round(at * S), chance.choice((0, 5, 8))
        arrivals.append(Arrival(number, chance.choice(types), since, since, round(took * S), priority=priority))
    return Scenario(tuple(fleet), tuple(arrivals))


@pytest.mark.parametrize("weight", [equal_weights, priority_weights])
def test_heavy_tail_bounds_are_valid_within_the_work_limit(weight, monkeypatch):
    scenario = heavy_tailed(250, 3, ("a", "a b", "b c", "c d e", "e a"))
    looks: list[int] = []
    value = Market.value

    def counted(market, prices):
        found = value(market, prices)
        looks.append(found.looked_at)
        return found

    monkeypatch.setattr(Market, "value", counted)
    schedules = [fast_engine.schedule_fast(scenario)]
    schedules += [ListScheduler(scenario, dict(enumerate(Random(n).sample(range(250), 250)))).run() for n in range(10)]
    best, spent, widths = 0.0, [], []
    for most in (100_000, 2_000_000):
        looks.clear()
        monkeypatch.setattr("celery_affinity.lab.optimum._LOOKS", most)
        found = bounds_of(scenario, weight)
        spent.append(sum(looks))
        widths.append(found.bin_s)
        for schedule in (*schedules, found.listed):
            assert max(found.lower.values()) <= mean_wait_s(scenario.arrivals, starts_of(schedule), weight) + 1e-9
        assert spent[-1] < 1.5 * most
        assert max(found.lower.values()) >= best
        best = max(found.lower.values())
    assert best > 0
    assert widths[0] > widths[1]


def test_cheapest_start_is_found_among_useful_edges():
    """No other edge gives a cheaper start, for rising and falling prices, many job lengths and two profiles."""
    chance = np.random.default_rng(4)
    jobs = [("a" if n % 2 else "b", int(chance.integers(0, 40)), int(chance.integers(1, 60)), 5) for n in range(30)]
    scenario = scenario_with(workers(("a", 1), ("a b", 2)), jobs)
    slots = open_slots(scenario.workers, scenario.arrivals)
    market = Market(scenario.arrivals, slots, equal_weights, 120.0, 64)
    prices = chance.uniform(0, 4, (2, 64)) * (chance.uniform(size=(2, 64)) < 0.5)
    expected = -float((prices * market.slot_s).sum())
    for each in scenario.arrivals:
        since, took = each.since_us / S, each.took_us / S
        starts = [since, *(at for at in (*market.edges, *(market.edges - took)) if at >= since)]
        expected += min(
            at - since + np.interp(at + took, market.edges, paid) - np.interp(at, market.edges, paid)
            for profile, curve in zip(market.profiles, prices, strict=True)
            if each.type in profile
            for paid in [np.concatenate(([0.0], np.cumsum(curve * market.width)))]
            for at in starts
        )
    assert market.value(prices).bound_s == pytest.approx(expected)


def test_unclaimed_jobs_of_the_record_are_left_out():
    recorded = trace(workers(("a", 1)), [(job("a", 0), S), (job("a", 0), S), (job("b", 0), S)])
    found = optimum(recorded, fast_engine.schedule_fast(scenario_of(recorded)), bins=32)
    assert (found.jobs, found.left_out) == (2, 1)
    assert found.upper_s == pytest.approx(0.5)


def test_trace_without_claims_is_refused():
    recorded = trace(workers(("a", 1)), [(job("b", 0), S)])
    with pytest.raises(ValueError, match="no job of the trace is claimed"):
        optimum(recorded, fast_engine.schedule_fast(scenario_of(recorded)))


def test_lower_bound_serializes_jobs_of_a_key():
    """With free slots, jobs of 1, 2 and 3 s wait 0, 1 and 3 s for a key with limit 1, and 0, 0 and 1 s for limit 2."""
    for limit, waits in (("1", 4), ("2", 1)):
        jobs = [(job("a", 0, exclusive="k", exclusive_limit=limit), took * S) for took in (3, 1, 2)]
        scenario = scenario_of(trace(workers(("a", 9)), jobs))
        lower, listed, *_ = bounds_of(scenario, bins=32)
        assert mean_wait_s(scenario.arrivals, starts_of(listed), equal_weights) == pytest.approx(waits / 3, abs=1e-3)
        assert lower["one fast slot for each key"] <= waits / 3 + 1e-9
        assert lower["one fast slot for each key"] == pytest.approx(4 / 3, abs=1e-3) or limit == "2"
        limited = replace(scenario, settings={"limits": "host:*=9"})
        assert "one fast slot for each key" not in bounds_of(limited, bins=32).lower


@settings(max_examples=100, deadline=None)
@given(scenarios(most=8), st.lists(st.floats(0, 10), min_size=8, max_size=8), st.booleans(), st.data())
def test_any_schedule_satisfies_the_linear_program(scenario, places, ahead, data):
    made = ListScheduler(scenario, dict(enumerate(places)), ahead=ahead).run()
    if len(made.runs) < len(scenario.arrivals):
        return
    edges = np.unique([0.0, *data.draw(st.lists(st.floats(0.1, 40), min_size=2, max_size=12))])
    classes = classes_of(scenario.arrivals, equal_weights, data.draw(st.sampled_from([1, 2, 8])))
    program = Program(classes, open_slots(scenario.workers, scenario.arrivals), edges)
    values = numbers_of(made, program)
    over = program.at_most.matrix(program.columns) @ values - np.concatenate(program.at_most.limits)
    assert over.max() < 1e-6
    missed = program.equal.matrix(program.columns) @ values - np.concatenate(program.equal.limits)
    assert np.abs(missed).max() < 1e-6
    assert (values <= program.highest + 1e-9).all()
    if edges[-1] >= max(run.claimed_us for run in made.runs) / S:
        waited = mean_wait_s(scenario.arrivals, starts_of(made), equal_weights) * len(scenario.arrivals)
        assert program.cost @ values == pytest.approx(waited)


def numbers_of(made: Schedule, program: Program) -> np.ndarray:
    """Return the values of the columns of *program* for the schedule *made*."""
    edges, starts, values = program.edges, starts_of(made), np.zeros(program.columns)
    for number, jobs in enumerate(program.classes):
        class_jobs = [
            (each.since_us / S, starts[each.number] / S, each.took_us / S)
            for each in made.scenario.arrivals
            if each.type == jobs.type and jobs.shortest_s <= each.took_us / S <= jobs.longest_s
        ]
        for k, edge in enumerate(edges):
            done = [min(took, max(0, edge - start)) for _, start, took in class_jobs]
            best = [min(took, max(0, edge - since)) for since, _, took in class_jobs]
            here = number * program.per_class + k
            values[here] = sum(since <= edge < start for since, start, _ in class_jobs)
            values[here + program.bins + 1] = sum(max(0, min(edge, start) - since) for since, start, _ in class_jobs)
            values[here + 2 * (program.bins + 1)] = sum(best) - sum(done)
    served = {worker.name: frozenset(worker.types) for worker in made.scenario.workers}
    types = {each.type for each in made.scenario.arrivals}
    for run in made.runs:
        pair = (made.scenario.arrivals[run.number].type, served[run.worker] & types)
        first = program.per_class * len(program.classes) + program.pairs.index(pair) * program.bins
        for k in range(program.bins):
            values[first + k] += max(0, min(edges[k + 1], run.ended_us / S) - max(edges[k], run.claimed_us / S))
    return values
