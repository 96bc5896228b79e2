"""Fair shares of tenants by used slot time: weights, idleness, credit, and the bound."""

from collections import Counter
from heapq import heapify, heappop, heappush
from itertools import cycle, permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.constants import MAX_LISTED
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.counting import Counting
from ..support.scripted_fleet import ScriptedFleet
from ..support.tenants import PDF, of

SHARES = {"tenant_turns": "share"}


def fleet_with_shares(redis_client, scheduler=FakeClockScheduler, **more):
    fleet = ScriptedFleet(scheduler(redis_client, Keys()))
    fleet.scheduler.configure(SHARES | more)
    return fleet


@pytest.fixture
def fleet(redis_client):
    return fleet_with_shares(redis_client)


class Trace:
    """A fleet of *slots* for one type, with tenants that always have waiting jobs of given run times in seconds."""

    def __init__(self, fleet, slots, seconds, weights):
        self.fleet, self.seconds, self.number = fleet, seconds, 0
        self.used = dict.fromkeys(seconds, 0.0)
        self.running = []
        self.starts = []
        self.stopped = set()
        quotas = " ".join(f"{name}=max:none,weight:{weight}" for name, weight in weights.items())
        fleet.scheduler.configure({"tenants": quotas})
        fleet.join("worker", PDF, slots=slots)
        for name in seconds:
            for _ in range(slots + 2):
                self.publish(name)
        self.begin()

    def publish(self, name):
        self.number += 1
        self.fleet.publish(f"{name}.{self.number}$", PDF, rules=of(name))

    def begin(self):
        for claim in self.fleet.inbox("worker"):
            name = claim.job_id.partition(".")[0]
            self.starts.append(name)
            took = self.seconds[name]
            took_s = took if isinstance(took, float) else next(took)
            self.running.append((self.fleet.now_us + round(took_s * 1e6), took_s, name, claim))
            if name not in self.stopped:
                self.publish(name)

    def used_so_far(self):
        """Return the slot time of each tenant in seconds, including the running jobs."""
        used = dict(self.used)
        for until_us, took_s, name, _ in self.running:
            used[name] += took_s - (until_us - self.fleet.now_us) / 1e6
        return used

    def run_on(self, seconds):
        until_us = self.fleet.now_us + round(seconds * 1e6)
        while self.running and min(self.running)[0] <= until_us:
            first = min(self.running, key=lambda each: each[0])
            self.running.remove(first)
            at_us, took_s, name, claim = first
            self.fleet.scheduler.advance((at_us - self.fleet.now_us) / 1e6)
            self.used[name] += took_s
            self.fleet.end("worker", claim, inline=False)
            self.begin()
        self.fleet.scheduler.advance((until_us - self.fleet.now_us) / 1e6)


def order_of(fleet, most=None):
    """Return the first *most* jobs in the order in which one slot runs them, 1 s each."""
    order, claims = [], fleet.inbox("worker")
    while claims and len(order) != most:
        order += [each.job_id for each in claims]
        fleet.scheduler.advance(1)
        claims = fleet.end("worker", *claims)
    return order


def share_of(redis_client, tenant, lane="queued.0"):
    """Return the lines of a tenant's share: credit, decayed use and running jobs; start tag and candidate per type."""
    return redis_client.get(Keys().key("share", lane, f"tenant%3A{tenant}", "1")).decode().split("\n")


def flood(fleet, *tenants, jobs=3):
    for tenant in tenants:
        for number in range(jobs):
            fleet.publish(f"{tenant}{number}$", PDF, rules=of(tenant))
            fleet.scheduler.advance(0.001)


def test_slot_time_follows_weights_for_any_run_time(valkey, fleet):
    """Tenant a has jobs of 0.1 s and weight 1, tenant b has jobs of 2 s and weight 3."""
    trace = Trace(fleet, 8, {"a": 0.1, "b": 2.0}, {"a": 1, "b": 3})
    trace.run_on(80)
    assert trace.used["b"] / trace.used["a"] == pytest.approx(3, rel=0.05)


#: Keshav, "An Engineering Approach to Computer Networking" (1997), 9.2.2: capacity, demands, weights, allocations.
MAX_MIN = {
    "equal weights": (10, (2, 2.6, 4, 5), (1, 1, 1, 1), (2, 2.6, 2.7, 2.7)),
    "weights": (16, (4, 2, 10, 4), (5, 8, 1, 2), (4, 2, 6, 4)),
}


