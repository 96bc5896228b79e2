"""After a task's body, its slot becomes free and the server soon learns of the end, regardless of errors."""

import json
from collections import Counter
from time import sleep

import pytest

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.reports import dead_letters
from celery_affinity.reports.explain import explain
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.fleet import POOLS, Pools, closing
from ..support.processes import wait_until

ENDS = "tests.support.apps.ends"
OURS = "celery_affinity:Transport"


#: The tests of merged calls cover an outage of only the result server, too.
ELSEWHERE = pytest.param("elsewhere", marks=pytest.mark.slow)


@pytest.mark.parametrize("results", ["on the broker's server", ELSEWHERE])
def test_outage_of_the_result_backend_stops_no_pool(tmp_path, results):
    with (
        EmbeddedServer(directory=tmp_path / "broker", options=("--appendonly", "yes")) as broker,
        EmbeddedServer(directory=tmp_path / "results", options=("--appendonly", "yes")) as backend,
    ):
        killed = broker if results == "on the broker's server" else backend
        with closing(Pools(APP, broker, tmp_path, RESULT_URL=killed.url)) as pools:
            jobs = {f"{pool}-{task}-{n}" for pool in POOLS for task in ("early", "late") for n in range(30)}
            for job in sorted(jobs, key=lambda each: int(each.rpartition("-")[2])):
                pool, task, n = job.split("-")
                pools.send(task, job, pool, 0.02 + 0.005 * (int(n) % 10))
            wait_until(lambda: len(pools.ledger.ends()) > len(jobs) / 6, 30, "a good part has ended")
            killed.kill()
            sleep(1.5)  # the outage
            killed.start()
            wait_until(lambda: set(pools.ledger.ends()) == jobs, 40, f"all end\n{pools.logs()}")
            wait_until(pools.all_slots_are_free, 20, f"all slots are free\n{pools.logs()}")
            assert set(pools.ledger.starts().values()) == {1}
            assert sum(each.pending for each in pools.status().types) == 0
            assert pools.active() == []


def test_ends_during_an_outage_are_reported_immediately_after_it(tmp_path, valkey):
    """Celery reconnects only seconds later: it tries after 2 s, after 4 s more and after 6 s more."""
    with (
        EmbeddedServer(directory=tmp_path / "broker", options=("--appendonly", "yes")) as broker,
        closing(Pools(APP, broker, tmp_path, RESULT_URL=valkey.url)) as pools,
    ):
        jobs = {f"{pool}-{task}" for pool in POOLS for task in ("early", "late")} - {"solo-late"}
        for job in jobs:
            pool, task = job.split("-")
            pools.send(task, job, pool, 2)
        wait_until(lambda: set(pools.ledger.starts()) == jobs, 20, "all run")
        broker.kill()
        wait_until(lambda: set(pools.ledger.ends()) == jobs, 20, "all end")
        wait_until(lambda: "in 6.00 seconds" in pools.workers["prefork"].log(), 60, "it waits long for its next try")
        broker.start()
        wait_until(lambda: not pools.claims(), 3, f"all are told\n{pools.logs()}")
        assert pools.ledger.starts() == dict.fromkeys(jobs, 1)
        wait_until(pools.all_slots_are_free, 20, f"all are back\n{pools.logs()}")


#: Task that fails after its body -> number of runs if acked late: 2 if the end of the job could not be recorded.
FAILS = {
    "on_failure_fails": 1,
    "on_failure_exits": 1,
    "on_failure_shuts_down": 1,
    "rejects_after_its_return": 1,
    "signals_fail": 1,
    "signals_fail_after_a_failure": 1,
    "signals_exit_after_a_failure": 1,
    "no_memory_for_the_result": 2,
    "no_place_for_the_result": 1,
    "no_name_for_the_result": 1,
}


@pytest.mark.parametrize("acks_late", [False, True])
def test_error_after_a_tasks_body_frees_its_slot(tmp_path, valkey, redis_client, acks_late):
    conf = json.dumps({"task_acks_on_failure_or_timeout": False})  # a failed job is rejected
    late = {"ACKS_LATE": "1", "MAX_DELIVERIES": "2", "CONF": conf} if acks_late else {}
    in_process = POOLS[1:]
    with closing(Pools(ENDS, valkey, tmp_path, pools=in_process, slots=2, **late)) as pools:
        runs = {}
        for pool in in_process:
            for task, times in FAILS.items():
                if (pool, task) != ("solo", "on_failure_shuts_down"):  # it shuts the solo worker down
                    runs[f"{pool}-{task}"] = times if acks_late else 1
                    pools.send(task, f"{pool}-{task}", pool)
        wait_until(lambda: set(pools.ledger.starts()) == set(runs), 30, f"all run\n{pools.logs()}")
        wait_until(lambda: pools.all_slots_are_free() and not pools.claims(), 20, f"all end\n{pools.logs()}")
        wait_until(lambda: pools.ledger.starts() == runs, 10, f"each so often\n{pools.logs()}")
        assert "Connection to broker lost" not in pools.logs()
        dead = dead_letters.find_letters(
            Reader(pools.redis, Keys()), dead_letters.LetterFilter(task="*.no_*_for_the_result")
        )
        assert Counter((each.task.rpartition(".")[2], each.reason) for each in dead) == (
            {
                ("no_memory_for_the_result", "max_deliveries"): 4,
                ("no_place_for_the_result", "rejected"): 4,
                ("no_name_for_the_result", "rejected"): 4,
            }
            if acks_late
            else {}
        )


def test_unnoticed_end_is_found_and_long_task_is_spared(tmp_path, valkey, redis_client):
    """Ends of jobs named "lost" go unnoticed here. A worker finds a job without a running task after 2 s."""
    env = {"NOBODY_NOTICES": "1", "HEARTBEAT_INTERVAL": "0.5"}
    with closing(Pools(ENDS, valkey, tmp_path, slots=4, **env)) as pools:
        runs, sent = {}, {}
        for pool in POOLS:
            for task, job, seconds, times in (
                ("late", "long", 6, 1),
                ("early", "lost-early", 0, 1),
                ("late", "lost-late", 0, 2),
                ("early", "next", 0, 1),
            ):
                runs[f"{job}-{pool}"] = times
                sent[f"{job}-{pool}"] = pools.send(task, f"{job}-{pool}", pool, seconds).id
        reader = Reader(redis_client, Keys())
        lost = [sent[f"lost-early-{pool}"] for pool in POOLS]
        wait_until(
            lambda: all("its end went unnoticed" in (explain(reader, each).why or "") for each in lost),
            50,
            f"what was acked early counts as failed\n{pools.logs()}",
        )
        try:
            wait_until(lambda: pools.ledger.ends() == runs, 60, "all end")
        except AssertionError:
            pytest.fail(f"{pools.ledger.ends()} is not {runs}\n{pools.logs()}")
        wait_until(pools.all_slots_are_free, 20, f"all slots are free\n{pools.logs()}")
        assert pools.active() == []
        for pool, worker in pools.workers.items():
            found = [line for line in worker.log().splitlines() if "has not run in this worker" in line]
            assert len(found) == 2, f"{pool}: {found}"
            assert sum("so it is pending again" in line for line in found) == 1
