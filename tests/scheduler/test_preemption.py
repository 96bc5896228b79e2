"""Preemption for a tenant below its minimum: the order, its withdrawal, the preempted job, and the remaining data."""

from itertools import pairwise

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.schema.constants import MAX_PREEMPTORS, MAX_STOP_ORDERS, MAX_VICTIMS
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet

PDF = "pdf"
SETTINGS = {"tenants": "beta=max:none,min:1", "worker_timeout_us": str(10**15)}


def of(tenant, *, may_stop=True):
    """Return the rules of a job of *tenant*."""
    return f"key=tenant%3A{tenant} quota=settings{' preemptible=1' if may_stop else ''}"


class Fleet(ScriptedFleet):
    """A fleet whose workers can stop their jobs."""

    def add(self, worker, *types, slots=1, stops="force", **joining):
        self.join(worker, *types, slots=slots, **joining)
        if stops:
            self.redis.hset(self.key("worker", worker), "stops", stops)

    @property
    def redis(self):
        return self.scheduler.client

    def key(self, *names):
        return self.scheduler.keys.key(*names)

    def run(self, worker, *jobs, rules=None, **publishing):
        """Publish jobs for *worker*, read and start them. Return their claims."""
        for job in jobs:
            self.publish(job, PDF, rules=rules or of("acme"), **publishing)
        return self.started(worker, self.inbox(worker))

    def run_preemptible(self):
        """Let the only slot of worker "one" run the preemptible job "a1$". Return its claim."""
        self.add("one", PDF)
        (claim,) = self.run("one", "a1$")
        return claim

    def started(self, worker, claims, since_s=0):
        for claim in claims:
            started_us = self.now_us - round(since_s * 1e6)
            self.redis.hset(self.key("job", claim.job_id), "started", started_us)
        return claims

    def waits(self, *jobs, tenant="beta", for_s=20, **publishing):
        """Publish jobs of a tenant, let them wait, and tick."""
        for job in jobs:
            self.publish(job, PDF, rules=of(tenant, may_stop=False), **publishing)
        self.later(for_s)

    def later(self, by_s):
        self.scheduler.advance(by_s)
        self.scheduler.tick()

    def ordered(self):
        """Return the jobs with a stop order."""
        return sorted(job.decode() for job in self.redis.hkeys(self.key("stop_orders")))

    def job(self, job):
        return {name.decode(): value.decode() for name, value in self.redis.hgetall(self.key("job", job)).items()}


@pytest.fixture
def fleet(redis_client):
    fleet = Fleet(FakeClockScheduler(redis_client, Keys()))
    fleet.scheduler.configure(SETTINGS)
    return fleet


def test_job_is_preempted_after_the_delay_for_the_tenant(fleet):
    claim = fleet.run_preemptible()
    fleet.run("one", "a2$")
    fleet.waits("b1$", for_s=19)
    assert fleet.ordered() == []
    fleet.later(1)
    assert fleet.ordered() == ["a1$"]
    assert fleet.signs("one") == [["preempt", "a1$", claim.fence, "10000"]]
    fleet.later(1)
    assert len(fleet.signs("one")) == 1
    (following,) = fleet.end("one", claim, outcome="preempted 21000000")
    assert following.job_id == "b1$"
    assert fleet.ordered() == []


def test_preempted_job_is_requeued_unchanged_with_a_record(fleet):
    claim = fleet.run_preemptible()
    before = fleet.job("a1$")
    fleet.waits("b1$")
    (other,) = fleet.end("one", claim, outcome="preempted 21000000")
    row = fleet.job("a1$")
    assert (row["state"], row.get("deliveries"), row["enqueued"]) == ("pending", None, before["enqueued"])
    assert (row["preemptions"], row["preempted"], row["preempted_ran"]) == ("1", str(fleet.now_us), "21000000")
    assert (row["preempted_for"], row["preempted_on"]) == ("beta", "one%40host")
    counters = fleet.redis.hgetall(fleet.key("counters"))
    assert (counters[b"preempted"], counters[b"preempted_us"]) == (b"1", b"21000000")
    (again,) = fleet.end("one", other)
    assert (again.job_id, again.deliveries, again.preemptions) == ("a1$", 0, 1)


