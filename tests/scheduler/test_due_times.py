"""Due times on a server: a job that is due early is ordered as if it had been published earlier, and only ordered."""

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.policy.run_times import RunTime
from celery_affinity.schema.bounds import Bound
from celery_affinity.schema.constants import MAX_RUN_US
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.reserves import encoded_reserves

from ..support.scripted_fleet import ScriptedFleet
from ..support.tenants import of

TARGET_S = 256
SOON = f"w{10 * 1_000_000}"
HEAD_US = (TARGET_S - 10) * 1_000_000
MERGING = "merge=k most=100 bytes=1000000"


@pytest.fixture
def fleet(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.scheduler.configure({"worker_timeout_us": str(10**15)})
    return fleet


def row(fleet, job):
    stored = fleet.scheduler.client.hgetall(fleet.scheduler.keys.key("job", job))
    return {name.decode(): value.decode() for name, value in stored.items()}


def scores(fleet, *name):
    found = fleet.scheduler.client.zrange(fleet.scheduler.keys.key(*name), 0, -1, withscores=True)
    return {member.decode(): int(score) for member, score in found}


def index(fleet):
    return scores(fleet, "due_times")


def rank_in_lane(fleet, job, lane="queued.0"):
    return scores(fleet, "lane", "pdf", lane)[job]


def learn(fleet, name, took_s, *, size=1.0):
    learned = RunTime()
    for _ in range(30):
        learned.add(size, took_s * 1e6)
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("run_times"), name, learned.text)
    return learned


def repair(fleet):
    following = 0
    while following >= 0:
        following, _, _ = fleet.scheduler._run("repair", [], first=following, how="1")


# -- The rank.


def test_job_that_is_due_soon_passes_older_jobs_of_its_lane_and_of_higher_priority(fleet):
    """Its head start of 246 s is worth 3,936 points: three steps of priority (3,072), but not four (4,096)."""
    for priority in (0, 3, 4):
        fleet.publish(f"old-{priority}", "pdf", priority=priority)
    fleet.publish("due", "pdf", due=SOON)
    assert fleet.order(4, "pdf") == ["old-4", "due", "old-3", "old-0"]


def test_jobs_due_within_the_target_wait_run_in_the_order_of_their_due_times(fleet):
    due_s = [200, 3, 90, 255, 40, 17]
    for seconds in due_s:
        fleet.publish(f"due-{seconds}", "pdf", due=f"w{seconds * 1_000_000}")
        fleet.scheduler.advance(0.1)
    assert fleet.order(6, "pdf") == [f"due-{seconds}" for seconds in sorted(due_s)]


@pytest.mark.parametrize(
    "due", [f"w{TARGET_S * 1_000_000}", "w99999999999999999", "d99999999999999999", f"d{1000 * 1_000_000}", "s5000000"]
)
def test_job_due_later_than_the_target_wait_has_no_head_start(fleet, due):
    fleet.publish("old", "pdf")
    fleet.scheduler.advance(0.1)
    fleet.publish("due", "pdf", due=due)
    assert "head" not in row(fleet, "due")
    assert fleet.order(2, "pdf") == ["old", "due"]


def test_least_head_start_is_a_microsecond(fleet):
    fleet.publish("due", "pdf", due=f"w{TARGET_S * 1_000_000 - 1}")
    assert row(fleet, "due")["head"] == "1"
    assert rank_in_lane(fleet, "due") == fleet.now_us - 1


def test_missed_deadline_counts_as_due_at_once(fleet):
    fleet.publish("missed", "pdf", due="d-99999999999")
    fleet.publish("now", "pdf", due="w0")
    assert row(fleet, "missed")["head"] == row(fleet, "now")["head"] == str(TARGET_S * 1_000_000)
    assert fleet.order(2, "pdf") == ["missed", "now"]


def test_earlier_of_two_due_times_counts(fleet):
    fleet.publish("first", "pdf", due="w5000000 d60000000")
    fleet.publish("second", "pdf", due="w60000000 d5000000")
    now_us = fleet.now_us
    assert index(fleet) == {"first": now_us + 5_000_000, "second": now_us + 5_000_000}


