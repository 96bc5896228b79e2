"""Every arrow on a real server; the time is passed in where it matters."""

# Longer than 300 lines: one arrow after the other, on one scripted fleet.

import threading

import pytest

from celery_affinity.rules.keys import Keys
from celery_affinity.rules.protocol import MOST_MOVES
from celery_affinity.server.replies import Claim, Joining
from celery_affinity.server.scheduler import Scheduler
from celery_affinity.server.scripts.assembling import load

from ..support.clocked import ClockedScheduler
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(ClockedScheduler(redis_client, Keys()))


# -- which slot


def test_a_versatile_slot_is_kept_while_a_specialist_is_free(fleet):
    fleet.join("versatile", "pdf", "excel", "index")
    fleet.join("two", "pdf", "excel")
    fleet.join("specialist", "pdf")
    for job in ("first", "second", "third"):
        fleet.publish(job, "pdf")
    assert fleet.jobs("specialist") == ["first"]
    assert fleet.jobs("two") == ["second"]
    assert fleet.jobs("versatile") == ["third"]


def test_a_rare_job_that_only_the_versatile_worker_can_do_starts_at_once(fleet):
    fleet.join("specialist", "a")
    fleet.join("versatile", "a", "b", "c")
    fleet.publish("common", "a")
    fleet.publish("rare", "c")
    assert fleet.jobs("specialist") == ["common"]
    assert fleet.jobs("versatile") == ["rare"]


def test_among_equals_the_longest_idle_worker_is_chosen(fleet):
    fleet.join("first", "pdf")
    fleet.scheduler.advance(1)
    fleet.join("second", "pdf")
    fleet.publish("one", "pdf")
    (claim,) = fleet.inbox("first")
    fleet.scheduler.advance(1)
    fleet.end("first", claim)
    fleet.publish("two", "pdf")
    assert fleet.jobs("second") == ["two"]


def test_a_job_never_goes_to_a_worker_that_does_not_serve_its_type(fleet):
    fleet.join("excel", "excel", slots=5)
    fleet.publish("job", "pdf")
    assert fleet.state("job") == "pending"
    assert fleet.jobs("excel") == []


def test_a_worker_holds_at_most_as_many_jobs_as_it_has_slots(fleet):
    fleet.join("worker", "pdf", slots=3)
    for number in range(5):
        fleet.publish(f"job{number}", "pdf")
    assert fleet.jobs("worker") == ["job0", "job1", "job2"]
    fleet.sync("worker", slots=3, other=0)
    assert fleet.jobs("worker") == []


def test_other_running_requests_take_slots_and_free_slots_may_be_negative(fleet):
    fleet.join("worker", "pdf", slots=2)
    fleet.sync("worker", slots=2, other=3)
    fleet.publish("job", "pdf")
    assert fleet.state("job") == "pending"
    fleet.sync("worker", slots=2, other=1)
    assert fleet.jobs("worker") == ["job"]


def test_a_pool_that_grows_takes_more_at_once(fleet):
    fleet.join("worker", "pdf", slots=1)
    for number in range(3):
        fleet.publish(f"job{number}", "pdf")
    assert fleet.jobs("worker") == ["job0"]
    fleet.sync("worker", slots=3)
    assert fleet.jobs("worker") == ["job1", "job2"]


# -- which job first


def _order(fleet, count, *types):
    """Run *count* jobs one after the other on one slot; return them in their order."""
    fleet.join("worker", *types)
    order, (claim,) = [], fleet.inbox("worker")
    while True:
        order.append(claim.job_id)
        following = fleet.end("worker", claim)
        if not following:
            assert len(order) == count
            return order
        (claim,) = following


@pytest.mark.parametrize(("age_s", "winner"), [(319, "fresh"), (320, "old"), (321, "old")])
def test_64_seconds_of_age_weigh_as_much_as_one_priority(fleet, age_s, winner):
    fleet.publish("old", "pdf", priority=0)
    fleet.scheduler.advance(age_s)
    fleet.publish("fresh", "pdf", priority=5)
    assert _order(fleet, 2, "pdf")[0] == winner