def test_stop_without_an_order_counts_as_a_requeue(fleet):
    claim = fleet.run_preemptible()
    (again,) = fleet.end("one", claim, outcome="preempted 21000000")
    assert (again.deliveries, again.requeues, again.preemptions) == (0, 1, 0)


@pytest.mark.parametrize("said", ["preempted", "preempted x", "preempted -4", "preempted 1e9", "preempted " + "9" * 30])
def test_invalid_slot_time_corrupts_no_metric(fleet, said):
    claim = fleet.run_preemptible()
    fleet.waits("b1$")
    fleet.end("one", claim, outcome=said)
    assert fleet.job("a1$")["preempted_ran"] in ("0", str(10**15))
    assert int(fleet.redis.hget(fleet.key("counters"), "preempted_us")) in (0, 10**15)


def test_only_started_preemptible_unacked_jobs_are_preempted(fleet):
    fleet.add("one", PDF)
    fleet.run("one", "a1$", rules=of("acme", may_stop=False))
    fleet.add("two", PDF)
    (acked,) = fleet.run("two", "a2$")
    fleet.redis.hset(fleet.key("job", acked.job_id), "acked", 1)
    fleet.add("three", PDF)
    fleet.publish("a3$", PDF, rules=of("acme"))
    fleet.inbox("three")
    fleet.add("four", PDF, stops="other.task")
    fleet.run("four", "a4$")
    fleet.add("five", "excel")
    fleet.publish("a5$", "excel", rules=of("acme"))
    fleet.started("five", fleet.inbox("five"))
    fleet.waits("b1$")
    assert fleet.ordered() == []
    fleet.redis.hset(fleet.key("worker", "four"), "stops", "other.task tests.task")
    fleet.later(1)
    assert fleet.ordered() == ["a4$"]


def test_task_name_in_the_stoppable_list_is_percent_encoded(fleet):
    fleet.add("one", PDF, stops="tests%2Etask")
    fleet.run("one", "a1$")
    fleet.waits("b1$")
    assert fleet.ordered() == ["a1$"]


def test_victims_are_ordered_by_priority_mode_and_start(fleet):
    fleet.scheduler.configure({"tenants": "beta=max:none,min:9"})
    fleet.add("one", PDF, slots=5)
    for number, (priority, on_demand) in enumerate([(5, False), (0, True), (0, False), (0, False), (0, True)]):
        fleet.started(
            "one", fleet.run("one", f"a{number}$", priority=priority, on_demand=on_demand), since_s=5 - number
        )
    stopped = []
    fleet.waits(*(f"b{number}$" for number in range(5)), for_s=19)
    fleet.scheduler.configure({"tenants": "beta=max:none,min:1"})
    fleet.later(1)
    for least in range(2, 6):
        stopped += set(fleet.ordered()) - set(stopped)
        fleet.scheduler.configure({"tenants": f"beta=max:none,min:{least}"})
        fleet.later(1)
    stopped += set(fleet.ordered()) - set(stopped)
    assert stopped == ["a3$", "a2$", "a4$", "a1$", "a0$"], "not in the order of their ids"


def test_no_tenant_falls_below_its_own_minimum(fleet):
    fleet.scheduler.configure({"tenants": "beta=max:none,min:4 acme=max:none,min:2"})
    fleet.add("one", PDF, slots=4)
    fleet.run("one", "a1$", "a2$", "a3$", "a4$")
    fleet.waits("b1$", "b2$", "b3$", "b4$")
    assert len(fleet.ordered()) == 2
    fleet.later(1)
    assert len(fleet.ordered()) == 2


def test_victims_do_not_outnumber_waiting_jobs_or_slots(fleet):
    fleet.scheduler.configure({"tenants": "beta=max:none,min:3"})
    fleet.add("one", PDF, slots=6)
    fleet.run("one", *(f"a{number}$" for number in range(6)))
    fleet.waits("b1$", "b2$")
    assert len(fleet.ordered()) == 2
    fleet.later(1)
    assert len(fleet.ordered()) == 2
    fleet.waits("b3$", "b4$", "b5$")
    assert len(fleet.ordered()) == 3


