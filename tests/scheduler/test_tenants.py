"""Tenants' numbers of slots: never above the maximum, also after changes at run time, and without blocking others."""

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.constants import MAX_OPENED
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet
from ..support.tenants import PDF, of, quotas


def flood(fleet, *tenants, jobs=4):
    for tenant in tenants:
        for number in range(jobs):
            fleet.publish(f"{tenant}{number}$", PDF, rules=of(tenant))


def test_tenant_without_a_quota_uses_all_slots_by_age(fleet):
    fleet.join("worker", PDF, slots=6)
    flood(fleet, "a", "b")
    assert fleet.jobs("worker") == ["a0$", "a1$", "a2$", "a3$", "b0$", "b1$"]


def test_tenant_has_its_maximum_and_others_the_rest(fleet):
    quotas(fleet, "a=max:2")
    fleet.join("worker", PDF, slots=6)
    flood(fleet, "a", "b")
    claims = fleet.inbox("worker")
    assert {each.job_id for each in claims} == {"a0$", "a1$", "b0$", "b1$", "b2$", "b3$"}
    assert fleet.end("worker", next(each for each in claims if each.job_id == "b0$")) == []
    (freed,) = fleet.end("worker", next(each for each in claims if each.job_id == "a0$"))
    assert freed.job_id == "a2$"


def test_unnamed_tenants_have_the_quota_of_the_star(fleet):
    quotas(fleet, "*=max:1 b=max:none")
    fleet.join("worker", PDF, slots=20)
    flood(fleet, "a", "b", "c")
    assert sorted(fleet.jobs("worker")) == ["a0$", "b0$", "b1$", "b2$", "b3$", "c0$"]


def test_changed_quota_applies_to_waiting_jobs_and_stops_none(fleet):
    quotas(fleet, "a=max:1")
    fleet.join("worker", PDF, slots=9)
    flood(fleet, "a")
    (first,) = fleet.inbox("worker")
    quotas(fleet, "a=max:3")
    claims = [first, *fleet.inbox("worker")]
    assert [each.job_id for each in claims] == ["a0$", "a1$", "a2$"]
    quotas(fleet, "a=max:0")
    assert [job for each in claims for job in fleet.end("worker", each)] == []
    quotas(fleet, "")
    assert fleet.jobs("worker") == ["a3$"]


def test_maximum_counts_jobs_of_all_types_even_unread(fleet):
    quotas(fleet, "a=max:2")
    fleet.join("one", PDF)
    fleet.join("two", "excel", slots=5)
    fleet.publish("pdf$", PDF, rules=of("a"))
    for number in range(3):
        fleet.publish(f"{number}$", "excel", rules=of("a"))
    assert fleet.jobs("one") == ["pdf$"]
    assert fleet.jobs("two") == ["0$"]


def test_jobs_of_a_dead_worker_are_no_longer_counted(fleet):
    quotas(fleet, "a=max:1")
    fleet.join("one", PDF)
    flood(fleet, "a", jobs=2)
    assert fleet.jobs("one") == ["a0$"]
    fleet.join("two", PDF)
    assert fleet.jobs("two") == []
    fleet.scheduler.leave("one")
    assert fleet.jobs("two") == ["a0$"]


def test_job_with_a_blocked_key_blocks_no_tenant(fleet):
    quotas(fleet, "a=max:2")
    fleet.join("worker", PDF, slots=5)
    for job in ("0&", "1&"):
        fleet.publish(job, PDF, rules=f"key=k limit=1 {of('a')}")
    fleet.publish("2$", PDF, rules=of("a"))
    fleet.publish("3$", PDF, rules=of("a"))
    assert fleet.jobs("worker") == ["0&", "2$"]


def test_calls_of_two_tenants_never_merge(fleet):
    fleet.join("other", "excel")
    merge = "merge=m most=9 bytes=1000000"
    for number, tenant in enumerate(("a", "a", "b")):
        fleet.publish(f"{number}+$", PDF, rules=f"{merge} {of(tenant)}")
    batches = fleet.scheduler.reader.hash("merging")
    assert sorted(name.split(" ")[2] for name in batches) == sorted({name.split(" ")[2] for name in batches})
    assert len(batches) == 2


def test_tenants_job_is_prefetched_and_counted(fleet):
    """A worker prefetches no job with a key, because others of the key would wait. A tenant's jobs block no others."""
    quotas(fleet, "a=max:3")
    fleet.join("worker", PDF)
    flood(fleet, "a", jobs=5)
    (first,) = fleet.inbox("worker")
    ahead = fleet.end("worker", first, most_ahead=4)
    assert [each.job_id for each in ahead] == ["a1$", "a2$", "a3$"]