@pytest.mark.parametrize(("slots", "demands", "weights", "allocations"), MAX_MIN.values(), ids=MAX_MIN)
def test_slots_are_shared_like_in_max_min_examples(fleet, redis_client, slots, demands, weights, allocations):
    """A tenant with a demand of n slots publishes n jobs of 1 s per second."""
    names = "abcd"
    quotas = " ".join(f"{name}=max:none,weight:{weight}" for name, weight in zip(names, weights, strict=True))
    fleet.scheduler.configure({"tenants": quotas})
    redis_client.hset(Keys().key("durations"), PDF, 1_000_000)
    fleet.join("worker", PDF, slots=slots)
    comes = [
        (nth / demand, name) for name, demand in zip(names, demands, strict=True) for nth in range(round(40 * demand))
    ]
    events = [(at_s, 1, name, None) for at_s, name in comes]
    heapify(events)
    ended, now_s = Counter(), 0.0
    while events[0][0] < 40:
        at_s, _, name, claim = heappop(events)
        fleet.scheduler.advance(at_s - now_s)
        now_s = at_s
        if claim is None:
            fleet.publish(f"{name}.{len(events)}.{at_s}$", PDF, rules=of(name))
        else:
            ended[name] += at_s > 10
            fleet.end("worker", claim, inline=False)
        for each in fleet.inbox("worker"):
            heappush(events, (now_s + 1, 0, each.job_id.partition(".")[0], each))
    assert [ended[name] / 30 for name in names] == pytest.approx(allocations, rel=0.03)


def test_start_tags_order_a_heavy_and_ten_light_sessions(fleet, redis_client):
    """Bennett and Zhang, "WF2Q" (1996), 3.1: a session with half of the link sends eleven packets, ten others one each.

    By start-time fair queueing (Goyal 1996), the start tags are 0, 2, 4, ... for the first session's packets, and 0 for
    all others.
    """
    others = [f"o{number}" for number in range(10)]
    quotas = ["heavy=max:none,weight:10", *(f"{name}=max:none,weight:1" for name in others)]
    fleet.scheduler.configure({"tenants": " ".join(quotas)})
    redis_client.hset(Keys().key("durations"), PDF, 1_000_000)
    flood(fleet, "heavy", jobs=11)
    flood(fleet, *others, jobs=1)
    fleet.join("worker", PDF, slots=1)
    heavy = [f"heavy{number}$" for number in range(11)]
    assert order_of(fleet) == [heavy[0], *(f"{name}0$" for name in others), *heavy[1:]]


def test_each_of_n_tenants_is_served_within_n_turns(fleet):
    trace = Trace(fleet, 1, dict.fromkeys("abcde", 1.0), {})
    trace.run_on(60)
    assert all(len({*trace.starts[first : first + 5]}) == 5 for first in range(len(trace.starts) - 5))


def test_idle_tenant_gets_its_share_only_from_now_on(fleet):
    trace = Trace(fleet, 2, {"a": 1.0}, {})
    trace.run_on(100)
    trace.seconds["b"], trace.used["b"] = 1.0, 0.0
    for _ in range(4):
        trace.publish("b")
    before = dict(trace.used)
    trace.run_on(20)
    assert trace.used["b"] == pytest.approx(trace.used["a"] - before["a"], abs=3)


def test_flood_owes_nothing_after_it_has_ended(fleet):
    """Tenant a has all slots for 100 s and stops, then b has them for 110 s. After that, both share them equally."""
    trace = Trace(fleet, 2, {"a": 1.0}, {})
    trace.run_on(100)
    trace.stopped = {"a"}
    trace.run_on(20)
    trace.seconds["b"], trace.used["b"] = 1.0, 0.0
    for _ in range(4):
        trace.publish("b")
    trace.begin()
    trace.run_on(110)
    trace.stopped = set()
    before = dict(trace.used)
    for _ in range(4):
        trace.publish("a")
    trace.run_on(20)
    assert trace.used["a"] - before["a"] == pytest.approx(trace.used["b"] - before["b"], abs=3)


def test_older_job_is_first_after_equal_use(fleet):
    for tenant in ("z", "m", "a"):
        fleet.publish(f"{tenant}$", PDF, rules=of(tenant))
        fleet.scheduler.advance(0.001)
    fleet.join("worker", PDF)
    assert fleet.jobs("worker") == ["z$"]