@pytest.mark.parametrize(("age_s", "winner"), [(0, "urgent"), (255, "urgent"), (256, "old"), (257, "old")])
def test_on_demand_overtakes_but_an_old_queued_job_overtakes_it(fleet, age_s, winner):
    fleet.publish("old", "pdf")
    fleet.scheduler.advance(age_s)
    fleet.publish("urgent", "pdf", on_demand=True)
    assert _order(fleet, 2, "pdf")[0] == winner


def test_an_on_demand_job_gains_no_more_than_a_queued_one_past_the_cap(fleet):
    fleet.publish("urgent", "pdf", on_demand=True)
    fleet.scheduler.advance(1000)
    # 4096 + 256 * 32 = 12,288 points ahead of a queued job of its age: 12 priorities, more than there are.
    fleet.publish("fresh", "pdf", priority=10)
    fleet.scheduler.advance(100_000)
    assert _order(fleet, 2, "pdf") == ["urgent", "fresh"]


def test_a_rarer_type_goes_first_among_equals(fleet):
    fleet.join("busy", "common", slots=3)
    for number in range(3):
        fleet.publish(f"busy{number}", "common")
    fleet.publish("common", "common")
    fleet.publish("rare", "rare")
    assert _order(fleet, 2, "common", "rare") == ["rare", "common"]


def test_ties_go_to_the_older_then_to_the_smaller_id(fleet):
    for job in ("b", "a", "c"):
        fleet.publish(job, "pdf")
    fleet.scheduler.advance(1)
    fleet.publish("0", "pdf")
    assert _order(fleet, 4, "pdf") == ["a", "b", "c", "0"]


def test_a_scheduled_job_ages_from_its_due_time_on(fleet):
    fleet.publish("later", "pdf", delay_s=100)
    fleet.scheduler.advance(50)
    fleet.publish("now", "pdf")
    fleet.scheduler.advance(60)
    ticked = fleet.scheduler.tick()
    assert (ticked.due, ticked.next_due_s) == (1, None)
    assert _order(fleet, 2, "pdf") == ["now", "later"]


def test_a_tick_says_when_the_next_job_is_due(fleet):
    fleet.publish("later", "pdf", delay_s=7.5)
    assert fleet.scheduler.tick().next_due_s == 7.5
    assert fleet.state("later") == "scheduled"


# -- what may be said twice


def test_a_repeated_publish_changes_nothing(fleet):
    assert fleet.publish("job", "pdf")
    assert not fleet.publish("job", "pdf", priority=9)
    assert _order(fleet, 1, "pdf") == ["job"]
    assert not fleet.publish("job", "pdf"), "known for a while after its end"


def test_a_repeated_release_gets_the_same_reply_and_takes_no_further_job(fleet):
    for job in ("one", "two", "three"):
        fleet.publish(job, "pdf")
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")
    following = fleet.end("worker", claim)
    fleet.sequence -= 1  # the reply was lost
    assert fleet.end("worker", claim) == following
    assert list(fleet.claims("worker")) == [following[0].job_id]


def test_a_stale_fencing_number_changes_nothing(fleet):
    fleet.publish("job", "pdf")
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.requeue("worker", [(claim.job_id, claim.fence)], counted=False)
    (again,) = fleet.inbox("worker")
    assert again.fence != claim.fence
    fleet.end("worker", claim)
    fleet.scheduler.requeue("worker", [(claim.job_id, claim.fence)], counted=True)
    assert fleet.claims("worker") == {"job": again.fence}


# -- the ends of a claim


def test_an_acked_job_keeps_its_slot_until_its_release(fleet):
    fleet.publish("one", "pdf")
    fleet.publish("two", "pdf")
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.tell_ends("worker", acks=[(claim.job_id, claim.fence)], ends=[], sequence=1, inline=True)
    assert fleet.jobs("worker") == []
    fleet.sequence = 1
    (following,) = fleet.end("worker", claim, outcome="unsettled")
    assert following.job_id == "two"
    assert fleet.state("one") == "done"


def test_an_unsettled_end_brings_the_job_back_in_its_place_and_counts(fleet):
    fleet.publish("job", "pdf")
    fleet.scheduler.advance(10)
    fleet.publish("younger", "pdf")
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")
    fleet.scheduler.advance(10)
    (again,) = fleet.end("worker", claim, outcome="unsettled")
    assert (again.job_id, again.deliveries, again.enqueued_us) == ("job", 1, claim.enqueued_us)