def test_one_missing_slot_has_one_victim_for_all_types(fleet):
    fleet.run_preemptible()
    fleet.add("two", "excel")
    fleet.publish("a2$", "excel", rules=of("acme"))
    fleet.started("two", fleet.inbox("two"))
    fleet.publish("b2$", "excel", rules=of("beta"))
    fleet.waits("b1$")
    assert fleet.ordered() == ["a1$"]
    fleet.later(1)
    assert fleet.ordered() == ["a1$"]


def test_victims_do_not_outnumber_jobs_that_waited_enough(fleet):
    fleet.scheduler.configure({"tenants": "beta=max:none,min:2"})
    fleet.add("one", PDF, slots=2)
    fleet.run("one", "a1$", "a2$")
    fleet.waits("b1$", for_s=10)
    fleet.waits("b2$", for_s=10)
    assert len(fleet.ordered()) == 1


def test_order_precedes_the_jobs_in_an_inbox(fleet):
    fleet.add("one", PDF, slots=2)
    fleet.run("one", "a1$")
    fleet.publish("a2$", PDF, rules=of("acme"))
    fleet.waits("b1$")
    job, order = fleet.redis.lrange(fleet.key("inbox", "one"), 0, -1)
    assert (order[:8], job[:3]) == (b"\npreempt", b"a2$")


def test_order_does_not_apply_to_a_later_claim(fleet):
    claim = fleet.run_preemptible()
    fleet.waits("b1$", task_id="gone")
    fleet.inbox("one")
    fleet.scheduler.revoke(["gone"], [], keep_s=60)
    fleet.scheduler.requeue("one", [(claim.job_id, claim.fence)], counted=False)
    (again,) = fleet.inbox("one")
    (last,) = fleet.end("one", again, outcome="preempted 21000000")
    assert (last.deliveries, last.requeues, last.preemptions) == (0, 1, 0)


def test_preempted_job_claimed_but_unread_is_requeued(fleet):
    claim = fleet.run_preemptible()
    fleet.waits("b1$")
    (urgent,) = fleet.end("one", claim, outcome="preempted 21000000")
    fleet.end("one", urgent, inline=False)
    assert fleet.job("a1$")["state"] == "claimed"
    fleet.scheduler.advance(60)
    assert fleet.scheduler.sync("one", [], slots=0, other=0, draining=False).returned == 1
    assert fleet.job("a1$")["state"] == "pending"


def test_preempted_job_is_exempt_elsewhere_for_a_minute(fleet):
    claim = fleet.run_preemptible()
    fleet.waits("b1$")
    fleet.end("one", claim, outcome="preempted 21000000")
    fleet.add("two", PDF)
    fleet.started("two", fleet.inbox("two"))
    fleet.scheduler.configure({"tenants": "beta=max:none,min:2"})
    fleet.waits("b2$", for_s=59)
    assert fleet.ordered() == []
    fleet.later(1)
    assert fleet.ordered() == ["a1$"]


def test_lowest_priority_follows_the_fleets_priority_order(fleet):
    fleet.add("one", PDF, slots=2)
    fleet.run("one", "a1$", priority=1)
    fleet.run("one", "a9$", priority=9)
    fleet.scheduler.configure({"priority_order": "lower-first"})
    fleet.waits("b1$")
    assert fleet.ordered() == ["a9$"]


def test_unread_order_is_withdrawn_when_no_longer_needed(fleet):
    fleet.run_preemptible()
    fleet.waits("b1$", task_id="gone")
    fleet.scheduler.revoke(["gone"], [], keep_s=60)
    fleet.later(1)
    assert (fleet.ordered(), fleet.signs("one"), "stop" in fleet.job("a1$")) == ([], [], False)


def test_read_order_remains_when_no_longer_needed(fleet):
    claim = fleet.run_preemptible()
    fleet.waits("b1$", task_id="gone")
    assert fleet.inbox("one") == []
    fleet.scheduler.revoke(["gone"], [], keep_s=60)
    fleet.later(1)
    assert fleet.ordered() == ["a1$"]
    (again,) = fleet.end("one", claim, outcome="preempted 1")
    assert again.preemptions == 1


def test_order_is_withdrawn_when_another_slot_becomes_free(fleet):
    fleet.run_preemptible()
    fleet.waits("b1$")
    fleet.add("two", PDF)
    assert fleet.jobs("two") == ["b1$"]
    fleet.later(1)
    assert (fleet.ordered(), fleet.signs("one")) == ([], [])