def test_equal_words_count_from_each_publish(fleet):
    for job, due in (("d1", "d9000000 s7"), ("d2", "d9000000 s7"), ("w1", "w4000000"), ("w2", "w4000000")):
        fleet.publish(job, "pdf", due=due)
        fleet.scheduler.advance(1)
    found = index(fleet)
    assert [found[job] - found["d1"] for job in ("d2", "w1", "w2")] == [1_000_000, -3_000_000, -2_000_000]
    assert row(fleet, "d2")["due"] == f"{found['d2']} d{found['d2']} s7"


def test_deadline_counts_from_the_expected_end(fleet):
    """Names are stored percent-encoded. A call of twice the mean size takes twice as long."""
    learned = learn(fleet, "caf%C3%A9.render", 20)
    for job, size in (("mean", ""), ("twice", " s2000000"), ("small", " s0")):
        fleet.publish(job, "pdf", task_name="café.render", due=f"d100000000{size}")
    due_s = {job: (at_us - fleet.now_us) / 1e6 for job, at_us in index(fleet).items()}
    expected_s = {"mean": learned.expected_us(), "twice": learned.expected_us(2), "small": learned.expected_us(0)}
    assert due_s == pytest.approx(
        {job: 100 - each / 1e6 * (1 + learned.typical_error) for job, each in expected_s.items()}, abs=1e-5
    )


def test_longest_target_wait_is_a_billion_seconds(fleet):
    fleet.scheduler.configure({"target_wait_us": str(MAX_RUN_US)})
    fleet.publish("due", "pdf", due=SOON)
    assert row(fleet, "due")["head"] == str(MAX_RUN_US - 10_000_000)


def test_target_wait_of_0_turns_due_times_off(fleet):
    fleet.scheduler.configure({"target_wait_us": "0"})
    fleet.publish("old", "pdf")
    fleet.scheduler.advance(0.1)
    fleet.publish("due", "pdf", due="w0")
    assert fleet.order(2, "pdf") == ["old", "due"]


# -- `stretch`.


def test_short_jobs_pass_long_ones_with_stretch(fleet):
    learn(fleet, "short", 2)
    learn(fleet, "long", 120)
    fleet.scheduler.configure({"stretch": "2"})
    for job, name in (("unknown", "new"), ("long", "long"), ("short", "short")):
        fleet.publish(job, "pdf", task_name=name)
    assert (row(fleet, "short")["head"], row(fleet, "long")["head"]) == ("252000000", "16000000")
    assert index(fleet) == {}, "a job without its own due time is in no index"
    assert fleet.order(3, "pdf") == ["short", "long", "unknown"]


def test_own_due_time_replaces_stretch(fleet):
    learn(fleet, "short", 1)
    fleet.scheduler.configure({"stretch": "1"})
    fleet.publish("own", "pdf", task_name="short", due=f"w{200 * 1_000_000}")
    assert row(fleet, "own")["head"] == str(56 * 1_000_000)


def test_unknown_task_takes_the_usual_time_of_its_type(fleet):
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("durations"), "pdf", 30_000_000)
    fleet.scheduler.configure({"stretch": "2"})
    fleet.publish("job", "pdf")
    assert row(fleet, "job")["head"] == str((TARGET_S - 60) * 1_000_000)


def test_stretch_counts_from_the_eta(fleet):
    learn(fleet, "short", 1)
    fleet.scheduler.configure({"stretch": "1"})
    fleet.publish("later", "pdf", task_name="short", delay_s=50)
    assert "head" not in row(fleet, "later")
    fleet.advance_and_tick(60)
    eta_us = fleet.now_us - 10_000_000
    assert rank_in_lane(fleet, "later") == eta_us - (TARGET_S - 1) * 1_000_000
    assert fleet.join_and_claim("worker", "pdf").enqueued_us == eta_us


def test_end_of_stretch_applies_to_jobs_published_from_then_on(fleet):
    learn(fleet, "short", 1)
    fleet.scheduler.configure({"stretch": "1"})
    fleet.publish("before", "pdf", task_name="short")
    fleet.scheduler.configure({"stretch": "0"})
    fleet.publish("after", "pdf", task_name="short")
    assert "head" in row(fleet, "before")
    assert "head" not in row(fleet, "after")
    assert fleet.scheduler.client.hget(fleet.scheduler.keys.key("heads"), "!") is None


# -- True enqueue times.