def test_ten_thousand_named_tenants_cost_little(fleet):
    quotas(fleet, " ".join(f"t{number}=max:1" for number in range(10_000)))
    fleet.join("worker", PDF, slots=9)
    flood(fleet, "t7", "t9999", "unnamed", jobs=2)
    assert sorted(fleet.jobs("worker")) == ["t70$", "t99990$", "unnamed0$", "unnamed1$"]


def test_tenant_without_jobs_leaves_no_data(fleet):
    quotas(fleet, "*=max:1")
    fleet.join("worker", PDF, slots=9)
    flood(fleet, "a", "b", jobs=2)
    while claims := fleet.inbox("worker"):
        for each in claims:
            fleet.end("worker", each, inline=False)
    left = [key for key in fleet.scheduler.client.scan_iter() if b"tenant" in key]
    assert left == []
    assert not fleet.scheduler.client.exists(fleet.scheduler.keys.key("waiting_keys"))


# -- minimums: tenants below their minimum are first


def test_tenant_below_its_minimum_precedes_any_score(fleet):
    quotas(fleet, "small=max:none,min:2")
    fleet.join("worker", PDF, slots=4)
    for number in range(9):
        fleet.publish(f"big{number}$", PDF, on_demand=True, priority=10, rules=of("big"))
        fleet.publish(f"none{number}", PDF, on_demand=True, priority=10)
    claims = fleet.inbox("worker")
    for number in range(4):
        fleet.publish(f"small{number}$", PDF, priority=0, rules=of("small"))
    freed = [fleet.end("worker", claim)[0].job_id for claim in claims]
    assert freed[:2] == ["small0$", "small1$"]
    assert not any(job.startswith("small") for job in freed[2:]), "it has its minimum now"


def test_slot_lent_by_a_minimum_is_returned_next(fleet):
    quotas(fleet, "a=max:none,min:1")
    fleet.join("worker", PDF, slots=2)
    flood(fleet, "b", jobs=6)
    first, second = fleet.inbox("worker")
    assert {first.job_id, second.job_id} == {"b0$", "b1$"}, "no slot stays idle for it"
    fleet.scheduler.advance(0.001)
    flood(fleet, "a", jobs=2)
    assert [each.job_id for each in fleet.end("worker", first)] == ["a0$"]
    assert [each.job_id for each in fleet.end("worker", second)] == ["b2$"], "one is its minimum"


def test_invocation_that_fills_a_minimum_gives_others_the_rest(fleet):
    """The tenant has jobs of two types: while it lacks a slot, both precede others; after that, neither does."""
    quotas(fleet, "a=max:none,min:1")
    fleet.publish("first$", PDF, priority=2, rules=of("a"))
    fleet.publish("second$", "excel", priority=1, rules=of("a"))
    fleet.publish("urgent", "excel", priority=9)
    fleet.join("worker", PDF, "excel", slots=2)
    assert fleet.jobs("worker") == ["first$", "urgent"]


def test_best_score_is_first_among_tenants_below_their_minimum(fleet):
    quotas(fleet, "*=max:none,min:1")
    fleet.join("worker", PDF)
    fleet.publish("now", PDF)
    (claim,) = fleet.inbox("worker")
    fleet.publish("a$", PDF, priority=1, rules=of("a"))
    fleet.publish("b$", PDF, priority=9, rules=of("b"))
    fleet.publish("c$", PDF, priority=5, rules=of("c"))
    order = []
    while freed := fleet.end("worker", claim):
        (claim,) = freed
        order.append(claim.job_id)
    assert order == ["b$", "c$", "a$"]


def test_minimum_set_at_run_time_applies_to_waiting_jobs(fleet):
    fleet.join("worker", PDF)
    flood(fleet, "b", jobs=3)
    fleet.scheduler.advance(0.001)
    flood(fleet, "a", jobs=3)
    (claim,) = fleet.inbox("worker")
    quotas(fleet, "a=max:none,min:1")
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "a0$"
    quotas(fleet, "")
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "b1$"


def test_reserve_precedes_a_minimum(fleet):
    quotas(fleet, "a=max:none,min:2")
    fleet.scheduler.configure({"reserve": f"{PDF}:queued=1"})
    fleet.join("worker", PDF, slots=3)
    flood(fleet, "a", jobs=3)
    assert fleet.jobs("worker") == ["a0$", "a1$"]
    fleet.publish("urgent", PDF, on_demand=True)
    assert fleet.jobs("worker") == ["urgent"]