def test_job_shorter_than_usual_gives_its_tenant_credit(fleet, redis_client):
    fleet.join("worker", PDF)
    redis_client.hset(Keys().key("durations"), PDF, 10_000_000)
    for job in ("a.1$", "b.1$", "a.2$", "b.2$"):
        fleet.publish(job, PDF, rules=of(job[0]))
    (first,) = fleet.inbox("worker")
    fleet.scheduler.advance(4)
    fleet.end("worker", first)
    assert share_of(redis_client, "a") == ["6000000 0 0", "pdf 10000000 1800000000000000 a.2$"]


def test_tenant_with_least_use_is_found_behind_others(fleet):
    """The four waiting PDF jobs have old start tags; the first three tenants have used slots since."""
    tenants = ("a", "b", "c", "d")
    for tenant in tenants:
        fleet.publish(f"{tenant}$", PDF, rules=of(tenant))
    fleet.join("other", "excel", slots=1)
    for tenant in tenants[:3]:
        fleet.publish(f"{tenant}.excel$", "excel", rules=of(tenant))
        [claim] = fleet.inbox("other")
        fleet.scheduler.advance(60)
        fleet.end("other", claim)
    fleet.join("worker", PDF, slots=1)
    assert order_of(fleet) == ["d$", "a$", "b$", "c$"]


def test_crashed_job_is_charged_for_its_slot_time(fleet, redis_client):
    fleet.join("one", PDF)
    fleet.publish("a$", PDF, rules=of("a"))
    assert fleet.jobs("one") == ["a$"]
    fleet.scheduler.advance(3)
    fleet.scheduler.leave("one")
    assert share_of(redis_client, "a") == ["0 0 0", "pdf 3000000 1800000000000000 a$"]


def test_jobs_without_a_tenant_are_one_more_tenant(fleet):
    for job in ("a0$", "a1$", "plain", "a2$", "b$"):
        fleet.publish(job, PDF, rules="" if job == "plain" else of(job[0]))
        fleet.scheduler.advance(0.001)
    fleet.join("worker", PDF)
    order = []
    while claims := fleet.inbox("worker"):
        order += [each.job_id for each in claims]
        fleet.scheduler.advance(1)
        fleet.end("worker", *claims, inline=False)
    assert order == ["a0$", "plain", "b$", "a1$", "a2$"]


def test_unreadable_replayed_job_counts_as_one_without_a_tenant(fleet, redis_client):
    """Its id suffix names a tenant that it lacks."""
    fleet.join("worker", PDF)
    fleet.publish("busy", PDF)
    redis_client.lpush("list", "message")
    fleet.scheduler.ingest("list", [NewJob("bad$", PDF, "message", readable=False)])
    assert fleet.scheduler.replay(["bad$"]) == ["bad$"]
    fleet.scheduler.advance(1)
    flood(fleet, "a", "b")
    assert order_of(fleet, 8) == ["busy", "a0$", "b0$", "a1$", "b1$", "a2$", "b2$", "bad$"]


def test_tenants_maximum_applies_next_to_its_share(fleet):
    fleet.scheduler.configure({"tenants": "a=max:1,weight:9"})
    fleet.join("worker", PDF, slots=4)
    for tenant in ("a", "b"):
        for number in range(4):
            fleet.publish(f"{tenant}{number}$", PDF, rules=of(tenant))
    assert sorted(fleet.jobs("worker")) == ["a0$", "b0$", "b1$", "b2$"]


@pytest.mark.parametrize("most", ["none", "2"], ids=["with room for several", "with room for two"])
def test_claim_by_age_takes_the_oldest_job_despite_turns(fleet, redis_client, most):
    fleet.scheduler.configure({"priority_percentage": "0", "tenants": f"a=max:{most}"})
    flood(fleet, "a", "b")
    fleet.publish("later$", PDF, rules=of("b"), priority=9)
    fleet.join("worker", PDF)
    assert order_of(fleet, most=3) == ["a0$", "a1$", "a2$"]
    assert not redis_client.exists(Keys().key("clocks"))
    assert share_of(redis_client, "a")[1] >= "pdf 1000000"


def test_job_placed_below_a_minimum_moves_no_clock(fleet, redis_client):
    fleet.scheduler.configure({"tenants": "a=max:none,min:2"})
    fleet.join("worker", PDF)
    flood(fleet, "a", jobs=1)
    assert order_of(fleet) == ["a0$"]
    fleet.publish("a1$", PDF, rules=of("a"))
    assert fleet.jobs("worker") == ["a1$"]
    assert not redis_client.exists(Keys().key("clocks"))
    assert share_of(redis_client, "a")[1] >= "pdf 1000000"


