"""Server functions on a real server: repeated invocations, ends of claims, concurrent clients, with a fake clock."""

import threading

import redis

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import MAX_PURGED
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet

# -- repeatable invocations


def test_repeated_publish_changes_nothing(fleet):
    assert fleet.publish("job", "pdf")
    assert not fleet.publish("job", "pdf", priority=9)
    assert fleet.order(1, "pdf") == ["job"]
    assert not fleet.publish("job", "pdf"), "known for a while after its end"
    assert not fleet.publish("job", "pdf", task_id="another"), "a link has a new task id when an end is told again"
    assert fleet.state("job") == "done"


def test_repeated_release_gets_the_same_reply_and_no_job(fleet):
    for job in ("one", "two", "three"):
        fleet.publish(job, "pdf")
    claim = fleet.join_and_claim("worker", "pdf")
    following = fleet.end("worker", claim)
    assert fleet.end("worker", claim, again=True) == following
    assert list(fleet.claims("worker")) == [following[0].job_id]


def test_stale_fencing_token_changes_nothing(fleet):
    fleet.publish("job", "pdf")
    claim = fleet.join_and_claim("worker", "pdf")
    fleet.scheduler.requeue("worker", [(claim.job_id, claim.fence)], counted=False)
    (again,) = fleet.inbox("worker")
    assert again.fence != claim.fence
    fleet.end("worker", claim)
    fleet.scheduler.requeue("worker", [(claim.job_id, claim.fence)], counted=True)
    assert fleet.claims("worker") == {"job": again.fence}


# -- the ends of a claim


def test_acked_job_keeps_its_slot_until_its_release(fleet):
    fleet.publish("one", "pdf")
    fleet.publish("two", "pdf")
    claim = fleet.join_and_claim("worker", "pdf")
    fleet.scheduler.release_and_claim("worker", acks=[(claim.job_id, claim.fence)], ends=[], sequence=1, inline=True)
    assert fleet.jobs("worker") == []
    fleet.sequence = 1
    (following,) = fleet.end("worker", claim, outcome="unsettled")
    assert following.job_id == "two"
    assert fleet.state("one") == "done"


def test_unsettled_job_is_requeued_in_order_and_counted(fleet):
    fleet.publish("job", "pdf")
    fleet.scheduler.advance(10)
    fleet.publish("younger", "pdf")
    claim = fleet.join_and_claim("worker", "pdf")
    fleet.scheduler.advance(10)
    (again,) = fleet.end("worker", claim, outcome="unsettled")
    assert (again.job_id, again.deliveries, again.enqueued_us) == ("job", 1, claim.enqueued_us)


def test_job_requeued_too_often_is_dead_lettered(fleet):
    fleet.publish("job", "pdf")
    claim = fleet.join_and_claim("worker", "pdf", settings={"max_deliveries": 3})
    for _ in range(2):
        (claim,) = fleet.end("worker", claim, outcome="unsettled")
    assert fleet.end("worker", claim, outcome="unsettled") == []
    assert fleet.state("job") == "dead"


def test_number_of_dead_letters_is_limited(fleet, redis_client):
    fleet.join("worker", "pdf", settings={"dead_max": 2})
    for number in range(4):
        fleet.scheduler.advance(1)
        fleet.publish(f"job{number}", "pdf")
        (claim,) = fleet.inbox("worker")
        fleet.end("worker", claim, outcome="rejected")
    assert redis_client.zrange(Keys().key("dead"), 0, -1) == [b"job2", b"job3"]
    assert not redis_client.exists(Keys().key("job", "job0"), Keys().key("message", "job0"))


def test_unnamed_claim_is_requeued_only_by_its_worker(fleet):
    fleet.publish("job", "pdf")
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")  # popped, but the reply was lost in the socket
    assert fleet.sync("worker", {}).unnamed == [], "it may be on its way"
    fleet.scheduler.advance(6)
    assert fleet.sync("worker", {}).unnamed == [(claim.job_id, claim.fence)]
    assert fleet.claims("worker")


def test_returned_claim_is_counted_once(fleet):
    fleet.publish("job", "pdf")
    fleet.join("worker", "pdf")
    ((claim,), stale) = fleet.inbox("worker"), ("job", "0")
    fleet.sync("worker", {claim.job_id: claim.fence}, draining=True)
    for count in (1, 0):
        assert fleet.scheduler.requeue("worker", [(claim.job_id, claim.fence), stale], counted=False) == count


def test_unread_job_is_requeued_automatically(fleet):
    fleet.publish("job", "pdf")
    fleet.join("blocked", "pdf")
    fleet.join("free", "pdf")
    (inbox,) = fleet.scheduler.client.lrange(Keys().key("inbox", "blocked"), 0, -1)
    assert inbox
    fleet.scheduler.advance(6)
    fleet.sync("blocked", {})
    assert fleet.jobs("free") == ["job"] or fleet.jobs("blocked") == ["job"]
    assert sum(len(fleet.claims(worker)) for worker in ("blocked", "free")) == 1


# -- concurrent clients


def test_concurrent_clients_run_each_of_8000_jobs_once(redis_client):
    jobs, publishers, runners = 8_000, 8, 8
    ran, lock = [], threading.Lock()
    pool = redis_client.connection_pool

    def client():
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


def test_purge_repeats_until_no_job_is_pending(fleet):
    for number in range(2 * MAX_PURGED + 1):
        fleet.publish(f"now{number}", "pdf")
    assert fleet.scheduler.purge("pdf") == 2 * MAX_PURGED + 1


def test_purge_deletes_pending_and_scheduled_jobs_of_one_type(fleet, redis_client):
    for number in range(250):
        fleet.publish(f"later{number}", "pdf" if number % 2 else "excel", delay_s=60)
        fleet.publish(f"now{number}", "pdf" if number % 2 else "excel")
    assert fleet.scheduler.purge("pdf") == 250
    assert fleet.scheduler.purge("pdf") == 0
    assert redis_client.zcard(fleet.scheduler.keys.key("scheduled")) == 125
    assert fleet.scheduler.purge("excel") == 250
    assert list(redis_client.scan_iter(fleet.scheduler.keys.key("job", "*"))) == []


def test_end_of_a_lost_jobs_claim_frees_its_slot(fleet, redis_client):
    fleet.join("worker", "pdf")
    fleet.publish("lost", "pdf")
    fleet.publish("next", "pdf")
    (claim,) = fleet.inbox("worker")
    redis_client.delete(fleet.scheduler.keys.key("job", "lost"), fleet.scheduler.keys.key("message", "lost"))
    fleet.end("worker", claim)
    assert set(fleet.claims("worker")) == {"next"}
