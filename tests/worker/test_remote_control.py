"""Remote control: Celery's own commands and the additional ones."""

import json
import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from ..support.apps import APP
from ..support.fleet import in_time
from ..support.processes import run_celery, start_worker, wait_until, wait_until_it_listens


def start(fleet, *args, **kwargs):
    """Start a worker, and wait until it receives commands."""
    worker = fleet.start(*args, **kwargs)
    worker.wait_ready(30)
    wait_until_it_listens(fleet.app, args[0])
    return worker


def inspect(fleet, command, workers=1, **arguments):
    """Return the workers' replies by the first part of their names, sorted."""
    replies = fleet.app.control.broadcast(command, arguments=arguments, reply=True, timeout=10, limit=workers)
    merged = {name.partition("@")[0]: answer for reply in replies for name, answer in reply.items()}
    assert len(merged) == workers
    return dict(sorted(merged.items()))


def ask(fleet, command, **arguments):
    (answer,) = inspect(fleet, command, **arguments).values()
    return answer


def told(fleet, worker):
    """Return the server's facts about a worker."""
    return next(each for each in fleet.report.status().workers if each.name.startswith(worker))


def test_scheduled_jobs_are_listed_once_in_celerys_format(fleet):
    first = start(fleet, "first", "pdf", pool="threads", heartbeat_s=0.5)
    start(fleet, "second", "pdf", pool="threads", heartbeat_s=0.5)
    eta = datetime.now(UTC) + timedelta(hours=1)
    later = fleet.tasks["pdf"].apply_async(("later",), {"seconds": 0.5}, eta=eta, priority=3)
    even_later = fleet.tasks["pdf"].apply_async(("even later",), countdown=7200)
    pending = fleet.tasks["index"].delay("pending")

    replies = inspect(fleet, "scheduled", workers=2)
    assert replies["second"] == []
    one, two = replies["first"]
    assert (one["eta"], one["priority"], one["request"]["id"]) == (eta.isoformat(), 6, later.id)
    assert two["request"]["id"] == even_later.id
    assert one["request"] == {
        "id": later.id,
        "name": f"{APP}.pdf",
        "args": ["later"],
        "kwargs": {"seconds": 0.5},
        "type": f"{APP}.pdf",
        "hostname": told(fleet, "first").name,
        "time_start": None,
        "acknowledged": False,
        "delivery_info": {"exchange": "", "routing_key": "pdf", "priority": 3, "redelivered": False},
        "worker_pid": None,
    }
    asked = inspect(fleet, "query_task", workers=2, ids=[later.id, pending.id, "unknown"])
    assert asked["second"] == {}
    assert {task: state for task, (state, _) in asked["first"].items()} == {
        later.id: "scheduled",
        pending.id: "pending",
    }

    first.signal(signal.SIGSTOP)
    wait_until(lambda: len(inspect(fleet, "scheduled")["second"]) == 2, 10, "the other one lists them")


def test_stock_commands_get_their_usual_replies(fleet):
    start(fleet, "worker", "pdf", "index", pool="prefork", concurrency=2)
    running = fleet.tasks["pdf"].delay("running", 30)
    wait_until(lambda: fleet.ledger.starts()["running"], 10, "it runs")
    assert ask(fleet, "ping") == {"ok": "pong"}
    assert [each["id"] for each in ask(fleet, "active")] == [running.id]
    assert ask(fleet, "reserved") == []
    assert ask(fleet, "query_task", ids=[running.id])[running.id][0] == "active"
    assert f"{APP}.pdf" in ask(fleet, "registered")
    assert sorted(each["name"] for each in ask(fleet, "active_queues")) == ["index", "pdf"]
    assert ask(fleet, "conf")["broker_transport"] == "celery_affinity:Transport"
    assert "celery_affinity" in ask(fleet, "report")["ok"]
    stats = ask(fleet, "stats")
    ours = {"worker": told(fleet, "worker").id, "slots": 2, "claims": 1, "lent": 0}
    assert ours.items() <= stats["affinity"].items()


