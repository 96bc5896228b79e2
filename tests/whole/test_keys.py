"""Jobs with exclusive keys on real workers; simultaneous runs are counted outside the broker."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from os import kill

import pytest
from celery import chain
from celery.exceptions import TaskRevokedError, WorkerLostError

from celery_affinity import Exclusive, Rate
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.keys_left import keys_of_rules
from ..support.processes import wait_until

#: Max seconds until a job with a free key starts; far below the worker timeout.
AT_ONCE_S = 8


def start(fleet, *workers):
    """Start workers (name, queue, options, other queues) in parallel."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda each: fleet.start(*each[:2], *each[3:], **each[2]), workers))


def send(fleet, job, seconds=0.0, *, key=None, task="late", type_="pdf", **options):
    return fleet.tasks[task].apply_async((job, seconds), affinity=type_, exclusive=key, **options)


def most_at_once(fleet, key):
    running, most = 0, 0
    for entry in fleet.ledger.entries():
        if entry.key == key:
            running += 1 if entry.event == "start" else -1
            most = max(most, running)
    return most


def started(fleet):
    return [entry.job for entry in fleet.ledger.entries() if entry.event == "start"]


def wait_for_start(fleet, job, within_s=AT_ONCE_S):
    wait_until(lambda: job in started(fleet), within_s, f"{job} starts; so far {started(fleet)}")


def wait_for_no_keys(fleet):
    wait_until(lambda: not keys_of_rules(fleet.redis), 5, "no key is left")


def test_key_limits_simultaneous_runs_in_all_pools(fleet):
    pools = {"prefork": 3, "threads": 3, "solo": 1, "gevent": 3}
    start(fleet, *((pool, "pdf", {"pool": pool, "concurrency": slots}) for pool, slots in pools.items()))
    results, scheduler = [], Scheduler(fleet.redis, Keys())
    scheduler.pause("type:pdf")  # on a slow machine, jobs would otherwise end as fast as they are published
    for number in range(24):
        task = ("early", "late")[number % 2]
        results.append(send(fleet, f"one-{number}", 0.05, key="one", task=task))
        results.append(send(fleet, f"pair-{number}", 0.05, key=Exclusive("pair", 2), task=task))
        results.append(send(fleet, f"free-{number}", 0.05, task=task))
    scheduler.resume("type:pdf")
    for result in results:
        result.get(timeout=30)
    assert (most_at_once(fleet, "one"), most_at_once(fleet, "pair")) == (1, 2)
    fences = [each.fence for each in fleet.ledger.entries() if each.key == "one" and each.event == "start"]
    assert fences == sorted(set(fences)), "a storage that checks fences would reject no run"
    order = started(fleet)
    assert order.index("free-23") < order.index("one-23"), "jobs without the key do not wait for it"
    assert set(fleet.ledger.starts().values()) == {1}
    wait_for_no_keys(fleet)


def test_killed_worker_frees_its_keys_immediately(fleet):
    types = {"prefork": "excel", "threads": "index", "solo": "mail"}
    start_victims = [(pool, type_, {"pool": pool, "concurrency": 2}) for pool, type_ in types.items()]
    *victims, _ = start(fleet, *start_victims, ("other", "pdf", {"pool": "threads", "concurrency": 6}))
    held = [(f"{pool}-{task}", task, type_) for pool, type_ in types.items() for task in ("early", "late")]
    held.remove(("solo-late", "late", "mail"))
    for name, task, type_ in held:
        send(fleet, f"holds-{name}", 60, key=name, task=task, type_=type_)
    for name, _, _ in held:
        wait_for_start(fleet, f"holds-{name}")
        send(fleet, f"waits-{name}", key=name)
    assert not [job for job in started(fleet) if job.startswith("waits")]
    for victim in victims:
        victim.kill()
    for name, _, _ in held:
        wait_for_start(fleet, f"waits-{name}")


def test_killed_pool_process_frees_its_keys_immediately(fleet):
    start(fleet, ("worker", "pdf", {"concurrency": 3}))
    holding = {task: send(fleet, f"holds-{task}", 60, key=task, task=task) for task in ("early", "late")}
    for task in holding:
        wait_for_start(fleet, f"holds-{task}")
        send(fleet, f"waits-{task}", key=task)
    for entry in fleet.ledger.entries():
        kill(entry.pid, signal.SIGKILL)
    for task, result in holding.items():
        wait_for_start(fleet, f"waits-{task}")
        with pytest.raises(WorkerLostError):
            result.get(timeout=5)


