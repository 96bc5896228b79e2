"""`advise` finds the fewest slots that reach targets, superfluous slots, and unreachable targets."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_affinity.errors import OptionError
from celery_affinity.lab import fast_engine
from celery_affinity.lab.advise import advise, head_starts_to_try, resample_days, with_slots
from celery_affinity.lab.scenario import Scenario, scenario_of
from celery_affinity.lab.targets import Target, parse_target
from celery_affinity.lab.trace import TracedWorker
from celery_affinity.settings.wire import complete_settings

from .traces import TRACES, S, flood, job, trace, workers


def advised(scenario: Scenario, *targets: str, **more):
    types = {each.type for each in scenario.arrivals}
    return advise(scenario, [parse_target(each, types) for each in targets], fast_engine.schedule_fast, **more)


def burst(number: int, took_s: int, slots: int, **more) -> Scenario:
    """Return a scenario of jobs that arrive at the same time."""
    return scenario_of(trace(workers(("pdf", slots)), [(job("pdf", S, **more), took_s * S) for _ in range(number)]))


def test_burst_needs_slots_for_its_jobs_within_the_target():
    """24 simultaneous jobs of 10 s start within 15 s on 12 slots: 12 jobs at 0 s, and 12 at 10 s."""
    advised_changes = advised(burst(24, 10, 4), "pdf:p99<15s")
    (best,) = advised_changes.advice
    assert (best.slots, best.settings) == ([(("pdf",), 8)], "")
    (target,) = best.targets
    assert (target.now_s, target.then_s) == pytest.approx((50.0, 10.0), abs=1e-3)
    assert target.is_reached
    # Some resampled days have no burst, and some have two.
    assert target.low_s <= target.then_s < target.high_s
    assert 0 < best.days_reached < best.days == 10
    assert (best.mean_now_s, best.mean_then_s) == pytest.approx((25.0, 5.0), abs=1e-3)
    assert advised_changes.complete
    assert not advised_changes.already


def test_superfluous_slots_are_advised_for_removal():
    """12 slots are enough for 24 jobs of 10 s that have 15 s to start."""
    advised_changes = advised(burst(24, 10, 20), "pdf:p99<15s")
    assert advised_changes.already
    assert advised_changes.advice[0].slots == [(("pdf",), -8)]
    assert advised(burst(24, 10, 12), "pdf:p99<15s").advice == []


def test_slot_is_added_to_the_type_that_needs_it():
    jobs = [(job("pdf", n * S), 4 * S) for n in range(40)] + [(job("xls", n * S), S // 10) for n in range(40)]
    advised_changes = advised(scenario_of(trace(workers(("pdf", 3), ("xls", 1)), jobs)), "pdf:p95<1s", "xls:p95<1s")
    assert advised_changes.advice[0].slots == [(("pdf",), 1)]


def test_settings_are_advised_before_slots_if_sufficient():
    """Old batch jobs score higher than a new on-demand job until `on_demand_weight` is raised."""
    jobs = [(job("pdf", 0, priority=9), 2 * S) for _ in range(200)]
    jobs += [(job("pdf", (20 + 10 * n) * S, on_demand=True, priority=0), 2 * S) for n in range(10)]
    advised_changes = advised(scenario_of(trace(workers(("pdf", 2)), jobs)), "on-demand:p95<4s")
    assert advised_changes.advice[0].slots == []
    assert advised_changes.advice[0].settings.startswith("on_demand_weight ")
    assert advised_changes.advice[1].slots, "the alternative with slots only"


def test_stretch_is_advised_if_short_jobs_wait_behind_long_ones():
    jobs = [(job("pdf", 30 * n * S, task=f"takes {took}"), took * S) for n, took in enumerate((1, 20))]
    jobs += [(job("pdf", (100 + n) * S, task=f"takes {took}"), took * S) for n, took in enumerate((20, 1, 1) * 8)]
    advised_changes = advised(scenario_of(trace(workers(("pdf", 1)), jobs)), "all:p50<25s")
    best, with_slots_only = advised_changes.advice
    assert (best.slots, best.settings.partition(" ")[0]) == ([], "stretch")
    assert best.mean_then_s < best.mean_now_s
    assert with_slots_only.slots


def test_target_wait_is_advised_with_stretch():
    tried = {
        each.words: each.settings for each in head_starts_to_try(complete_settings({"target_wait_us": "60000000"}))
    }
    assert tried["stretch 16"] == {"stretch": "16", "target_wait_us": "60000000"}
    assert tried["stretch 64 target_wait 960"] == {"stretch": "64", "target_wait_us": "960000000"}
    assert list(head_starts_to_try(complete_settings({"target_wait_us": "0"}))) == []


def test_blocking_limit_makes_a_target_unreachable():
    jobs = [(job("pdf", n * S), 3 * S) for n in range(30)]
    advised_changes = advised(scenario_of(trace(workers(("pdf", 4)), jobs, limits="type:pdf=1")), "pdf:p95<1s")
    # More slots do not help: no fleet reaches the target, and the reason names the limit.
    assert advised_changes.advice == ()
    assert "no fleet reaches this" in advised_changes.unreached[0]
    assert "the setting limits lets 1 jobs of 'pdf' run at a time" in advised_changes.unreached[0]


def test_unreachable_target_is_explained():
    (zero,) = advised(burst(3, 1, 1), "pdf:p95<0s").unreached
    assert zero.endswith("With a free slot for each job its wait is 0 s: no wait is below 0")
    (missing,) = advised(burst(3, 1, 1), "on-demand:p95<1s").unreached
    assert missing == "on-demand:p95<1s: the trace has no such job"
    paused = scenario_of(trace(workers(("pdf", 1)), [(job("pdf", 0), S)]))
    (advised_changes,) = advised(Scenario(paused.workers, paused.arrivals, {}, ("pdf",)), "all:p50<1s").unreached
    assert "so many of its jobs are never claimed: the type 'pdf' was paused (1 of 1 such jobs)" in advised_changes


def test_number_of_simulations_is_bounded():
    advised_changes = advised(scenario_of(flood(200)), "all:p99<10ms", max_simulations=30)
    assert advised_changes.simulations <= 30
    assert not advised_changes.complete
    ticks = iter(range(1_000))
    advised_changes = advised(scenario_of(flood(200)), "all:p99<10ms", max_simulations=40, progress=ticks)
    assert next(ticks) == advised_changes.simulations


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["flood", "diurnal", "heavy_tail"]), st.integers(1, 5), st.sampled_from([50, 95, 99]))
def test_advice_reaches_its_targets_with_the_fewest_slots(name, seed, percent):
    scenario = scenario_of(TRACES[name](60, seed))
    advised_changes = advised(scenario, f"all:p{percent}<800ms", days=1)
    target = parse_target(f"all:p{percent}<800ms", ())
    for each in advised_changes.advice:
        if each.settings:
            continue
        slots = dict(each.slots)
        assert target.wait_s(fast_engine.schedule_fast(with_slots(scenario, slots, {}))) < 0.8
        assert each.targets[0].then_s == target.wait_s(fast_engine.schedule_fast(with_slots(scenario, slots, {})))
        if len(slots) == 1 and not advised_changes.already:
            ((profile, number),) = slots.items()
            less = with_slots(scenario, {profile: number - 1}, {})
            assert target.wait_s(fast_engine.schedule_fast(less)) >= 0.8


def test_with_slots_changes_slots_per_profile():
    fleet = TracedWorker("a", ("x", "y"), 3), TracedWorker("b", ("y", "x"), 1), TracedWorker("c", ("x",), 2)
    scenario = Scenario(fleet, ())
    fewer = with_slots(scenario, {("x", "y"): -2}, {})
    assert [(each.name, each.slots) for each in fewer.workers] == [("a", 2), ("c", 2)]
    more = with_slots(scenario, {("x",): 5}, {"age_weight": "3"})
    assert (more.workers[-1].types, more.workers[-1].slots, more.settings["age_weight"]) == (("x",), 5, "3")


def test_resampled_days_depend_on_the_seed_and_keep_the_rhythm():
    scenario = scenario_of(TRACES["diurnal"](2_000, 1))
    one, other = resample_days(scenario, 1), resample_days(scenario, 2)
    assert one == resample_days(scenario, 1)
    assert one != other
    assert len({each.number for each in one.arrivals}) == len(one.arrivals)
    times = [each.since_us for each in one.arrivals]
    assert times == sorted(times)
    half, end = times[-1] // 2, times[-1]
    night = sum(each < end // 8 or each > 7 * end // 8 for each in times)
    noon = sum(abs(each - half) < end // 8 for each in times)
    assert noon > 2 * night, "arrivals at noon stay near noon"


@pytest.mark.parametrize(
    ("text", "whose", "percent", "below_s"),
    [
        ("pdf:p95<5s", "pdf", 95, 5),
        ("on-demand:p99<1s", "on-demand", 99, 1),
        ("all:p50<200ms", "all", 50, 0.2),
        ("queued:p99.9 < 1.5m", "queued", 99.9, 90),
    ],
)
def test_target_is_parsed(text, whose, percent, below_s):
    assert parse_target(text, {"pdf"}) == Target(whose, percent, pytest.approx(below_s), text)


@pytest.mark.parametrize(
    "text", ["pdf:95<5s", "pdf:p95", "pdf:p95<5", "p95<5s", "pdf:p0<5s", "pdf:p100<5s", "xls:p5<1s"]
)
def test_invalid_target_is_refused_with_its_text(text):
    with pytest.raises(OptionError, match="--target") as caught:
        parse_target(text, {"pdf"})
    assert repr(text) in str(caught.value)


def test_unclaimed_jobs_count_as_infinite_waits():
    scenario = scenario_of(trace(workers(("pdf", 1)), [(job("xls", 0), S), (job("pdf", 0), S)]))
    assert parse_target("all:p50<1s", ()).wait_s(fast_engine.schedule_fast(scenario)) == 0
    assert parse_target("all:p51<1s", ()).wait_s(fast_engine.schedule_fast(scenario)) == math.inf
    assert advised(scenario, "xls:p95<1s").advice[0].slots == [(("xls",), 1)]
