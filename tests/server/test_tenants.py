"""How many slots a tenant may have: never more, at run time as well, and what others wait for meanwhile."""

import pytest

from celery_affinity.rules.redis_keys import Keys

from ..support.clocked import ClockedScheduler
from ..support.scripted_fleet import ScriptedFleet

PDF = "pdf"


def of(tenant):
    """Return the rules of a job of *tenant*."""
    return f"key=tenant%3A{tenant} quota=settings"


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(ClockedScheduler(redis_client, Keys()))


def quotas(fleet, text):
    fleet.scheduler.configure({"tenants": text})


def flood(fleet, *tenants, jobs=4):
    for tenant in tenants:
        for number in range(jobs):
            fleet.publish(f"{tenant}{number}$", PDF, rules=of(tenant))


def test_a_tenant_without_a_quota_has_all_slots_in_the_order_of_age(fleet):
    fleet.join("worker", PDF, slots=6)
    flood(fleet, "a", "b")
    assert fleet.jobs("worker") == ["a0$", "a1$", "a2$", "a3$", "b0$", "b1$"]


def test_a_tenant_has_its_maximum_and_others_the_slots_that_are_left(fleet):
    quotas(fleet, "a=max:2")
    fleet.join("worker", PDF, slots=6)
    flood(fleet, "a", "b")
    claims = fleet.inbox("worker")
    assert {each.job_id for each in claims} == {"a0$", "a1$", "b0$", "b1$", "b2$", "b3$"}
    assert fleet.end("worker", next(each for each in claims if each.job_id == "b0$")) == []
    (freed,) = fleet.end("worker", next(each for each in claims if each.job_id == "a0$"))
    assert freed.job_id == "a2$"


def test_each_tenant_that_is_not_named_has_the_quota_of_the_star(fleet):
    quotas(fleet, "*=max:1 b=max:none")
    fleet.join("worker", PDF, slots=20)
    flood(fleet, "a", "b", "c")
    assert sorted(fleet.jobs("worker")) == ["a0$", "b0$", "b1$", "b2$", "b3$", "c0$"]


def test_a_quota_that_changes_counts_at_once_for_who_waits_and_stops_nothing(fleet):
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


def test_the_maximum_counts_jobs_of_all_types_and_of_who_is_not_read_yet(fleet):
    quotas(fleet, "a=max:2")
    fleet.join("one", PDF)
    fleet.join("two", "excel", slots=5)
    fleet.publish("pdf$", PDF, rules=of("a"))
    for number in range(3):
        fleet.publish(f"{number}$", "excel", rules=of("a"))
    assert fleet.jobs("one") == ["pdf$"]
    assert fleet.jobs("two") == ["0$"]


def test_jobs_of_a_worker_that_dies_count_no_more(fleet):
    quotas(fleet, "a=max:1")
    fleet.join("one", PDF)
    flood(fleet, "a", jobs=2)
    assert fleet.jobs("one") == ["a0$"]
    fleet.join("two", PDF)
    assert fleet.jobs("two") == []
    fleet.scheduler.leave("one")
    assert fleet.jobs("two") == ["a0$"]


def test_a_job_with_a_key_as_well_holds_up_no_others_of_its_tenant(fleet):
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


def test_a_job_of_a_tenant_is_held_ahead_and_counts(fleet):
    """A worker holds no job with a key ahead: others of the key would wait for it. A tenant's jobs wait for no one."""
    quotas(fleet, "a=max:3")
    fleet.join("worker", PDF)
    flood(fleet, "a", jobs=5)
    (first,) = fleet.inbox("worker")
    ahead = fleet.end("worker", first, most_ahead=4)
    assert [each.job_id for each in ahead] == ["a1$", "a2$", "a3$"]


def test_very_many_tenants_are_known_by_name_at_a_small_cost(fleet):
    quotas(fleet, " ".join(f"t{number}=max:1" for number in range(10_000)))
    fleet.join("worker", PDF, slots=9)
    flood(fleet, "t7", "t9999", "unnamed", jobs=2)
    assert sorted(fleet.jobs("worker")) == ["t70$", "t99990$", "unnamed0$", "unnamed1$"]


def test_a_tenant_of_which_no_job_is_left_leaves_nothing(fleet):
    quotas(fleet, "*=max:1")
    fleet.join("worker", PDF, slots=9)
    flood(fleet, "a", "b", jobs=2)
    while claims := fleet.inbox("worker"):
        for each in claims:
            fleet.end("worker", each, inline=False)
    left = [key for key in fleet.scheduler.client.scan_iter() if b"tenant" in key]
    assert left == []
    assert not fleet.scheduler.client.exists(fleet.scheduler.keys.key("waiting_keys"))