def test_unsuccessful_jobs_free_their_keys(fleet):
    start(fleet, ("worker", "pdf", {"concurrency": 4}), ("threads", "excel", {"pool": "threads", "concurrency": 4}))
    app = fleet.app
    holder = send(fleet, "holds", 2, key="busy")
    wait_for_start(fleet, "holds")
    revoked = send(fleet, "revoked", key="busy")
    expired = send(fleet, "expired", key="busy", type_="excel", expires=0.4)
    app.control.revoke(revoked.id)
    last = send(fleet, "last", key="busy", type_="excel")
    failing = fleet.tasks["fail"].apply_async(("fails",), exclusive="failing")
    stopped = send(fleet, "stopped", 60, key="stopped")
    wait_for_start(fleet, "stopped")
    app.control.revoke(stopped.id, terminate=True, signal="SIGKILL")
    assert send(fleet, "after-the-stop", key="stopped").get(timeout=AT_ONCE_S)
    with pytest.raises(ValueError, match="fails"):
        failing.get(timeout=AT_ONCE_S)
    assert send(fleet, "after-the-failure", key="failing").get(timeout=AT_ONCE_S)
    for result in (revoked, expired):
        with pytest.raises(TaskRevokedError):
            result.get(timeout=AT_ONCE_S)
    assert (holder.get(timeout=AT_ONCE_S), last.get(timeout=AT_ONCE_S)) == ("holds", "last")
    assert not {"revoked", "expired"} & set(started(fleet))
    assert most_at_once(fleet, "busy") == 1
    wait_for_no_keys(fleet)


def test_retry_frees_its_key_unless_order_is_kept(fleet):
    start(fleet, ("worker", "pdf", {"pool": "threads", "concurrency": 4}))
    first = {}
    for name, keeps in (("frees", False), ("keeps", True)):
        key = Exclusive(name, keep_order=keeps)
        first[name] = fleet.tasks["retry"].apply_async((name, 1.0), exclusive=key)
        wait_for_start(fleet, name)
        first[f"{name}-next"] = send(fleet, f"{name}-next", key=key)
    for result in first.values():
        result.get(timeout=AT_ONCE_S)
    order = started(fleet)
    assert [job for job in order if job.startswith("frees")] == ["frees", "frees-next", "frees"]
    assert [job for job in order if job.startswith("keeps")] == ["keeps", "keeps", "keeps-next"]
    wait_for_no_keys(fleet)


def test_chain_and_scheduled_job_share_one_key(fleet):
    start(fleet, ("one", "pdf", {"pool": "threads", "concurrency": 4}), ("two", "excel", {"pool": "solo"}))
    late = send(fleet, "due-later", 0.1, key="chain", countdown=3)  # s, enough to publish the chain on a slow machine
    steps = [
        fleet.tasks["pdf"].si(f"step-{number}", 0.3).set(affinity=("pdf", "excel")[number % 2], exclusive="chain")
        for number in range(4)
    ]
    assert chain(*steps)().get(timeout=15) == "step-3"
    assert late.get(timeout=3 + AT_ONCE_S) == "due-later"
    order = started(fleet)
    assert order.index("step-0") < order.index("due-later")
    assert most_at_once(fleet, "chain") == 1


def test_stopping_worker_passes_its_keys_to_others(fleet):
    drained, stopped, _ = start(
        fleet,
        ("drained", "excel", {"pool": "threads", "concurrency": 2}),
        ("stopped", "index", {"concurrency": 2}),
        ("other", "pdf", {"pool": "solo"}),
    )
    for type_ in ("excel", "index"):
        send(fleet, f"holds-{type_}", 4, key=type_, type_=type_)  # s, longer than it takes to stop both
        wait_for_start(fleet, f"holds-{type_}")
        send(fleet, f"waits-{type_}", key=type_, type_=type_)
        send(fleet, f"goes-{type_}", key=type_)
    (reply,) = fleet.app.control.broadcast("affinity_drain", destination=[_node(fleet, "drained")], reply=True)
    assert "ok" in next(iter(reply.values()))
    stopped.term()
    for type_ in ("excel", "index"):
        wait_for_start(fleet, f"goes-{type_}")
    assert not {"waits-excel", "waits-index"} & set(started(fleet)), "no other worker serves their types"
    assert fleet.ledger.ends()["holds-excel"] == fleet.ledger.ends()["holds-index"] == 1
    assert stopped.wait(15) == 0
    drained.term()


def _node(fleet, name):
    return next(each.name for each in fleet.report.status().workers if each.name.startswith(name))