def test_claim_has_the_true_enqueue_time_and_the_due_time(fleet):
    published_us = fleet.now_us
    fleet.publish("due", "pdf", due=SOON)
    fleet.publish("other", "pdf", due=SOON)
    fleet.scheduler.advance(3)
    claim = fleet.join_and_claim("worker", "pdf")
    assert (claim.enqueued_us, claim.due_us, claim.requeues) == (published_us, published_us + 10_000_000, 0)
    assert list(index(fleet)) == ["other"], "a claimed job is no longer to come"


def test_job_placed_at_once_has_the_true_enqueue_time(fleet):
    fleet.join("worker", "pdf")
    fleet.publish("due", "pdf", due=SOON)
    (claim,) = fleet.inbox("worker")
    assert claim.enqueued_us == fleet.now_us
    assert index(fleet) == {}


def test_unread_job_is_taken_out_of_the_inbox(fleet):
    """Otherwise its return would count as a delivery, and the inbox would keep it."""
    fleet.join("worker", "pdf")
    fleet.publish("due", "pdf", due=SOON)
    fleet.scheduler.leave("worker")
    assert "deliveries" not in row(fleet, "due")
    assert rank_in_lane(fleet, "due") == fleet.now_us - HEAD_US
    assert list(index(fleet)) == ["due"]


@pytest.mark.parametrize("due", ["", SOON])
def test_reserve_patience_counts_the_true_wait(fleet, due):
    fleet.configure_and_tick({"reserve": encoded_reserves({"pdf": {"queued": 1}}), "reserve_patience_us": "30000000"})
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("first", "pdf")
    assert fleet.jobs("worker") == ["first"]
    fleet.publish("job", "pdf", due=due)
    for seconds, started in ((0, []), (29, []), (1, ["job"])):
        fleet.scheduler.advance(seconds)
        fleet.sync("worker", slots=2)
        assert fleet.jobs("worker") == started


@pytest.mark.parametrize("due", ["", SOON])
def test_preemption_delay_counts_the_true_wait(fleet, due):
    fleet.scheduler.configure({"tenants": "beta=max:none,min:1", "preemption_delay_us": "20000000"})
    fleet.join("worker", "pdf")
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("worker", "worker"), "stops", "force")
    fleet.publish("a$", "pdf", rules=f"{of('acme')} preemptible=1")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("job", claim.job_id), "started", fleet.now_us)
    fleet.publish("b$", "pdf", rules=of("beta"), due=due)
    fleet.advance_and_tick(19)
    assert fleet.signs("worker") == []
    fleet.advance_and_tick(1)
    assert [sign[:2] for sign in fleet.signs("worker")] == [["preempt", "a$"]]


@pytest.mark.parametrize("due", ["", SOON])
def test_key_patience_counts_the_true_wait(fleet, due):
    fleet.scheduler.configure({"key_patience_us": "30000000"})
    fleet.join("videos", "video")
    fleet.join("reports", "report")
    fleet.publish("busy", "report")
    fleet.publish("v1!", "video", rules="key=k limit=1")
    fleet.publish("r!", "report", rules="key=k limit=1", due=due)
    for number in range(2, 5):
        fleet.publish(f"v{number}!", "video", rules="key=k limit=1", on_demand=True)
    (video,) = fleet.inbox("videos")
    fleet.scheduler.advance(29)
    (video,) = fleet.end("videos", video)
    fleet.scheduler.advance(30)
    assert fleet.end("videos", video) == [], "the key is reserved for the type of the report"


def test_drop_oldest_drops_the_job_that_has_waited_longest(fleet):
    def publish(job, due=""):
        fleet.scheduler.publish(NewJob(job, "pdf", "m", task_id=job, due=due, bound=Bound(2, "drop-oldest")))
        fleet.scheduler.advance(1)

    publish("old")
    publish("due", SOON)
    publish("new")
    assert [fleet.state(job) for job in ("old", "due", "new")] == ["revoked", "pending", "pending"]
    publish("newest")
    assert fleet.state("due") == "revoked", "now it has waited longest"
    assert index(fleet) == {}


# -- Each return to waiting uses the rank.


def test_crashed_job_keeps_its_rank(fleet):
    fleet.publish("due", "pdf", due=SOON)
    published_us = fleet.now_us
    fleet.join_and_claim("worker", "pdf")
    fleet.scheduler.advance(100)
    fleet.scheduler.recover("worker")
    assert rank_in_lane(fleet, "due") == published_us - HEAD_US
    assert index(fleet) == {"due": published_us + 10_000_000}


