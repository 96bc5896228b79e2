"""A minimum flaps while victims obey or ignore the flag, and a worker dies in a grace; a ledger on disk is checked."""

import json
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from celery import chord

from celery_affinity import Tenant
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.tenants import encoded_tenants

from ..support.processes import start_worker, wait_until
from ..support.worker_processes import pool_of

pytestmark = pytest.mark.whole

APP = "tests.support.apps.preempted_flapping"
KEYS = Keys()

#: Slots of each worker; a threads pool cannot stop a task by force.
WORKERS = {"one": ("prefork", 3), "two": ("prefork", 2), "three": ("threads", 2)}
SLOTS = sum(slots for _, slots in WORKERS.values())
LEAST = SLOTS - 3  # slots that the batch keeps

EXEMPT_S, MAX_STOPS = 2, 3
CONF = {
    "affinity_preemption_delay": 0.2,
    "affinity_preemption_grace": 0.5,
    "affinity_preemption_exempt": EXEMPT_S,
    "affinity_preemption_max": MAX_STOPS,
}

#: Seconds with and without a minimum of the other tenant, and the maximum duration of a preemption.
ON_S, OFF_S, SEEN_S = 3, 5, 3


class Run:
    """A task run from the ledger: the times of its start, stop request and end, and how it ended."""

    def __init__(self, line):
        self.task, self.name, self.worker, self.fence = line["task"], line["name"], line["worker"], line["fence"]
        self.preemptions, self.start = line["preemptions"], line["at"]
        self.asked, self.end, self.how = None, None, "cut off"

    @property
    def was_stopped(self):
        return self.how in ("stopped", "cut off")


def runs_in(ledger):
    runs = defaultdict(list)
    for line in map(json.loads, Path(ledger).read_text().splitlines()):
        its = runs[line["task"]]
        if line["what"] == "start":
            its.append(Run(line))
        elif line["what"] == "asked":
            next(run for run in its if run.fence == line["fence"]).asked = line["at"]
        else:
            run = next(run for run in its if run.fence == line["fence"])
            run.end, run.how = line["at"], line["what"]
    return runs


def add_ends(runs, killed):
    """Add the ends that are missing in the ledger: the run's worker was killed, or the run was stopped by force."""
    for its in runs.values():
        for run, after in pairwise([*its, None]):
            at = killed.get(run.worker)
            if run.end is None and at and not (after and after.start < at):
                run.end, run.how = at, "killed"
            elif run.end is None and after:
                run.end = after.start


def judge_task(task, its):
    """Yield the errors in the runs of a task."""
    hows = [run.how for run in its]
    if hows.count("done") != 1 or hows[-1] != "done":
        yield f"{task} ended {hows}"
    stops = 0
    for run in its:
        if run.preemptions != stops:
            yield f"{task} was stopped {stops} times before, and was told {run.preemptions}"
        if run.was_stopped and run.asked is None and run.name != "ignores":
            yield f"{task} was stopped unasked"
        if run.asked and run.preemptions and run.asked - run.start < EXEMPT_S - 0.1:
            yield f"{task} was asked to stop {run.asked - run.start:.2f} s after its start"
        stops += run.was_stopped
    if stops > MAX_STOPS:
        yield f"{task} was stopped {stops} times"


def judge_order(run, batch, needs):
    """Yield the reasons against the stop order of *run*."""
    if not any(since <= run.asked <= until + SEEN_S for since, until in needs):
        yield f"{run.task} was asked to stop while nobody needed its slot"
    held = sum(each.start <= run.asked + 1 and each.end >= run.asked - SEEN_S for each in batch)
    if held - 1 < LEAST:
        yield f"{run.task} was asked to stop when its tenant had {held} slots at most"


def judge(runs, needs):
    """Return all errors. *needs*: periods in which the other tenant had its minimum."""
    found = [what for task, its in runs.items() for what in judge_task(task, its)]
    batch = [run for its in runs.values() for run in its if run.name not in ("urgent", "gathers") and run.end]
    return found + [what for run in batch if run.asked for what in judge_order(run, batch, needs)]


