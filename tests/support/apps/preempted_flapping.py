"""Preemptible batch jobs, and urgent jobs of a tenant whose minimum flaps. A ledger on disk records each step."""

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from celery_affinity import Affinity, Merge, Preempted, preempted

from . import new_app

app = new_app(
    "flapping",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    affinity_heartbeat_interval=0.5,
    affinity_worker_timeout=3,
)

STEP_S = 0.02
OF_BATCH = Affinity(tenant="batch", preemptible=True)


def note(task, what):
    """Write one line atomically."""
    about = task.request
    line = {
        "what": what,
        "task": about.id,
        "name": task.name.rpartition(".")[2],
        "fence": about.affinity.fence,
        "preemptions": about.affinity.preemptions,
        "worker": about.hostname,
        "place": f"{os.getpid()}/{threading.get_ident()}",
        "at": time.time(),
    }
    with Path(os.environ["LEDGER"]).open("ab", buffering=0) as ledger:
        ledger.write(json.dumps(line).encode() + b"\n")


def work(task, steps, *, obliging):
    """Make *steps* steps. An *obliging* task saves its progress on preemption, stops, and continues in the next run."""
    saved = Path(os.environ["LEDGER"] + f".{task.request.id}")
    done, is_asked = 0, False
    with suppress(FileNotFoundError):
        done = int(saved.read_text())
    note(task, "start")
    while done < steps:
        if not is_asked and preempted():
            is_asked = True
            note(task, "asked")
        if is_asked and obliging:
            saved.write_text(str(done))
            note(task, "stopped")
            raise Preempted
        time.sleep(STEP_S)
        done += 1
    note(task, "done")
    return task.request.id


@app.task(name="flapping.obliges", bind=True, shared=False, affinity=OF_BATCH)
def obliges(self, steps):
    return work(self, steps, obliging=True)


@app.task(name="flapping.ignores", bind=True, shared=False, affinity=OF_BATCH)
def ignores(self, steps):
    return work(self, steps, obliging=False)


@app.task(
    name="flapping.together",
    bind=True,
    shared=False,
    affinity=Affinity(tenant="batch", preemptible=True, merge=Merge("all", keep="all")),
)
def together(self, calls):
    work(self, 300, obliging=True)
    return sorted(call.args[0] for call in calls)


@app.task(name="flapping.gathers", bind=True, shared=False)
def gathers(self, found):
    note(self, "start")
    note(self, "done")
    return sorted(found)


@app.task(name="flapping.urgent", bind=True, shared=False, affinity=Affinity(tenant="urgent"))
def urgent(self):
    note(self, "start")
    time.sleep(0.3)
    note(self, "done")