def test_pause_ends_with_the_head_start_of_its_due_time(fleet):
    """It was due to start 10 s after its first enqueue time, so it is overdue now."""
    fleet.join("worker", "pdf")
    fleet.publish("due", "pdf", due=SOON)
    for _ in range(2):
        (claim,) = fleet.inbox("worker")
        fleet.scheduler.advance(60)
        fleet.end("worker", claim, outcome="requeued Reject: not now", inline=False)
    assert fleet.state("due") == "scheduled"
    fleet.join("other", "excel")
    fleet.scheduler.leave("worker")
    fleet.advance_and_tick(1)
    assert rank_in_lane(fleet, "due") == fleet.now_us - TARGET_S * 1_000_000


def test_due_time_of_a_scheduled_job_counts_from_its_eta(fleet):
    fleet.publish("later", "pdf", delay_s=100, due=SOON)
    fleet.publish("missed", "pdf", delay_s=100, due="d50000000")
    now_us = fleet.now_us
    assert index(fleet) == {"later": now_us + 110_000_000, "missed": now_us + 50_000_000}
    fleet.advance_and_tick(101)
    assert rank_in_lane(fleet, "later") == now_us + 100_000_000 - HEAD_US
    assert rank_in_lane(fleet, "missed") == now_us + 100_000_000 - TARGET_S * 1_000_000


def test_moved_job_keeps_its_head_start(fleet):
    fleet.publish("old", "pdf", priority=5)
    fleet.publish("due", "excel", due=SOON)
    fleet.scheduler.move(["due"], type_="pdf", priority=5)
    assert fleet.order(2, "pdf") == ["due", "old"]


def test_replay_begins_start_within_anew_and_keeps_the_deadline(fleet):
    fleet.join("worker", "pdf")
    for job, due in (("within", SOON), ("deadline", "d100000000 s3000000"), ("far", "d99999999999999999")):
        fleet.publish(job, "pdf", due=due)
        (claim,) = fleet.inbox("worker")
        fleet.end("worker", claim, outcome="rejected")
    begun_us = fleet.now_us
    fleet.scheduler.leave("worker")
    fleet.scheduler.advance(50)
    assert index(fleet) == {}
    fleet.scheduler.replay(["within", "deadline", "far"])
    assert index(fleet) == {
        "within": fleet.now_us + 10_000_000,
        "deadline": begun_us + 100_000_000,
        "far": pytest.approx(begun_us + 10**17, rel=1e-15),
    }
    assert rank_in_lane(fleet, "deadline") == fleet.now_us - (TARGET_S - 50) * 1_000_000


def test_batch_has_the_least_rank_and_the_earliest_due_time_of_its_calls(fleet):
    begun_us = fleet.now_us
    for job, due in (("a+", ""), ("b+", "w200000000"), ("c+", SOON), ("d+", "")):
        fleet.publish(job, "pdf", rules=MERGING, due=due)
        fleet.scheduler.advance(1)
    assert rank_in_lane(fleet, "a*") == begun_us + 2_000_000 - HEAD_US
    assert index(fleet) == {"a*": begun_us + 12_000_000}
    claim = fleet.join_and_claim("worker", "pdf")
    assert (claim.enqueued_us, claim.due_us) == (begun_us, begun_us + 12_000_000)
    fleet.scheduler.split_batch("a*", ["c+", "d+"], fence=claim.fence)
    assert rank_in_lane(fleet, "c*") == begun_us + 2_000_000 - HEAD_US
    assert index(fleet) == {"c*": begun_us + 12_000_000}


def test_merge_window_ends_at_the_due_time(fleet):
    waiting = f"{MERGING} wait=60000000/90000000"
    fleet.publish("a+", "pdf", rules=waiting)
    fleet.scheduler.advance(1)
    fleet.publish("b+", "pdf", rules=waiting, due=SOON)
    fleet.advance_and_tick(9.9)
    assert fleet.state("a*") == "scheduled"
    fleet.advance_and_tick(0.1)
    assert fleet.state("a*") == "pending"


def test_ended_and_purged_jobs_leave_the_index(fleet):
    for job, options in (("revoked", {}), ("expired", {"expires_s": 5}), ("purged", {}), ("m+", {"rules": MERGING})):
        fleet.publish(job, "pdf", due=SOON, **options)
    assert len(index(fleet)) == 4
    fleet.scheduler.revoke(["task-revoked", "task-m+"], [], keep_s=60)
    fleet.advance_and_tick(6)
    assert list(index(fleet)) == ["purged"]
    fleet.scheduler.purge("pdf")
    assert index(fleet) == {}