def test_unanswered_order_times_out_after_grace_and_five_seconds(fleet):
    fleet.run_preemptible()
    fleet.add("two", PDF)
    fleet.run("two", "a2$")
    fleet.waits("b1$")
    (first,) = fleet.ordered()
    fleet.inbox("one")
    fleet.inbox("two")
    fleet.later(14)
    assert fleet.ordered() == [first]
    fleet.later(1)
    assert fleet.ordered() == ["a1$", "a2$"]
    fleet.later(100)
    assert fleet.ordered() == [first]  # no job is ordered to stop twice, and unread orders are deleted
    assert fleet.signs("one") + fleet.signs("two") == []


@pytest.mark.parametrize("way", ["recover", "leave", "requeue", "acked", "failed E: x", "returned"])
def test_order_is_deleted_with_any_end_of_its_claim(fleet, way):
    claim = fleet.run_preemptible()
    fleet.waits("b1$")
    if way in ("recover", "leave"):
        getattr(fleet.scheduler, way)("one")
    elif way == "requeue":
        fleet.scheduler.requeue("one", [(claim.job_id, claim.fence)], counted=False)
    else:
        fleet.end("one", claim, outcome=way)
    assert fleet.ordered() == []
    assert not fleet.redis.exists(fleet.key("preemptible_tenants"), fleet.key("preemptible", "tenant%3Aacme"))
    assert fleet.job("a1$").get("deliveries") == ("1" if way == "recover" else None)