def test_paused_type_blocks_a_tenant_below_its_minimum(fleet):
    quotas(fleet, "a=max:none,min:2")
    fleet.join("worker", PDF)
    fleet.scheduler.pause(f"type:{PDF}")
    flood(fleet, "a", jobs=1)
    assert fleet.jobs("worker") == []
    fleet.scheduler.resume(f"type:{PDF}")
    assert fleet.jobs("worker") == ["a0$"]


def test_type_limit_blocks_a_tenant_below_its_minimum(fleet, caplog):
    quotas(fleet, "a=max:none,min:3")
    fleet.scheduler.configure({"limits": f"type%3A{PDF}=1"})
    fleet.scheduler.tick()  # counts the running jobs
    flood(fleet, "a", jobs=3)
    fleet.publish("other", "excel")
    fleet.join("worker", PDF, "excel", slots=4)
    assert fleet.jobs("worker") == ["a0$", "other"]
    assert not caplog.records, "no call failed, and was made again after a repair"


def test_slots_of_a_minimum_go_to_admitted_jobs(fleet):
    """A job that waits for its key takes no slot, even below the minimum; another job of the tenant does."""
    quotas(fleet, "a=max:none,min:3")
    fleet.join("worker", PDF, slots=2)
    fleet.publish("0&", PDF, rules=f"key=k limit=1 {of('a')}")
    fleet.publish("other", PDF)
    claim, other = fleet.inbox("worker")
    fleet.publish("1&", PDF, rules=f"key=k limit=1 {of('a')}")
    fleet.publish("late", PDF, priority=9)
    fleet.publish("2$", PDF, rules=of("a"))
    assert [each.job_id for each in fleet.end("worker", other)] == ["2$"]
    assert [each.job_id for each in fleet.end("worker", claim)] == ["1&"]


def test_many_types_join_the_minimum_lanes_in_parts(fleet, redis_client):
    types = [f"type{number}" for number in range(MAX_OPENED + 20)]
    fleet.join("worker", *types)
    for type_ in types:
        fleet.publish(f"{type_}$", type_, rules=of("a"))
    fleet.publish("other", types[0])
    (claim,) = fleet.inbox("worker")
    for least, some in ((2, MAX_OPENED), (0, len(types) - 1 - MAX_OPENED)):
        quotas(fleet, f"a=max:none,min:{least}")
        assert redis_client.hlen(fleet.scheduler.keys.key("minimum_heads")) == some
        fleet.scheduler.tick()
        assert redis_client.hlen(fleet.scheduler.keys.key("minimum_heads")) == (len(types) - 1 if least else 0)
    assert [each.job_id for each in fleet.end("worker", claim)] != []


def test_job_leads_once_its_tenant_is_not_reserved_elsewhere(fleet):
    fleet.scheduler.configure({"tenants": "a=max:1,min:1", "key_patience_us": "10000000"})
    fleet.join("reports", "report")
    fleet.publish("busy", "report")
    fleet.join("worker", PDF)
    fleet.publish("0$", PDF, rules=of("a"))
    fleet.publish("report$", "report", rules=of("a"))
    fleet.scheduler.advance(10)
    fleet.publish("1$", PDF, rules=of("a"))
    for number in range(2):
        fleet.publish(f"urgent{number}", PDF, priority=9)
    (claim,) = fleet.inbox("worker")
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "urgent0", "the tenant's only slot is kept for the report"
    fleet.scheduler.revoke(["task-report$"], [], keep_s=60)
    assert [each.job_id for each in fleet.end("worker", claim)] == ["1$"]


def test_filled_minimum_leaves_no_minimum_data(fleet, redis_client):
    quotas(fleet, "a=max:none,min:2")
    fleet.join("worker", PDF)
    flood(fleet, "a", "b", jobs=3)
    keys = fleet.scheduler.keys
    assert redis_client.hget(keys.key("heads"), "!") == b"rules"
    (claim,) = fleet.inbox("worker")
    while freed := fleet.end("worker", claim):
        (claim,) = freed
    for key in (keys.key("minimum_heads"), keys.key("type_rules"), keys.key("heads")):
        assert not redis_client.exists(key)
    assert not [*redis_client.scan_iter("*first*")]