# -- Sub-lanes, hints and turns.


def test_blocked_jobs_of_a_key_get_it_in_the_order_of_their_ranks(fleet):
    for job, due in (("a!", ""), ("b!", "w200000000"), ("c!", SOON)):
        fleet.publish(job, "pdf", rules="key=k limit=1", due=due)
    assert fleet.order(3, "pdf") == ["c!", "b!", "a!"]


def test_minimum_and_hint_lanes_have_ranks(fleet):
    fleet.scheduler.configure({"tenants": "beta=max:none,min:1", "locality_bonus": "80"})
    fleet.publish("b~$", "pdf", rules=f"near=h {of('beta')}", due=SOON)
    rank = fleet.now_us - HEAD_US
    assert scores(fleet, "minimum_lane", "pdf", "queued.0") == {"b~$": rank}
    assert scores(fleet, "hint_lane", "h", "pdf", "queued.0") == {"b~$": rank}


def test_turn_of_a_tenant_goes_to_its_job_with_the_least_rank(fleet):
    fleet.scheduler.configure({"tenant_turns": "share"})
    for job, due in (("a$", ""), ("b$", SOON)):
        fleet.publish(job, "pdf", rules=of("acme"), due=due)
    assert fleet.order(2, "pdf") == ["b$", "a$"]


# -- Damage.


@pytest.mark.parametrize("value", ["nan", "inf", "-5", "much", "1e300", ""])
def test_damaged_settings_fail_no_publish(fleet, value):
    client, keys = fleet.scheduler.client, fleet.scheduler.keys
    client.hset(keys.key("settings"), mapping={"target_wait_us": value, "stretch": value})
    fleet.scheduler.configure({"keep_us": "1000000"})
    assert client.hget(keys.key("heads"), "!") is None
    client.hset(keys.key("heads"), "!", f"+due={value}/{value}")
    fleet.publish("due", "pdf", due=SOON)
    assert row(fleet, "due")["head"] == str(HEAD_US)
    fleet.publish("plain", "pdf")
    assert fleet.order(2, "pdf") == ["due", "plain"]


@pytest.mark.parametrize("field", ["head", "due"])
@pytest.mark.parametrize("value", ["nan", "-1", "", "x" * 5000, "9" * 400, "9" * 18, "1 2 3"])
def test_damaged_fields_fail_no_claim(fleet, field, value):
    fleet.publish("due", "pdf", due=SOON)
    fleet.publish("plain", "pdf")
    fleet.scheduler.client.hset(fleet.scheduler.keys.key("job", "due"), field, value)
    claim = fleet.join_and_claim("worker", "pdf")
    assert claim.job_id == "due"
    fleet.scheduler.recover("worker")
    assert sorted(fleet.order(2, "pdf")) == ["due", "plain"]


@pytest.mark.parametrize("tenant_turns", ["age", "share"])
def test_repair_restores_the_settings_that_publish_reads(fleet, tenant_turns):
    client, keys = fleet.scheduler.client, fleet.scheduler.keys
    fleet.scheduler.configure({"target_wait_us": "50000000", "stretch": "0.1", "tenant_turns": tenant_turns})
    before = client.hget(keys.key("heads"), "!")
    client.delete(keys.key("heads"), keys.key("type_rules"))
    repair(fleet)
    assert client.hget(keys.key("heads"), "!") == before
    fleet.publish("due", "pdf", due=SOON)
    assert row(fleet, "due")["head"] == "40000000"


def test_repair_restores_the_index_and_the_order_of_a_key(fleet):
    for job, due in (("a!", ""), ("b!", "w200000000"), ("c!", SOON)):
        fleet.publish(job, "pdf", rules="key=k limit=1", due=due)
    client, keys = fleet.scheduler.client, fleet.scheduler.keys
    before = index(fleet)
    client.zadd(keys.key("due_times"), {"gone": 5, "a!": 7, "c!": 9})
    client.delete(keys.key("key_queue", "k", "pdf", "queued.0"))
    repair(fleet)
    assert index(fleet) == before
    assert fleet.order(3, "pdf") == ["c!", "b!", "a!"]