def test_a_job_that_comes_back_too_often_is_a_dead_letter(fleet):
    fleet.publish("job", "pdf")
    fleet.join("worker", "pdf", settings={"max_deliveries": 3})
    (claim,) = fleet.inbox("worker")
    for _ in range(2):
        (claim,) = fleet.end("worker", claim, outcome="unsettled")
    assert fleet.end("worker", claim, outcome="unsettled") == []
    assert fleet.state("job") == "dead"


def test_the_dead_letters_are_bounded(fleet, redis_client):
    fleet.join("worker", "pdf", settings={"dead_max": 2})
    for number in range(4):
        fleet.scheduler.advance(1)
        fleet.publish(f"job{number}", "pdf")
        (claim,) = fleet.inbox("worker")
        fleet.end("worker", claim, outcome="rejected")
    assert redis_client.zrange(Keys().key("dead"), 0, -1) == [b"job2", b"job3"]
    assert not redis_client.exists(Keys().key("job", "job0"), Keys().key("message", "job0"))


# -- the life of a worker


def _silence(fleet, seconds):
    """Let time pass, ticked all the while: only then does silence count."""
    for _ in range(round(seconds)):
        fleet.scheduler.advance(1)
        ticked = fleet.scheduler.tick()
    return ticked


def test_a_silent_workers_jobs_are_pending_again_with_their_first_enqueue_time(fleet):
    fleet.publish("job", "pdf")
    fleet.join("silent", "pdf")
    (claim,) = fleet.inbox("silent")
    _silence(fleet, 29)
    assert fleet.claims("silent")
    _silence(fleet, 2)
    assert fleet.state("job") == "pending"
    fleet.join("healthy", "pdf")
    (again,) = fleet.inbox("healthy")
    assert (again.job_id, again.deliveries, again.enqueued_us) == ("job", 1, claim.enqueued_us)


def test_an_acked_job_of_a_dead_worker_is_lost_and_not_run_again(fleet):
    fleet.publish("job", "pdf")
    fleet.join("silent", "pdf")
    (claim,) = fleet.inbox("silent")
    fleet.scheduler.tell_ends("silent", acks=[(claim.job_id, claim.fence)], ends=[], sequence=1, inline=False)
    _silence(fleet, 31)
    fleet.join("healthy", "pdf")
    assert fleet.jobs("healthy") == []
    assert fleet.state("job") == "dead"


def test_a_late_release_of_a_dead_worker_is_a_no_op(fleet):
    fleet.publish("job", "pdf")
    fleet.join("silent", "pdf")
    (claim,) = fleet.inbox("silent")
    _silence(fleet, 31)
    assert fleet.end("silent", claim) == []
    assert fleet.state("job") == "pending"
    assert not fleet.sync("silent", {claim.job_id: claim.fence}).known


@pytest.mark.parametrize("seconds", [1000, 60, -60])
def test_an_outage_or_a_failover_to_another_clock_is_nobodys_death(fleet, seconds):
    fleet.publish("job", "pdf")
    fleet.join("worker", "pdf")
    fleet.scheduler.tick()
    fleet.scheduler.advance(seconds)  # no tick came meanwhile; or another server has another clock
    fleet.scheduler.tick()
    assert fleet.claims("worker")
    _silence(fleet, 29)
    assert fleet.claims("worker")


def test_a_worker_that_beats_is_never_taken_for_dead(fleet):
    fleet.publish("job", "pdf")
    fleet.join("worker", "pdf")
    for _ in range(20):
        _silence(fleet, 5)
        assert fleet.sync("worker").known
    assert fleet.claims("worker")


def test_nothing_is_left_of_a_fleet_that_is_gone(fleet, redis_client):
    before = set(redis_client.keys())
    fleet.join("one", "pdf", "excel", slots=4)
    fleet.join("two", "pdf")
    fleet.join("two", "pdf", "index")
    fleet.scheduler.leave("one")
    _silence(fleet, 31)
    left = set(redis_client.keys()) - before
    known = [Keys().key(name).encode() for name in ("settings", "conf", "clock", "schema")]
    assert left == {*known, Keys().key("conf_of", "").encode()}


def test_leaving_returns_what_is_held(fleet, redis_client):
    fleet.publish("job", "pdf")
    fleet.join("one", "pdf")
    fleet.join("two", "pdf")
    fleet.scheduler.leave("one")
    assert redis_client.zrange(Keys().key("beats"), 0, -1) == [b"two"]
    (claim,) = fleet.inbox("two")
    assert (claim.job_id, claim.deliveries) == ("job", 0)