def test_old_job_runs_when_reserves_block_the_turns_job(fleet, redis_client):
    fleet.join("worker", PDF)
    flood(fleet, "a", jobs=1)
    assert order_of(fleet) == ["a0$"]
    fleet.scheduler.configure({"reserve": "pdf:queued=1", "reserve_patience_us": "10000000"})
    fleet.publish("a9$", PDF, rules=of("a"))
    fleet.scheduler.advance(11)
    flood(fleet, "b", jobs=1)
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["a9$"]


def test_start_tag_behind_the_clock_is_deleted(fleet, redis_client):
    fleet.join("worker", PDF)
    for tenant in ("a", "b", "c"):
        for number in range(1 if tenant == "a" else 3):
            fleet.publish(f"{tenant}{number}$", PDF, rules=of(tenant))
    assert len(order_of(fleet)) == 7
    assert share_of(redis_client, "a") == ["0 0 0", "pdf 1000000"]
    fleet.publish("a9.excel$", "excel", rules=of("a"))
    assert share_of(redis_client, "a") == ["0 0 0", f"excel 0 {fleet.now_us} a9.excel$"]
    assert 3_500 < redis_client.ttl(Keys().key("share", "queued.0", "tenant%3Aa", "1")) <= 3_600


# -- changed at run time