def test_inspect_affinity_prints_json_on_the_command_line(fleet):
    worker = start(fleet, "worker", "mail", "pdf", pool="threads", concurrency=2, RATE_LIMIT="1/m")
    mails = [fleet.tasks["mail"].delay(f"mail-{number}") for number in range(4)]
    wait_until(lambda: told(fleet, "worker").withdrawn == ["mail"], 5, "they wait")
    env = {**os.environ, "BROKER_URL": fleet.url, "LEDGER": os.devnull}
    run = run_celery(*f"-A {APP} inspect affinity --json --timeout 10".split(), env=env)
    assert run.returncode == 0, run.stderr + worker.log()
    (found,) = json.loads(run.stdout.splitlines()[-1] if run.stdout.count("\n") else run.stdout).values()
    claims, settings = found.pop("claims"), found.pop("settings")
    assert found == {
        "worker": told(fleet, "worker").id,
        "types": ["mail", "pdf"],
        "withdrawn": ["mail"],
        "slots": 2,
        "free": 2,
        "priority": 0,
        "hints": {},
        "lent": len(claims),
        "stops": "",
        "drained": False,
        "stalled": False,
    }
    assert settings["affinity_worker_timeout"] == 30
    assert {each["task"] for each in claims} < {each.id for each in mails}
    assert {(each["type"], each["running_s"]) for each in claims} == {("mail", None)}
    assert all(0 <= each["age_s"] < 30 for each in claims)


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_drained_worker_finishes_running_jobs_and_takes_none(fleet, pool):
    worker = start(fleet, "worker", "mail", "pdf", pool=pool, concurrency=2, heartbeat_s=0.5, RATE_LIMIT="1/m")
    mails = [fleet.tasks["mail"].delay(f"mail-{number}") for number in range(3)]
    running = fleet.tasks["late"].delay("running", 4)
    wait_until(lambda: set(fleet.ledger.starts()) == {"mail-0", "running"}, 10, "both run")
    wait_until(lambda: told(fleet, "worker").withdrawn == ["mail"], 5, "the others wait")
    assert ask(fleet, "affinity_drain") == {"ok": "takes no new jobs; 2 returned to the queue, 1 running"}
    waiting = fleet.tasks["pdf"].delay("waiting")
    wait_until(lambda: [each.pending for each in fleet.report.status().types] == [2, 1], 5, "all else is pending")
    assert all(each.unserved for each in fleet.report.status().types)
    assert ask(fleet, "affinity")["drained"]
    assert ask(fleet, "affinity_resume") == {"ok": "takes jobs"}
    assert waiting.get(timeout=3) == "waiting"
    assert running.get(timeout=10) == "running"
    ask(fleet, "rate_limit", task_name=f"{APP}.mail", rate_limit="0")
    for result in mails:
        result.get(timeout=10)
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert set(fleet.ledger.starts().values()) == {1}
    assert "no longer" not in worker.log()


def test_worker_priority_is_set_at_start_and_run_time(fleet):
    start(fleet, "worker", "pdf", pool="solo", timeout_s=120, heartbeat_s=60, CELERY_AFFINITY_PRIORITY="-3")
    assert told(fleet, "worker").priority == ask(fleet, "affinity")["priority"] == -3
    assert ask(fleet, "affinity_priority", priority=7) == {"ok": "has priority 7"}
    wait_until(lambda: told(fleet, "worker").priority == 7, 10, "the server knows")
    assert ask(fleet, "affinity_priority", priority=1001)["error"] == (
        "priority must be a whole number from -1000 to 1000, got: 1001"
    )


def test_commands_fail_in_a_worker_of_another_transport(fleet):
    env = {"LEDGER": str(fleet.ledger.path), "TRANSPORT": "redis"}
    start_worker(APP, fleet.url, ["pdf"], pool="solo", env=env).wait_ready(30)
    assert ask(fleet, "affinity") == {"error": "this worker's broker_transport is 'redis'"}
    assert ask(fleet, "affinity_drain") == ask(fleet, "affinity_resume") == ask(fleet, "affinity")
    assert ask(fleet, "scheduled") == []


# -- the pool, the queues, the limits


def test_pool_size_changes_reach_the_server_immediately(fleet):
    start(fleet, "worker", "pdf", timeout_s=120, heartbeat_s=60)  # no heartbeat reports its size
    assert ask(fleet, "pool_grow", n=2) == {"ok": "pool will grow"}
    wait_until(lambda: told(fleet, "worker").slots == 3, 10, "it has three slots")
    results = [fleet.tasks["pdf"].delay(f"job-{number}", 3) for number in range(3)]
    wait_until(lambda: len(fleet.ledger.starts()) == 3, 10, "all run")
    assert not fleet.ledger.ends(), "at once"
    for result in results:
        result.get(timeout=10)
    # A result exists before the pool knows that its process is idle. Celery ends only idle processes.
    wait_until(lambda: "ok" in ask(fleet, "pool_shrink", n=told(fleet, "worker").slots - 1), 10, "the pool shrinks")
    wait_until(lambda: told(fleet, "worker").slots == 1, 10, "it has one slot")
    assert [fleet.tasks["pdf"].delay(job).get(timeout=5) for job in "ab"] == ["a", "b"]
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")