def test_a_guards_beats_keep_a_worker_that_says_nothing_itself(fleet):
    fleet.publish("job", "pdf")
    fleet.join("worker", "pdf")
    for _ in range(20):
        _silence(fleet, 5)
        assert fleet.scheduler.beat("worker", turns=True)
    assert fleet.claims("worker")
    assert not fleet.scheduler.beat("stranger", turns=True)
    _silence(fleet, 31)
    assert not fleet.scheduler.beat("worker", turns=True), "it is dead"


def test_a_late_beat_does_not_stop_a_recovery_that_is_under_way(fleet):
    for number in range(60):
        fleet.publish(f"job{number:02}", "pdf")
    fleet.join("dead", "pdf", slots=60)
    again, recovered, _ = fleet.scheduler._run(load("recover"), worker="dead")
    assert (again, recovered) == (1, MOST_MOVES)
    assert not fleet.scheduler.beat("dead", turns=True)
    assert len(fleet.claims("dead")) == 60 - MOST_MOVES
    fleet.scheduler.advance(1)
    _silence(fleet, 31)
    assert not fleet.claims("dead"), "a tick goes on where the guard ended"


def test_a_worker_whose_loop_stands_still_gets_no_job_and_what_it_has_not_read_goes_elsewhere(fleet):
    for job in ("read", "unread"):
        fleet.publish(job, "pdf")
    fleet.join("stuck", "pdf", slots=3)
    read = Claim.parse(fleet.scheduler.client.rpop(Keys().key("inbox", "stuck")))
    fleet.join("other", "pdf", "excel")
    fleet.scheduler.beat("stuck", turns=False)
    assert fleet.claims("stuck") == {"read": read.fence}
    (elsewhere,) = fleet.inbox("other")
    assert (elsewhere.job_id, elsewhere.deliveries) == ("unread", 0)
    fleet.publish("new", "pdf")
    assert fleet.state("new") == "pending"
    fleet.scheduler.beat("stuck", turns=True)
    assert fleet.jobs("stuck") == ["new"]


def test_a_loop_that_takes_its_next_job_inline_turns_again(fleet):
    for job in ("long", "next", "third"):
        fleet.publish(job, "pdf")
    fleet.join("solo", "pdf")
    (claim,) = fleet.inbox("solo")
    fleet.scheduler.beat("solo", turns=False)
    assert fleet.end("solo", claim, inline=False) == []
    assert fleet.claims("solo") == {}, "another thread's word proves nothing"
    fleet.scheduler.beat("solo", turns=True)
    (claim,) = fleet.inbox("solo")
    fleet.scheduler.beat("solo", turns=False)
    (following,) = fleet.end("solo", claim, inline=True)
    assert following.job_id == "third"


def test_a_worker_that_joins_again_turns_again(fleet):
    fleet.join("worker", "pdf")
    fleet.scheduler.beat("worker", turns=False)
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    assert fleet.jobs("worker") == ["job"]


def test_a_reported_death_brings_every_job_back_at_once_and_what_was_acked_is_lost(fleet, redis_client):
    for number in range(120):
        fleet.publish(f"job{number:03}", "pdf")
    fleet.join("dead", "pdf", slots=120)
    first = fleet.inbox("dead")[0]
    fleet.scheduler.tell_ends("dead", acks=[(first.job_id, first.fence)], ends=[], sequence=1, inline=False)
    assert fleet.scheduler.recover("dead") == 120
    assert fleet.state(first.job_id) == "dead"
    assert redis_client.zcard(Keys().key("beats")) == 0
    fleet.join("healthy", "pdf", slots=200)
    again = fleet.inbox("healthy")
    assert len(again) == 119
    assert {claim.deliveries for claim in again} == {1}
    assert fleet.scheduler.recover("dead") == 0, "said twice"


def test_a_claim_is_asked_about_and_comes_back_only_when_it_is_renounced(fleet):
    fleet.publish("job", "pdf")
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")  # popped, and the reply was lost in its socket
    assert fleet.sync("worker", {}).asked == [], "it may be on its way"
    fleet.scheduler.advance(6)
    assert fleet.sync("worker", {}).asked == [(claim.job_id, claim.fence)]
    assert fleet.claims("worker")