def test_waiting_jobs_follow_changes_of_the_turns_setting(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    flood(fleet, "a", "b")
    fleet.scheduler.configure(SHARES)
    fleet.join("worker", PDF)
    assert order_of(fleet) == ["a0$", "b0$", "a1$", "b1$", "a2$", "b2$"]
    flood(fleet, "c", "d", jobs=4)
    fleet.scheduler.configure({"tenant_turns": "age"})
    assert order_of(fleet) == [*(f"c{number}$" for number in range(4)), *(f"d{number}$" for number in range(4))]
    assert not redis_client.exists(
        Keys().key("clocks"), *redis_client.keys("*turns*"), *redis_client.keys("*untenanted*")
    )


def test_change_begins_a_generation_without_earlier_use(fleet, redis_client):
    fleet.join("worker", PDF)
    flood(fleet, "a", jobs=5)
    assert len(order_of(fleet)) == 5
    assert redis_client.exists(Keys().key("clocks"))
    fleet.scheduler.configure({"tenant_half_life_us": "60000000"})
    assert not redis_client.exists(Keys().key("clocks"))
    flood(fleet, "b")
    fleet.publish("a9$", PDF, rules=of("a"))
    assert order_of(fleet) == ["b0$", "a9$", "b1$", "b2$"]
    assert redis_client.hget(Keys().key("settings"), "shares") == b"2 60000000"


def test_clock_of_an_old_generation_does_not_apply(fleet):
    """Job b0 was published when the clock was ahead. In the new generation all use is 0, so the oldest job is first."""
    fleet.join("worker", PDF)
    flood(fleet, "a")
    assert len(order_of(fleet)) == 3
    fleet.publish("busy", PDF)
    flood(fleet, "b", jobs=1)
    fleet.scheduler.configure({"tenant_turns": "age"})
    fleet.scheduler.configure(SHARES)
    flood(fleet, "c", jobs=1)
    assert order_of(fleet) == ["busy", "b0$", "c0$"]


def test_claim_orders_all_lanes_before_a_generations_first_tick(redis_client):
    """The job of another type then has its turn by age, before a later job."""
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.scheduler.configure({"tenants": "a=max:9"})
    flood(fleet, "a", jobs=10)
    fleet.publish("a.excel$", "excel", rules=of("a"))
    fleet.scheduler.configure(SHARES)
    fleet.join("worker", PDF)
    assert fleet.jobs("worker") == ["a0$"]
    fleet.scheduler.advance(0.001)
    fleet.publish("b.excel$", "excel", rules=of("b"))
    fleet.join("other", "excel")
    assert fleet.jobs("other") == ["a.excel$"]


def test_waiting_jobs_of_many_tenants_are_listed_in_parts(valkey, redis_client):
    """Half of the jobs have no tenant."""
    fleet = ScriptedFleet(Counting(redis_client, Keys()))
    for number in range(2 * MAX_LISTED):
        fleet.publish(f"{number}$", PDF, rules=of(f"t{number:03}"))
        fleet.publish(f"{number}", PDF)
    fleet.scheduler.configure(SHARES)
    turns, untenanted = Keys().key("turns", PDF, "queued.0"), Keys().key("untenanted", PDF, "queued.0")
    assert 0 < redis_client.zcard(turns) < 2 * MAX_LISTED
    for _ in range(8):
        fleet.scheduler.tick()
        assert fleet.scheduler.most() < 5_000
    assert not redis_client.exists(Keys().key("unlisted"))
    assert (redis_client.zcard(turns), redis_client.zcard(untenanted)) == (2 * MAX_LISTED + 1, 2 * MAX_LISTED)
    assert fleet.scheduler.repair() == []


# -- deleted keys


LOST = {
    "turns": lambda client: client.delete(Keys().key("turns", PDF, "queued.0")),
    "jobs without a tenant": lambda client: client.delete(Keys().key("untenanted", PDF, "queued.0")),
    "a share": lambda client: client.delete(Keys().key("share", "queued.0", "tenant%3Aa", "1")),
    "the kind of a share": lambda client: client.lpush(
        client.delete(Keys().key("share", "queued.0", "tenant%3Aa", "1"))
        and Keys().key("share", "queued.0", "tenant%3Aa", "1"),
        "garbage",
    ),
    "the text of a share": lambda client: client.set(Keys().key("share", "queued.0", "tenant%3Aa", "1"), "x\ny z"),
    "the numbers of a share": lambda client: client.set(
        Keys().key("share", "queued.0", "tenant%3Aa", "1"), "9 nan 0\npdf nan 1800000000001000 a0$\nexcel -inf"
    ),
    "a foreign candidate": lambda client: client.zadd(
        Keys().key("turns", PDF, "queued.0"), {"nothing": -2, "17 nothing$": -1}
    ),
    "a foreign job": lambda client: client.zadd(Keys().key("untenanted", PDF, "queued.0"), {"nothing": 1}),
    "the clocks": lambda client: client.zadd(Keys().key("clocks"), {"queued.0 pdf": "inf", "nothing": "inf"}),
    "the progress": lambda client: client.hset(Keys().key("unlisted"), mapping={"pdf queued.0": "x", "y": "0 0"}),
    "the setting": lambda client: client.hdel(Keys().key("settings"), "shares"),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_lost_data_of_shares_is_repaired(fleet, redis_client, lost):
    fleet.publish("plain", PDF)
    fleet.scheduler.advance(0.001)
    flood(fleet, "a", "b")
    lost(redis_client)
    fleet.scheduler.repair()
    fleet.scheduler.tick()
    fleet.scheduler.repair()
    assert fleet.scheduler.repair() == []
    assert fleet.scheduler.repair() == []
    assert redis_client.hget(Keys().key("settings"), "shares") == b"1 0"
    fleet.join("worker", PDF)
    assert order_of(fleet) == ["plain", "a0$", "b0$", "a1$", "b1$", "a2$", "b2$"]


# -- a half-life


def test_quiet_tenant_is_first_until_it_caught_up(redis_client):
    fleet = fleet_with_shares(redis_client, tenant_half_life_us="20000000")
    trace = Trace(fleet, 1, {"a": 1.0}, {})
    trace.run_on(60)
    trace.seconds["b"], trace.used["b"] = 1.0, 0.0
    for _ in range(3):
        trace.publish("b")
    trace.starts.clear()
    trace.run_on(15)
    assert trace.starts[1:12] == ["b"] * 11
    trace.run_on(60)
    trace.starts.clear()
    trace.run_on(20)
    assert abs(trace.starts.count("a") - trace.starts.count("b")) <= 2


def test_share_is_kept_for_ten_half_lives(redis_client):
    fleet = fleet_with_shares(redis_client, tenant_half_life_us="1000000")
    fleet.join("worker", PDF)
    flood(fleet, "a", jobs=1)
    assert order_of(fleet) == ["a0$"]
    key = Keys().key("share", "queued.0", "tenant%3Aa", "1")
    assert 3_500 < redis_client.ttl(key) <= 3_600
    fleet.scheduler.configure({"tenant_half_life_us": "600000000"})
    flood(fleet, "a", jobs=2)
    assert 5_900 < redis_client.ttl(key.removesuffix("1") + "2") <= 6_000


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    half_life=st.sampled_from([1.0, 7.0, 600.0]),
    weights=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    times=st.lists(st.floats(0.1, 5), min_size=7, max_size=12),
)
def test_tenant_with_the_least_decayed_use_is_first(valkey, redis_client, half_life, weights, times):
    """Computed outside: each second of an ended job decays by its age and is divided by the tenant's weight."""
    redis_client.flushdb()
    fleet = fleet_with_shares(redis_client, tenant_half_life_us=str(round(half_life * 1e6)))
    names = [f"t{number}" for number in range(len(weights))]
    fleet.scheduler.configure(
        {"tenants": " ".join(f"{n}=max:none,weight:{w}" for n, w in zip(names, weights, strict=True))}
    )
    fleet.join("worker", PDF)
    for name in names:
        for number in range(20):
            fleet.publish(f"{name}.{number}$", PDF, rules=of(name))
    ended: list[tuple[str, float, float]] = []
    (claim,), now_s, took = fleet.inbox("worker"), 0.0, cycle(times)
    for _ in range(18):
        used = dict.fromkeys(names, 0.0)
        for name, at_s, seconds in ended:
            used[name] += seconds / weights[names.index(name)] * 2 ** ((at_s - now_s) / half_life)
        name = claim.job_id.partition(".")[0]
        assert used[name] <= min(used.values()) + 1e-4
        seconds = next(took)
        fleet.scheduler.advance(seconds)
        now_s += seconds
        ended.append((name, now_s, seconds))
        (claim,) = fleet.end("worker", claim)


# -- cost


@pytest.mark.parametrize(
    ("rules", "changes", "publish", "release"),
    [
        ("", {}, 7, 17),
        (of("a"), {}, 10, 24),
        (of("a"), {"tenants": "*=max:20"}, 12, 25),
        (of("a"), SHARES, 11, 45),
        ("", SHARES, 10, 35),
        (of("a"), SHARES | {"tenant_half_life_us": "3600000000"}, 11, 43),
    ],
)
def test_tenant_costs_the_documented_commands(valkey, redis_client, rules, changes, publish, release):
    """For a thousand tenants, as in docs/internals/measurements.md: no cached data of the previous invocation helps."""
    fleet = ScriptedFleet(Counting(redis_client, Keys()))
    fleet.scheduler.configure(changes)
    fleet.join("worker", PDF, slots=4)
    for number in range(1_000):
        job_rules = rules.replace("Aa", f"A{number % 500}")
        fleet.publish(f"{number}{'$' if job_rules else ''}", PDF, rules=job_rules)
    published = [sum(times.values()) for name, times, _ in fleet.scheduler.calls if name == "publish"]
    assert published[-1] == publish
    claims = fleet.inbox("worker")
    fleet.scheduler.calls.clear()
    for _ in range(50):
        claims += fleet.end("worker", claims.pop(0))
    ended = [sum(times.values()) for name, times, _ in fleet.scheduler.calls if name == "release"]
    assert max(ended[10:]) == release


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    slots=st.integers(1, 4),
    weights=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    times=st.lists(st.floats(0.1, 5), min_size=12, max_size=12),
    usual=st.sampled_from([0.0, 0.5, 2.5, 9.0]),
)
def test_no_waiting_tenant_leads_by_more_than_the_bound(valkey, redis_client, slots, weights, times, usual):
    """The bound in docs/internals/proofs.md. *usual*: the seconds charged per claim, regardless of its run time."""
    redis_client.flushdb()
    fleet = fleet_with_shares(redis_client)
    redis_client.hset(Keys().key("durations"), PDF, round(usual * 1e6))
    names = [f"t{number}" for number in range(len(weights))]
    seconds = {name: cycle([*times[number:], *times[:number]]) for number, name in enumerate(names)}
    trace = Trace(fleet, slots, seconds, dict(zip(names, weights, strict=True)))
    for _ in range(10):
        trace.run_on(3)
        used = trace.used_so_far()
        for (one, weight), (other, other_weight) in permutations(zip(names, weights, strict=True), 2):
            allowed = slots * (max(times) / weight + usual / other_weight) + 1e-3
            assert used[one] / weight - used[other] / other_weight <= allowed


@pytest.mark.timeout(30)  # it would be chosen again and again
def test_candidate_that_already_runs_is_forgotten(fleet):
    """Another client added the running job to the candidates. Its key has no capacity, because it holds the key."""
    fleet.scheduler.configure({"tenant_turns": "share"})
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("a&", "pdf", rules=f"key=k limit=1 {of('acme')}")
    (claim,) = fleet.inbox("worker")
    turns = fleet.scheduler.keys.key("turns", "pdf", "queued.0")
    fleet.scheduler.client.zadd(turns, {f"{claim.enqueued_us} a&": 0})
    fleet.publish("b$", "pdf", rules=of("other"))
    assert fleet.jobs("worker") == ["b$"]
    assert fleet.scheduler.client.exists(turns) == 0
