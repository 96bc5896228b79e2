"""If a server at `maxmemory` refuses writes, a worker keeps its connection, rejoins after a loss, and logs little."""

import pytest

from ..support.broadcasts import CHANNEL, TO_NOBODY, command
from ..support.fleet import POOLS_IN_TIME
from ..support.full_server import full_server
from ..support.processes import wait_until

PING = command("ping", {}, **TO_NOBODY)


def runs_jobs(fleet, worker, jobs):
    wait_until(lambda: set(map(str, jobs)) <= set(fleet.ledger.ends()), 20, f"{jobs} run\n{worker.log()[-6000:]}")


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_worker_keeps_its_connection_when_a_reply_is_refused(fleet, pool):
    worker = fleet.start("worker", "pdf", pool=pool)
    fleet.redis.sadd("_kombu.binding.reply.celery.pidbox", "nobody\x06\x16\x06\x16nobody.reply.celery.pidbox")
    for job in range(2):
        fleet.tasks["late"].apply_async((job, 0.5), ignore_result=True)
    wait_until(lambda: fleet.redis.publish(CHANNEL, PING), 20, "the worker listens")
    with full_server(fleet.redis):
        for bad in (PING, command("ping", {}, destination=7)):  # for both, Celery would create a new consumer
            fleet.redis.publish(CHANNEL, bad)
        worker.wait_for("A reply to remote control is dropped, because the server rejects it: OperationalError", 20)
        runs_jobs(fleet, worker, range(2))
    assert "Connection to broker lost" not in worker.log()
    assert "Cannot connect to" not in worker.log()


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_worker_rejoins_a_full_server_after_a_lost_connection(fleet, pool):
    worker = fleet.start("worker", "pdf", pool=pool)
    worker.wait_ready(30)
    for job in range(3):
        fleet.tasks["late"].apply_async((job, 0.5), ignore_result=True)
    with full_server(fleet.redis):
        for kind in ("normal", "pubsub"):
            fleet.redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        worker.wait_for("celery_affinity: joined again", 20)
        runs_jobs(fleet, worker, range(3))
    assert "Cannot connect to" not in worker.log()


def test_full_server_logs_one_line_per_canceled_job(fleet):
    worker = fleet.start("worker", "pdf")
    worker.wait_ready(30)
    ids = [fleet.tasks["excel"].delay(job).id for job in range(3)]  # fewer than the log limit per second
    with full_server(fleet.redis):
        fleet.app.control.revoke(ids)
        wait_until(
            lambda: all(f"The caller of task {each} cannot get the outcome " in worker.log() for each in ids),
            30,
            f"the results are refused\n{worker.log()[-3000:]}",
        )
        log = worker.log()
    assert "Traceback" not in log, log[-3000:]
    told = [line for line in log.splitlines() if "OutOfMemoryError" in line]
    assert len(told) == len([line for line in told if "cannot get the outcome" in line])