def test_lost_minimum_lanes_are_repaired(fleet, redis_client):
    quotas(fleet, "a=max:none,min:2")
    fleet.join("worker", PDF)
    for job, rules in (("busy", ""), ("b", ""), ("a0$", of("a")), ("a1$", of("a"))):
        fleet.publish(job, PDF, rules=rules)
    key = fleet.scheduler.keys.key
    lane, heads = key("minimum_lane", PDF, "queued.0"), key("minimum_heads")

    def state():
        return redis_client.zrange(lane, 0, -1, withscores=True), redis_client.hgetall(heads)

    before = state()
    assert fleet.scheduler.repair() == []
    for spoil in (
        lambda: redis_client.delete(lane),
        lambda: redis_client.delete(heads),
        lambda: redis_client.delete(lane, heads),
        lambda: redis_client.zadd(lane, {"b": 1}),
        lambda: redis_client.hset(heads, PDF, "queued.0 1 b"),
        lambda: redis_client.hset(heads, "excel", "queued.0 1 b"),
    ):
        spoil()
        assert fleet.scheduler.repair()
        assert state() == before


def test_stale_minimum_head_starts_no_job_twice(fleet, redis_client):
    quotas(fleet, "a=max:none,min:2")
    fleet.join("worker", PDF)
    flood(fleet, "a", jobs=2)
    fleet.publish("b", PDF)
    (claim,) = fleet.inbox("worker")
    keys, lane = fleet.scheduler.keys, "queued.5"
    head = redis_client.hget(keys.key("minimum_heads"), PDF)
    (claim,) = fleet.end("worker", claim)
    assert claim.job_id == "a1$"
    redis_client.hset(keys.key("minimum_heads"), PDF, head)
    redis_client.hset(keys.key("type_rules"), "!first", 1)
    redis_client.hset(keys.key("heads"), "!", "rules")
    redis_client.zadd(keys.key("minimum_lane", PDF, lane), {"a1$": 1})
    assert [each.job_id for each in fleet.end("worker", claim)] == ["b"]
    assert not redis_client.exists(keys.key("minimum_heads"), keys.key("type_rules"))


TENANTS = ("a", "b", "c", "d")
a_quota = st.tuples(st.none() | st.integers(0, 4), st.integers(0, 3))
a_step = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from((*TENANTS, "")), st.sampled_from((PDF, "excel")), st.integers(0, 10)),
    st.tuples(st.just("end"), st.integers(0, 99)),
    st.tuples(st.just("quota"), st.sampled_from(TENANTS), a_quota),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    quotas_at_first=st.dictionaries(st.sampled_from(TENANTS), a_quota),
    steps=st.lists(a_step, min_size=20, max_size=80),
    shares=st.booleans(),
)
def test_no_slot_passes_a_minimum_or_exceeds_a_maximum(redis_client, quotas_at_first, steps, shares):
    """Computed outside: the holders of slots, the waiting jobs and the quotas, at each slot that an end frees."""
    redis_client.flushdb()
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    most = {name: number for name, (number, _) in quotas_at_first.items()}
    least = {name: number for name, (_, number) in quotas_at_first.items()}
    held, waiting, running = Counter(), {}, []
    serves = {"narrow": {PDF}, "wide": {PDF, "excel"}}

    def configure():
        names = sorted(most.keys() | least.keys())
        least.update({name: min(least[name], most[name]) for name in names if most[name] is not None})
        words = (f"{name}=max:{'none' if most[name] is None else most[name]},min:{least[name]}" for name in names)
        fleet.scheduler.configure({"tenants": " ".join(words), "tenant_turns": "share" if shares else "age"})

    def see(came, *, is_ordered):
        """Count claims (worker, claim) in the order in which they were made."""
        came += [(worker, claim) for worker in serves for claim in fleet.inbox(worker)]
        for worker, claim in sorted(came, key=lambda each: int(each[1].fence)):
            tenant, _ = waiting.pop(claim.job_id)
            below = {
                name
                for name, job_type in waiting.values()
                if job_type in serves[worker] and held[name] < least.get(name, 0)
            }
            if is_ordered:
                assert (tenant and held[tenant] < least.get(tenant, 0)) or not below, (claim.job_id, below)
            held[tenant] += bool(tenant)
            assert not tenant or most.get(tenant) is None or held[tenant] <= most[tenant]
            running.append((worker, tenant, claim))

    configure()
    fleet.join("narrow", PDF, slots=2)
    fleet.join("wide", PDF, "excel", slots=2)
    for number, (what, *values) in enumerate(steps):
        if what == "publish":
            tenant, type_, priority = values
            job_id = f"{number}{'$' if tenant else ''}"
            waiting[job_id] = (tenant, type_)
            assert fleet.publish(job_id, type_, priority=priority, rules=of(tenant) if tenant else "")
        elif what == "quota":
            name, (most[name], least[name]) = values
            configure()
        elif running:
            worker, tenant, claim = running.pop(values[0] % len(running))
            held[tenant] -= bool(tenant)
            see([(worker, each) for each in fleet.end(worker, claim)], is_ordered=True)
        see([], is_ordered=False)  # published jobs and new quotas fill slots in any order
