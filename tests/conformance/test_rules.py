"""The rules in Python and on the server: equal to the last bit, with their consequences."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_affinity.clock import SECOND_US
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.lua.library import load_library
from celery_affinity.policy.score import MICRO, QueueRank, Terms, Weights, overtakes, score
from celery_affinity.schema.keys import Keys
from celery_affinity.schema.values import decode_part, encode_part

from ..support.scripted_fleet import ScriptedFleet
from .reference.placement import FreeWorker, choose_worker

#: The server outlives an example: each example leaves no data, or empties the server first.
SERVER_KEPT = [HealthCheck.function_scoped_fixture]

ages_us = st.integers(-SECOND_US, 10**15)
weights = st.floats(0, 1e6, allow_nan=False).map(lambda value: round(value, 6))
some_weights = st.builds(
    Weights,
    priority=weights,
    age=weights,
    rarity=weights,
    on_demand=weights,
    on_demand_age=weights,
    on_demand_age_cap_us=st.integers(0, 10**12),
)


@pytest.fixture
def lua_score(redis_client):
    """The score of ``lua/matching/score.lua``, run on the server."""
    script = redis_client.register_script(
        load_library().modules
        + """
        call.take_globals()
        local settings = {
            priority_weight = tonumber(ARGV[5]), age_weight = tonumber(ARGV[6]), rarity_weight = tonumber(ARGV[7]),
            on_demand_weight = tonumber(ARGV[8]), on_demand_age_weight = tonumber(ARGV[9]),
            on_demand_age_cap_us = tonumber(ARGV[10]),
        }
        local on_demand = ARGV[2] == "1"
        local value = score.standing(tonumber(ARGV[1]), on_demand, settings)
            + score.patience(on_demand, tonumber(ARGV[3]), settings)
            + score.rarity(tonumber(ARGV[4]), settings)
        return string.format("%.0f", value)
        """
    )

    def of(priority, on_demand, age_us, slots, given):
        return script(
            args=[
                priority,
                int(on_demand),
                age_us,
                slots,
                repr(given.priority),
                repr(given.age),
                repr(given.rarity),
                repr(given.on_demand),
                repr(given.on_demand_age),
                given.on_demand_age_cap_us,
            ]
        )

    return of


@settings(max_examples=300, deadline=None, suppress_health_check=SERVER_KEPT)
@given(st.data())
def test_python_and_lua_compute_the_same_score(lua_score, data):
    priority, on_demand = data.draw(st.integers(0, 10)), data.draw(st.booleans())
    age_us, slots = data.draw(ages_us), data.draw(st.integers(1, 10**6))
    given_weights = data.draw(st.one_of(st.just(Weights()), some_weights))
    total = score(priority, on_demand, age_us, slots, given_weights).total
    if abs(total) < 2**53:  # beyond this, a score is not a whole number in Lua; such settings make no sense
        assert int(lua_score(priority, on_demand, age_us, slots, given_weights)) == total


def test_rarity_bonus_has_the_documented_values():
    assert [score(0, False, 0, slots, Weights()).rarity / MICRO for slots in (1, 2, 4, 8)] == [500, 250, 125, 62.5]


def test_score_is_the_sum_of_its_terms():
    assert score(5, True, 300 * SECOND_US, 4, Weights()) == Terms(
        priority=5120 * MICRO, age=4800 * MICRO, rarity=125 * MICRO, on_demand=(4096 + 256 * 32) * MICRO
    )


@given(st.integers(0, 10), st.booleans(), st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 1000))
def test_score_never_falls_with_age(priority, on_demand, age_us, more_us, slots):
    young = score(priority, on_demand, age_us, slots, Weights()).total
    old = score(priority, on_demand, age_us + more_us, slots, Weights()).total
    assert old - young >= 16 * more_us


@given(
    st.lists(
        st.builds(QueueRank, st.integers(0, 3), st.integers(0, 3), st.text("ab", min_size=1, max_size=3)), min_size=2
    )
)
def test_order_of_scores_is_total(jobs):
    first, second = jobs[:2]
    if first != second:
        assert overtakes(first, second) != overtakes(second, first)


# -- the chosen slot, compared with the server


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))


types = st.sets(st.sampled_from("abcd"), min_size=1)


@settings(max_examples=60, deadline=None, suppress_health_check=SERVER_KEPT)
@given(st.lists(types, min_size=1, max_size=6), st.lists(st.sampled_from("abcd"), max_size=8), st.booleans())
def test_server_chooses_the_worker_of_the_rule(fleet, profiles, jobs, at_once):
    fleet.scheduler.client.flushdb()
    fleet.scheduler.advance(0)
    free = []
    for number, served in enumerate(profiles):
        fleet.join(f"w{number}", *served)
        free.append(FreeWorker(f"w{number}", frozenset(served), fleet.scheduler.now_us))
        fleet.scheduler.advance(0 if at_once else 1)
    for number, type_ in enumerate(jobs):
        chosen = choose_worker(type_, free)
        fleet.publish(f"job{number}", type_)
        assert fleet.claims(chosen.id if chosen else "nobody").keys() == ({f"job{number}"} if chosen else set())
        if chosen:
            free.remove(chosen)


# -- names


@given(st.text(min_size=1))
def test_any_name_can_be_part_of_a_key(name):
    try:
        name.encode()
    except UnicodeEncodeError:  # Redis cannot hold lone surrogates
        return
    encoded = encode_part(name)
    assert decode_part(encoded) == name
    assert not set(encoded) & set(" :{},\n")