@pytest.mark.parametrize("patience_s", [0.5, None])
def test_key_patience_prevents_starvation_of_a_type(fleet, patience_s):
    options = {"pool": "threads", "CONF": json.dumps({"affinity_key_patience": patience_s})}
    start(fleet, ("videos", "pdf", options), ("reports", "excel", options))
    videos = 30 if patience_s is None else 80  # many more than start before the report
    scheduler = Scheduler(fleet.redis, Keys())
    for type_ in ("pdf", "excel"):
        scheduler.pause(f"type:{type_}")  # on a slow machine, videos would otherwise end as fast as they are published
    flood = [send(fleet, f"video-{number}", 0.1, key="scene") for number in range(videos)]
    for number in range(2 * videos):
        send(fleet, f"other-{number}", 0.1, type_="excel")
    for type_ in ("pdf", "excel"):
        scheduler.resume(f"type:{type_}")
    wait_for_start(fleet, "video-0")
    wait_for_start(fleet, "other-0")
    report = send(fleet, "report", key="scene", type_="excel", on_demand=True)
    assert report.get(timeout=30) == "report"
    is_last = f"video-{videos - 1}" in started(fleet)
    assert is_last == (patience_s is None), "without patience, videos keep taking the key"
    if patience_s is None:
        flood[-1].get(timeout=30)
    assert most_at_once(fleet, "scene") == 1


def test_lookahead_skips_jobs_with_keys(fleet):
    conf = json.dumps({"affinity_lookahead": 8})
    start(fleet, ("ahead", "pdf", {"pool": "threads", "CONF": conf}))
    send(fleet, "long", 60)
    wait_for_start(fleet, "long")
    for number in range(4):
        send(fleet, f"job-{number}", key=f"key-{number}")
        send(fleet, f"plain-{number}")
    time.sleep(0.2)
    held = fleet.redis.keys("*lane:key:held:*")
    assert not held, "a waiting job would hold a key"
    start(fleet, ("other", "pdf", {"pool": "solo"}))
    for number in range(4):
        wait_for_start(fleet, f"job-{number}")
    assert not fleet.ledger.ends()["long"]


def test_rate_limits_starts_in_the_whole_fleet(fleet):
    slots = {"pool": "threads", "concurrency": 4}
    start(fleet, ("one", "pdf", slots), ("two", "pdf", slots))
    began_s = time.time()
    results = [fleet.tasks["late"].apply_async((f"job-{n}",), rate=Rate("5/s", "calls")) for n in range(15)]
    free = [send(fleet, f"free-{number}") for number in range(5)]
    for result in free:
        result.get(timeout=1.5)
    for result in results:
        result.get(timeout=15)
    times_s = [entry.time_s for entry in fleet.ledger.entries() if entry.key and entry.event == "start"]
    assert len(times_s) == 15
    assert all(number <= 5 + 5 * (at_s - began_s) for number, at_s in enumerate(times_s, start=1))
    assert times_s[-1] - began_s < 2 + AT_ONCE_S
    wait_for_no_keys(fleet)


@pytest.mark.parametrize("others", [(), ("index",)])
def test_job_waiting_for_celerys_rate_limit_holds_no_key(fleet, others):
    limited = {"pool": "threads", "concurrency": 3, "RATE_LIMIT": "15/m"}
    worker, _ = start(fleet, ("limited", "mail", limited, *others), ("other", "pdf", {"pool": "solo"}))
    fleet.tasks["mail"].delay("mail-first").get(timeout=AT_ONCE_S)
    mails = [fleet.tasks["mail"].apply_async((f"mail-{key}",), exclusive=key) for key in ("a", "b")]
    wait_until(lambda: "is returned to its queue" in worker.log(), 5, "they are given back")
    for key in ("a", "b"):
        send(fleet, f"pdf-{key}", key=key)
    for key in ("a", "b"):
        wait_for_start(fleet, f"pdf-{key}", 2)
    assert sorted(started(fleet)) == ["mail-first", "pdf-a", "pdf-b"], "mails wait for the rate limit"
    fence = int(fleet.redis.get(Keys().key("fence")))
    for result in mails:
        result.get(timeout=12)
    assert int(fleet.redis.get(Keys().key("fence"))) - fence <= 3, "they are not claimed repeatedly"
    times_s = [each.time_s for each in fleet.ledger.entries() if each.job.startswith("mail") and each.event == "start"]
    assert times_s[2] - times_s[0] < 8 * 1.4, "each token is used immediately"
    wait_until(fleet.all_slots_are_free, 5, "no slot is lost")
    wait_for_no_keys(fleet)