def started(ledger):
    return ledger.read_text().count('"start"') if ledger.exists() else 0


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    return tmp_path / "ledger"


@pytest.mark.slow
def test_no_run_is_lost_repeated_or_preempted_without_need(valkey, redis_client, ledger, load_app):
    app = load_app(APP)
    tasks = {name.partition(".")[2]: task for name, task in app.tasks.items() if name.startswith("flapping.")}

    def start(name, pool, slots):
        extra = ["--without-mingle", "--without-gossip"]
        env = {"LEDGER": str(ledger), "CONF": json.dumps(CONF)}
        return start_worker(APP, valkey.url, ["celery"], pool=pool, concurrency=slots, name=name, env=env, extra=extra)

    workers = {name: start(name, *how) for name, how in WORKERS.items()}
    for worker in workers.values():
        worker.wait_ready(60)
    scheduler, needs, killed, urgent = Scheduler(redis_client, KEYS), [], {}, []
    alone = [tasks["ignores"].delay(400) for _ in range(2)]
    wait_until(lambda: started(ledger) == 2, 30, "two started first")
    scheduler.pause("type:celery")
    merged = [tasks["together"].delay(number) for number in range(5)]
    ids = [f"chord-{number}" for number in range(4)]
    header = [tasks["ignores" if each.endswith("3") else "obliges"].s(400).set(task_id=each) for each in ids]
    gathered = chord(header)(tasks["gathers"].s())
    scheduler.resume("type:celery")
    wait_until(lambda: started(ledger) == SLOTS, 30, "all slots are taken")
    alone += [tasks["ignores" if number % 3 else "obliges"].delay(400) for number in range(14)]
    for _ in range(4):
        since = time.time()
        scheduler.configure(
            {"tenants": encoded_tenants({"batch": Tenant(min=LEAST), "urgent": Tenant(min=SLOTS - LEAST)})}
        )
        while time.time() < since + ON_S:
            urgent += [tasks["urgent"].delay() for _ in range(3)]
            time.sleep(0.2)
            if not killed:
                killed = kill_one_in_its_grace(workers, ledger, since)
                if killed:
                    start("four", "prefork", 3)
        scheduler.configure({"tenants": encoded_tenants({"batch": Tenant(min=LEAST)})})
        needs.append((since, time.time()))
        time.sleep(OFF_S)
    assert killed, "a worker died in a grace"
    assert gathered.get(timeout=90) == sorted(ids)
    assert {tuple(each.get(timeout=90)) for each in merged} == {tuple(range(5))}
    assert [each.get(timeout=90) for each in alone] == [each.id for each in alone]
    for each in urgent:
        each.get(timeout=90)
    runs = runs_in(ledger)
    add_ends(runs, killed)
    assert judge(runs, needs) == []
    asked = [run for its in runs.values() for run in its if run.asked]
    assert {"stopped", "cut off"} <= {run.how for run in asked}, "some obliged, and some were stopped by force"
    assert "killed" in {run.how for run in asked}, "and one lost its worker in the grace"
    stops = sum(run.was_stopped for run in asked)
    assert 3 <= stops <= 4 * 3 + 4, "one for each missing slot of each time, and those that another one replaced"


def kill_one_in_its_grace(workers, ledger, since):
    """Kill the worker of a run that ignores a fresh stop request. Return the worker and the time, or an empty dict."""
    for its in runs_in(ledger).values():
        run = its[-1]
        name = run.worker.partition("@")[0]
        if run.name == "ignores" and (run.asked or 0) >= since and run.end is None and WORKERS[name][0] == "prefork":
            processes = pool_of(workers[name])
            workers[name].kill()
            for process in processes:
                process.kill()
            return {run.worker: time.time()}
    return {}