def preempt_repeatedly(fleet, times, *, pause_s):
    """Bring a tenant below its minimum *times* times. Return each victim with the seconds since the start."""
    found, began_us = [], fleet.now_us
    for number in range(times):
        fleet.waits(f"b{number}$")
        for _ in range(200):
            if fleet.ordered():
                break
            fleet.later(1)
        else:
            return found
        (job,) = fleet.ordered()
        found.append((job, (fleet.now_us - began_us) // 1_000_000))
        claims = {claim.job_id: claim for _, claim in fleet.came}
        fleet.inbox("one")
        (urgent,) = fleet.end("one", claims[job], outcome="preempted 1000000")
        fleet.started("one", fleet.end("one", urgent))
        fleet.later(pause_s)
    return found


def test_job_is_preempted_three_times_a_minute_apart(fleet):
    fleet.run_preemptible()
    assert preempt_repeatedly(fleet, 5, pause_s=0) == [("a1$", 20), ("a1$", 80), ("a1$", 140)]


def test_next_job_of_freed_slots_is_briefly_exempt(fleet):
    fleet.run_preemptible()
    fleet.run("one", "a2$", priority=3)
    stops = preempt_repeatedly(fleet, 4, pause_s=0)
    assert {job for job, _ in stops} == {"a1$", "a2$"}
    times = [at_s for _, at_s in stops]
    assert all(after - before >= 60 for before, after in pairwise(times))


def test_job_blocked_by_a_reserve_preempts_no_other(fleet):
    fleet.scheduler.configure({"reserve": "pdf:queued=1"})
    fleet.add("one", PDF, slots=2)
    fleet.run("one", "a1$", "a2$", on_demand=True)
    fleet.waits("b1$")
    assert fleet.ordered() == []
    fleet.scheduler.configure({"reserve": " "})
    fleet.later(1)
    assert len(fleet.ordered()) == 1


def test_prefetched_jobs_are_requested_back_with_an_order(fleet):
    fleet.add("one", PDF)
    (first,) = fleet.run("one", "a1$")
    for job in ("a2$", "a3$", "a4$"):
        fleet.publish(job, PDF, rules=of("acme"))
    running, *ahead = fleet.end("one", first, may_hold=PrefetchLimit(jobs=2))
    fleet.started("one", [running])
    fleet.waits("b1$")
    assert fleet.ordered() == ["a2$"]
    assert [each[:2] for each in fleet.signs("one")] == [["preempt", "a2$"], ["back", "2"]]
    for claim in ahead:
        assert fleet.end("one", claim, outcome="returned") == []
    assert [each.job_id for each in fleet.end("one", running, outcome="preempted 1")] == ["b1$"]


def test_prefetched_jobs_are_requested_back_once_per_worker(fleet):
    fleet.scheduler.configure({"tenants": "beta=max:none,min:2"})
    fleet.add("one", PDF, slots=2)
    first, second = fleet.run("one", "a1$", "a2$")
    for job in ("a3$", "a4$", "a5$"):
        fleet.publish(job, PDF, rules=of("acme"))
    running, *_ = fleet.end("one", first, may_hold=PrefetchLimit(jobs=2))
    fleet.started("one", [running, second])
    fleet.waits("b1$", "b2$")
    assert fleet.ordered() == ["a2$", "a3$"]
    assert [each[0] for each in fleet.signs("one")].count("back") == 1


@pytest.mark.parametrize("lacking", ["slots", "minimums"])
def test_no_stop_is_ordered_without_slots_or_minimums(fleet, lacking):
    fleet.run_preemptible()
    if lacking == "slots":  # the worker has fewer slots than jobs
        fleet.redis.hset(fleet.key("worker", "one"), "other", 1)
    else:
        fleet.scheduler.configure({"tenants": " "})
    fleet.waits("b1$")
    assert fleet.ordered() == []


def test_tick_begins_with_the_longest_waiting_tenants(fleet):
    names = [f"t{number:02}" for number in range(MAX_PREEMPTORS + 3)]
    fleet.scheduler.configure({"tenants": " ".join(f"{name}=max:none,min:1" for name in names)})
    fleet.add("one", PDF, slots=30)
    fleet.run("one", *(f"a{number}$" for number in range(30)))
    for number, name in enumerate(names):
        fleet.publish(f"{name}$", PDF, rules=of(name, may_stop=False), priority=number % 2)
        fleet.scheduler.advance(1)
    fleet.later(20)
    tenants = {value.decode().split()[2] for value in fleet.redis.hvals(fleet.key("stop_orders"))}
    assert tenants == {f"tenant%3A{name}" for name in names[:MAX_PREEMPTORS]}


def test_number_of_simultaneous_orders_is_limited(fleet):
    number = MAX_STOP_ORDERS + 5
    fleet.scheduler.configure({"tenants": f"beta=max:none,min:{number}"})
    fleet.add("one", PDF, slots=5 * MAX_VICTIMS)
    for tenant in "pqrst":
        jobs = fleet.made([f"{tenant}{each}$" for each in range(MAX_VICTIMS)], PDF, rules=of(tenant))
        fleet.scheduler.publish(*jobs)
    fleet.started("one", fleet.inbox("one"))
    fleet.scheduler.publish(*fleet.made([f"b{each}$" for each in range(number)], PDF, rules=of("beta")))
    fleet.later(21)
    assert len(fleet.ordered()) == MAX_STOP_ORDERS
    fleet.later(1)
    assert len(fleet.ordered()) == MAX_STOP_ORDERS


def test_corrupt_order_is_deleted_without_a_stop(fleet):
    fleet.run_preemptible()
    fleet.redis.hset(fleet.key("stop_orders"), mapping={"a1$": "nonsense", "no-job": "1 one tenant%3Abeta pdf 1 1"})
    fleet.later(1)
    assert fleet.ordered() == []


def test_lost_index_of_preemptible_jobs_is_repaired(fleet):
    fleet.scheduler.configure({"tenants": "acme=max:2"})
    fleet.add("one", PDF, slots=9)
    fleet.run("one", "a1$", "a2$", "a3$")
    giving, jobs = fleet.key("preemptible_tenants"), fleet.key("preemptible", "tenant%3Aacme")

    def state():
        return [fleet.redis.zrange(name, 0, -1, withscores=True) for name in (giving, jobs)]

    before = state()
    assert before[0] == [(b"tenant%3Aacme", 2)]
    for spoil in (
        lambda: fleet.redis.delete(giving),
        lambda: fleet.redis.delete(jobs),
        lambda: fleet.redis.delete(giving, jobs),
        lambda: fleet.redis.zadd(jobs, {"a9$": 0}),
        lambda: fleet.redis.zadd(jobs, {"a1$": 9}),
        lambda: fleet.redis.zadd(giving, {"tenant%3Aacme": 9}),
    ):
        assert fleet.scheduler.repair() == []
        spoil()
        assert fleet.scheduler.repair()
        assert state() == before