def test_autoscale_grows_shrinks_and_changes_its_limits(fleet):
    env = {"LEDGER": str(fleet.ledger.path), "AUTOSCALE_KEEPALIVE": "1"}
    env |= {"WORKER_TIMEOUT": "120", "HEARTBEAT_INTERVAL": "60"}  # no heartbeat reports its size
    worker = start_worker(APP, fleet.url, ["pdf"], name="worker", extra=["--autoscale", "3,1"], env=env)
    worker.wait_ready(30)
    wait_until_it_listens(fleet.app, "worker")
    assert told(fleet, "worker").slots == 3
    assert ask(fleet, "stats")["autoscaler"]["current"] == 1
    results = [fleet.tasks["pdf"].delay(f"job-{number}", 4) for number in range(3)]
    wait_until(lambda: len(fleet.ledger.starts()) == 3, 10, "all run")
    assert not fleet.ledger.ends(), "at once"
    for result in results:
        result.get(timeout=10)
    wait_until(lambda: ask(fleet, "stats")["autoscaler"]["current"] == 1, 15, "it has shrunk")
    assert ask(fleet, "autoscale", max=2, min=1) == {"ok": "autoscale now max=2 min=1"}
    wait_until(lambda: told(fleet, "worker").slots == 2, 10, "the server knows")
    assert ask(fleet, "autoscale", max=4, min=2) == {"ok": "autoscale now max=4 min=2"}
    wait_until(lambda: told(fleet, "worker").slots == 4, 10, "the server knows")
    more = [fleet.tasks["pdf"].delay(f"more-{number}", 4) for number in range(4)]
    wait_until(lambda: len(fleet.ledger.starts()) == 7, 10, "all run")
    assert len(fleet.ledger.ends()) == 3, "at once"
    for result in more:
        result.get(timeout=10)
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")


def test_added_and_cancelled_consumers_change_the_served_types(fleet):
    start(fleet, "worker", "pdf", pool="gevent")
    job = fleet.tasks["index"].delay("index")
    ask(fleet, "add_consumer", queue="index")
    assert job.get(timeout=5) == "index"
    assert told(fleet, "worker").types == ["index", "pdf"]
    for queue in ("index", "pdf"):
        ask(fleet, "cancel_consumer", queue=queue)
    wait_until(lambda: told(fleet, "worker").types == [], 5, "it serves nothing")
    waiting = fleet.tasks["pdf"].delay("pdf")
    ask(fleet, "add_consumer", queue="pdf")
    assert waiting.get(timeout=5) == "pdf"


def test_new_time_limit_applies_to_the_next_task(fleet):
    start(fleet, "worker", "pdf", pool="prefork")
    fleet.tasks["pdf"].delay("before").get(timeout=10)
    assert ask(fleet, "time_limit", task_name=f"{APP}.pdf", soft=None, hard=1)["ok"]
    result = fleet.tasks["pdf"].delay("job", 30)
    wait_until(lambda: result.state == "FAILURE", 10, "it is stopped")
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")


def test_restarted_pool_loses_no_job_and_no_slot(fleet):
    start(fleet, "worker", "pdf", pool="prefork", concurrency=2, POOL_RESTARTS="1")
    running = fleet.tasks["late"].delay("running", 2)
    wait_until(lambda: fleet.ledger.starts()["running"], 10, "it runs")
    assert ask(fleet, "pool_restart", modules=["examples"]) == {"ok": "reload started"}
    results = [fleet.tasks["pdf"].delay(f"job-{number}") for number in range(4)]
    for result in (running, *results):
        result.get(timeout=15)
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert set(fleet.ledger.starts().values()) == {1}


def test_remote_shutdown_returns_waiting_jobs(fleet):
    worker = start(fleet, "worker", "pdf", pool="prefork")
    running = fleet.tasks["pdf"].delay("running", 2)
    fleet.tasks["pdf"].delay("waiting")
    wait_until(lambda: fleet.ledger.starts()["running"], 10, "it runs")
    fleet.app.control.shutdown()
    assert worker.wait(15) == 0
    assert running.get(timeout=1) == "running"
    assert [each.pending for each in fleet.report.status().types] == [1]
    assert fleet.report.status().workers == []