def test_an_unread_job_comes_back_by_itself(fleet):
    fleet.publish("job", "pdf")
    fleet.join("blocked", "pdf")
    fleet.join("free", "pdf")
    (inbox,) = fleet.scheduler.client.lrange(Keys().key("inbox", "blocked"), 0, -1)
    assert inbox
    fleet.scheduler.advance(6)
    fleet.sync("blocked", {})
    assert fleet.jobs("free") == ["job"] or fleet.jobs("blocked") == ["job"]
    assert sum(len(fleet.claims(worker)) for worker in ("blocked", "free")) == 1


def test_a_draining_worker_returns_what_it_does_not_name_and_gets_nothing(fleet):
    for job in ("running", "unread"):
        fleet.publish(job, "pdf")
    fleet.join("worker", "pdf", slots=2)
    running = fleet.inbox("worker")[0]
    fleet.sync("worker", {running.job_id: running.fence}, slots=2, draining=True)
    assert fleet.state("unread") == "pending"
    fleet.publish("new", "pdf")
    assert fleet.claims("worker") == {"running": running.fence}


def test_a_worker_whose_pool_shrank_to_nothing_can_leave(fleet, redis_client):
    fleet.join("worker", "pdf", slots=1)
    fleet.sync("worker", slots=0)
    fleet.scheduler.leave("worker")
    assert redis_client.zcard(Keys().key("beats")) == 0


def test_a_namesake_is_named(fleet):
    assert fleet.join("one", "pdf").namesake is None
    assert fleet.scheduler.join(Joining("other", "one@host", ["pdf"], 1), {}).namesake == "one"


# -- many at once


def test_eight_publishers_and_eight_workers_at_once_run_each_of_20000_jobs_exactly_once(redis_client):
    jobs, publishers, runners = 20_000, 8, 8
    ran, lock = [], threading.Lock()
    pool = redis_client.connection_pool

    def client():
        import redis

        return redis.Redis(connection_pool=type(pool)(**pool.connection_kwargs))

    def publish(number):
        fleet = ScriptedFleet(Scheduler(client(), Keys()))
        for job in range(number, jobs, publishers):
            fleet.publish(f"job{job}", f"type{job % 5}", on_demand=job % 7 == 0, priority=job % 11)

    def run(number):
        fleet = ScriptedFleet(Scheduler(client(), Keys()))
        fleet.join(f"worker{number}", *(f"type{(number + step) % 5}" for step in range(1 + number % 5)), slots=4)
        mine, waiting = [], []
        while True:
            waiting += fleet.inbox(f"worker{number}")
            if not waiting:
                with lock:
                    if len(ran) >= jobs:
                        return
                continue
            claim = waiting.pop(0)
            mine.append(claim.job_id)
            with lock:
                ran.append(claim.job_id)
            waiting += fleet.end(f"worker{number}", claim)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(publishers)]
    threads += [threading.Thread(target=run, args=(n,)) for n in range(runners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ran) == sorted(f"job{job}" for job in range(jobs))


def test_a_purge_deletes_what_is_pending_and_what_waits_for_its_time_of_its_type_alone(fleet, redis_client):
    for number in range(250):
        fleet.publish(f"later{number}", "pdf" if number % 2 else "excel", delay_s=60)
        fleet.publish(f"now{number}", "pdf" if number % 2 else "excel")
    assert fleet.scheduler.purge("pdf") == 250
    assert fleet.scheduler.purge("pdf") == 0
    assert redis_client.zcard(fleet.scheduler.keys.key("scheduled")) == 125
    assert fleet.scheduler.purge("excel") == 250
    assert list(redis_client.scan_iter(fleet.scheduler.keys.key("job", "*"))) == []


def test_a_claim_whose_job_the_server_has_lost_ends_and_its_slot_is_free(fleet, redis_client):
    fleet.join("worker", "pdf")
    fleet.publish("lost", "pdf")
    fleet.publish("next", "pdf")
    (claim,) = fleet.inbox("worker")
    redis_client.delete(fleet.scheduler.keys.key("job", "lost"), fleet.scheduler.keys.key("message", "lost"))
    fleet.end("worker", claim)
    assert set(fleet.claims("worker")) == {"next"}
