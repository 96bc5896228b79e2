"""What `advise` says: the fewest slots that reach targets, what could go, and why nothing would do."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_affinity.errors import OptionError
from celery_affinity.lab import fast_engine
from celery_affinity.lab.advise import advise, resample_days, with_slots
from celery_affinity.lab.scenario import Scenario, scenario_of
from celery_affinity.lab.targets import Target, parse_target
from celery_affinity.lab.trace import TracedWorker

from .traces import TRACES, S, flood, job, trace, workers


def advised(scenario: Scenario, *targets: str, **more):
    types = {each.type for each in scenario.arrivals}
    return advise(scenario, [parse_target(each, types) for each in targets], fast_engine.schedule_fast, **more)


def burst(number: int, took_s: int, slots: int, **more) -> Scenario:
    """Return jobs that come at the same time."""
    return scenario_of(trace(workers(("pdf", slots)), [(job("pdf", S, **more), took_s * S) for _ in range(number)]))


def test_a_burst_needs_as_many_slots_as_its_time_has_room_for():
    """24 jobs of 10 s at once; to start within 15 s, 12 have to run at a time: 12 at 0 s, 12 at 10 s."""
    found = advised(burst(24, 10, 4), "pdf:p99<15s")
    (best,) = found.advice
    assert (best.slots, best.settings) == ([(("pdf",), 8)], "")
    (target,) = best.targets
    assert (target.now_s, target.then_s) == pytest.approx((50.0, 10.0), abs=1e-3)
    assert target.is_reached
    # On some days that are drawn again the burst stays away, on some it comes twice.
    assert target.low_s <= target.then_s < target.high_s
    assert 0 < best.days_reached < best.days == 10
    assert (best.mean_now_s, best.mean_then_s) == pytest.approx((25.0, 5.0), abs=1e-3)
    assert found.complete
    assert not found.already


def test_slots_that_are_not_needed_could_go():
    """Of 24 jobs of 10 s with 15 s to start in, 12 slots are enough."""
    found = advised(burst(24, 10, 20), "pdf:p99<15s")
    assert found.already
    assert found.advice[0].slots == [(("pdf",), -8)]
    assert advised(burst(24, 10, 12), "pdf:p99<15s").advice == []


def test_a_slot_goes_to_the_type_that_needs_it():
    jobs = [(job("pdf", n * S), 4 * S) for n in range(40)] + [(job("xls", n * S), S // 10) for n in range(40)]
    found = advised(scenario_of(trace(workers(("pdf", 3), ("xls", 1)), jobs)), "pdf:p95<1s", "xls:p95<1s")
    assert found.advice[0].slots == [(("pdf",), 1)]


def test_settings_alone_are_advised_if_they_are_enough():
    """Old batch jobs are worth more than a new user's, until the weight of users' jobs is raised."""
    jobs = [(job("pdf", 0, priority=9), 2 * S) for _ in range(200)]
    jobs += [(job("pdf", (20 + 10 * n) * S, on_demand=True, priority=0), 2 * S) for n in range(10)]
    found = advised(scenario_of(trace(workers(("pdf", 2)), jobs)), "on-demand:p95<4s")
    assert found.advice[0].slots == []
    assert found.advice[0].settings.startswith("on_demand_weight ")
    assert found.advice[1].slots, "and slots that do without"


def test_a_limit_that_keeps_jobs_back_is_taken_off():
    jobs = [(job("pdf", n * S), 3 * S) for n in range(30)]
    found = advised(scenario_of(trace(workers(("pdf", 4)), jobs, limits="type:pdf=1")), "pdf:p95<1s")
    # More slots do not help: no fleet reaches this, and the sentence says what does keep the jobs back.
    assert found.advice == ()
    assert "no fleet reaches this" in found.unreached[0]
    assert "the setting limits lets 1 jobs of 'pdf' run at a time" in found.unreached[0]


def test_a_target_that_no_fleet_reaches_has_a_sentence():
    (zero,) = advised(burst(3, 1, 1), "pdf:p95<0s").unreached
    assert zero.endswith("With a free slot for each job its wait is 0 s: no wait is below 0")
    (nobody,) = advised(burst(3, 1, 1), "on-demand:p95<1s").unreached
    assert nobody == "on-demand:p95<1s: the trace has no such job"
    paused = scenario_of(trace(workers(("pdf", 1)), [(job("pdf", 0), S)]))
    (found,) = advised(Scenario(paused.workers, paused.arrivals, {}, ("pdf",)), "all:p50<1s").unreached
    assert "so many of its jobs are never claimed: the type 'pdf' was paused (1 of 1 such jobs)" in found


def test_the_number_of_simulations_is_bounded():
    found = advised(scenario_of(flood(200)), "all:p99<10ms", most_simulations=30)
    assert found.simulations <= 30
    assert not found.complete
    ticks = iter(range(1_000))
    found = advised(scenario_of(flood(200)), "all:p99<10ms", most_simulations=40, progress=ticks)
    assert next(ticks) == found.simulations


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["flood", "diurnal", "heavy_tail"]), st.integers(1, 5), st.sampled_from([50, 95, 99]))
def test_what_is_advised_reaches_the_targets_and_one_slot_less_of_a_profile_does_not(name, seed, percent):
    scenario = scenario_of(TRACES[name](60, seed))
    found = advised(scenario, f"all:p{percent}<800ms", days=1)
    target = parse_target(f"all:p{percent}<800ms", ())
    for each in found.advice:
        if each.settings:
            continue
        slots = dict(each.slots)
        assert target.wait_s(fast_engine.schedule_fast(with_slots(scenario, slots, {}))) < 0.8
        assert each.targets[0].then_s == target.wait_s(fast_engine.schedule_fast(with_slots(scenario, slots, {})))
        if len(slots) == 1 and not found.already:
            ((profile, number),) = slots.items()
            less = with_slots(scenario, {profile: number - 1}, {})
            assert target.wait_s(fast_engine.schedule_fast(less)) >= 0.8


def test_slots_come_and_go_by_profile():
    scenario = Scenario(
        (TracedWorker("a", ("x", "y"), 3), TracedWorker("b", ("y", "x"), 1), TracedWorker("c", ("x",), 2)), ()
    )
    fewer = with_slots(scenario, {("x", "y"): -2}, {})
    assert [(each.name, each.slots) for each in fewer.workers] == [("a", 2), ("c", 2)]
    more = with_slots(scenario, {("x",): 5}, {"age_weight": "3"})
    assert (more.workers[-1].types, more.workers[-1].slots, more.settings["age_weight"]) == (("x",), 5, "3")


def test_days_that_are_drawn_again_are_the_same_for_a_seed_and_keep_the_rhythm():
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
def test_a_target_is_read(text, whose, percent, below_s):
    assert parse_target(text, {"pdf"}) == Target(whose, percent, pytest.approx(below_s), text)


@pytest.mark.parametrize(
    "text", ["pdf:95<5s", "pdf:p95", "pdf:p95<5", "p95<5s", "pdf:p0<5s", "pdf:p100<5s", "xls:p5<1s"]
)
def test_a_bad_target_is_refused_with_what_came(text):
    with pytest.raises(OptionError, match="--target") as caught:
        parse_target(text, {"pdf"})
    assert repr(text) in str(caught.value)


def test_jobs_that_are_never_claimed_count_as_endless_waits():
    scenario = scenario_of(trace(workers(("pdf", 1)), [(job("xls", 0), S), (job("pdf", 0), S)]))
    assert parse_target("all:p50<1s", ()).wait_s(fast_engine.schedule_fast(scenario)) == 0
    assert parse_target("all:p51<1s", ()).wait_s(fast_engine.schedule_fast(scenario)) == math.inf
    assert advised(scenario, "xls:p95<1s").advice[0].slots == [(("xls",), 1)]
