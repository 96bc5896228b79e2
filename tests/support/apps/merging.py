"""An app whose calls are merged in all possible ways. Every run is recorded in a ledger outside Redis."""

import json
import os
import time
from functools import partial

from celery import signals
from celery.exceptions import Ignore, Reject

from celery_affinity import Affinity, Merge, NotMerged
from celery_affinity.worker import merged_run

from . import new_app

app = new_app("merging", affinity_worker_timeout=5.0, affinity_heartbeat_interval=1.0, result_chord_retry_interval=0.1)
merged_run._MAX_WAIT_S = float(os.environ.get("PATIENCE_S", merged_run._MAX_WAIT_S))


def union(a, b):
    return a.replace(changes=[*a.kwargs["changes"], *b.kwargs["changes"]])


def note(task, *values):
    with open(os.environ["LEDGER"], "a") as ledger:  # one write: lines do not mix
        ledger.write(json.dumps([task, *values]) + "\n")


def note_signal(name, sender=None, **_):
    note("signal", name, getattr(sender, "name", sender), getattr(app.current_task, "name", None))


for signal in os.environ.get("SIGNALS", "").split():
    getattr(signals, signal).connect(partial(note_signal, signal), weak=False)


def wait_at_the_gate(who):
    note("gate", who)
    while not os.path.exists(os.environ["LEDGER"] + ".gate"):
        time.sleep(0.01)


def merged(name, merge, **options):
    return app.task(name=name, affinity=Affinity("merging", merge=merge), shared=False, **options)


@merged("fold", Merge("{city}", fold=union))
def fold(city, changes):
    note("fold", city, changes)
    return changes


def beside(a, b):
    """Merge two calls whose changes are adjacent."""
    if b.kwargs["changes"][0] != a.kwargs["changes"][-1] + 1:
        raise NotMerged
    return union(a, b)


@merged("overlaps", Merge("{city}", fold=beside))
def overlaps(city, changes):
    note("overlaps", city, changes)
    return changes


@merged("overlaps_late", Merge("{city}", fold=beside), bind=True, acks_late=True)
def overlaps_late(self, city, changes):
    note("overlaps_late", city, changes)
    if not self.request.delivery_info["redelivered"]:
        time.sleep(600 if changes[0] == 0 else 0)
    return changes


def beside_gated(a, b):
    """Merge like `beside`, but before refusing a call, wait until a file exists."""
    try:
        return beside(a, b)
    except NotMerged:
        wait_at_the_gate("fold")
        raise


@merged("overlaps_gated_early", Merge("{city}", fold=beside_gated))
def overlaps_gated_early(city, changes):
    note("overlaps_gated_early", city, changes)
    return changes


@merged("overlaps_gated_late", Merge("{city}", fold=beside_gated), acks_late=True)
def overlaps_gated_late(city, changes):
    note("overlaps_gated_late", city, changes)
    return changes


@merged("patient", Merge("{city}", fold=union, wait=3))
def patient(city, changes):
    note("patient", city, changes)
    return changes


@merged("very_patient", Merge("{city}", fold=union, wait=600))
def very_patient(city, changes):
    note("very_patient", city, changes)
    return changes


@merged("patient_again", Merge("{city}", keep="last", wait=2), bind=True, max_retries=1)
def patient_again(self, city):
    note("patient_again", city, time.time())
    if not self.request.retries:
        raise self.retry(countdown=0)
    return city


@merged("fold_late", Merge("{city}", fold=union), bind=True, acks_late=True)
def fold_late(self, city, changes, seconds=0.0):
    note("fold_late", city, changes)
    if not self.request.delivery_info["redelivered"]:
        time.sleep(seconds)
    return changes


@merged("fold_early", Merge("{city}", fold=union))
def fold_early(city, changes, seconds=0.0):
    note("fold_early", city, changes)
    time.sleep(seconds)
    return changes


@app.task(name="by_name", affinity="merging", shared=False)
def by_name(city, changes):
    note("by_name", city, changes)
    return changes


class Gated(app.Task):
    """A task that waits until a file exists before it reads its calls."""

    abstract = True

    def before_start(self, *_):
        wait_at_the_gate(self.name)


@merged("gated_early", Merge("{city}", fold=union), base=Gated)
def gated_early(city, changes):
    note("gated_early", city, changes)
    return changes


@merged("gated_late", Merge("{city}", fold=union), base=Gated, acks_late=True)
def gated_late(city, changes):
    note("gated_late", city, changes)
    return changes


@merged("first", Merge("{city}", keep="first"), bind=True)
def first(self, city, number):
    note("first", city, number)
    return [number, self.request.affinity.merged, [each.kwargs["number"] for each in self.request.affinity.calls]]


@merged("last", Merge("{city}", keep="last"))
def last(city, number=None):
    note("last", city, number)
    return number


@merged("last_again", Merge("{city}", keep="last"), bind=True, max_retries=1)
def last_again(self, city, number):
    note("last_again", city, number)
    if number == 1:
        wait_at_the_gate("last_again")
        raise self.retry(countdown=0.05)
    return number


@merged("every", Merge("calls", keep="all", split=lambda result, calls: result))
def every(calls):
    note("every", len(calls))
    return [each.args[0] * 10 for each in calls]


@merged("too_few", Merge("calls", keep="all", split=lambda result, calls: result[:1]))
def too_few(calls):
    return [0 for _ in calls]


@merged("fails", Merge("{city}", keep="last"))
def fails(city, number):
    note("fails", city, number)
    raise ValueError(number)


def fail_until_it_is_mended(values):
    if not os.path.exists(os.environ["LEDGER"] + ".mended"):
        raise ValueError(values)


@merged("mended", Merge("{city}", keep="last"))
def mended(city, number):
    note("mended", city, number)
    fail_until_it_is_mended(number)
    return number


@merged("mended_late", Merge("{city}", keep="last"), acks_late=True, acks_on_failure_or_timeout=False)
def mended_late(city, number):
    note("mended_late", city, number)
    fail_until_it_is_mended(number)
    return number


@merged("bad_fold", Merge("{city}", fold=lambda a, b: 1 / 0))
def bad_fold(city, number):
    note("bad_fold", city, number)


@merged("ignores", Merge("{city}", keep="last"), bind=True)
def ignores(self, city):
    note("ignores", city)
    self.update_state(state="SUCCESS", meta=f"{city} by itself")
    raise Ignore


@merged("never_runs_well", Merge("{city}", keep="last"), acks_late=True)
def never_runs_well(city):
    note("never_runs_well", city)
    raise Reject(city, requeue=True)


@merged("pair", Merge("{a}:{b}", keep="first"))
def pair(a, b=2, other=None):
    note("pair", a, b)
    if a == "bad":
        raise ValueError(a)
    return [a, b]


@merged("few", Merge("calls", keep="all", most=3, split=lambda result, calls: result))
def few(calls):
    note("few", len(calls))
    return [each.args[0] for each in calls]


@merged("sums", Merge("calls", keep="all"), typing=False)
def sums(calls):
    """Add all arguments of all calls."""
    note("sums", len(calls), app.current_task.name)
    return sum(sum(each.args) + sum(each.kwargs.values()) for each in calls)


@merged("stores", Merge("calls", keep="all"))
def stores(calls):
    """Store the result of each call, like tasks for celery-batches."""
    for each in calls:
        app.backend.mark_as_done(each.task_id, each.args[0] * 10)


@merged("rejects", Merge("{city}", keep="last"), bind=True, acks_late=True)
def rejects(self, city, requeue=True):
    note("rejects", city)
    if self.request.delivery_info["redelivered"]:
        return "again"
    raise Reject(city, requeue=requeue)


@merged("retries", Merge("{city}", fold=union), bind=True, max_retries=1)
def retries(self, city, changes):
    note("retries", city, changes)
    if not self.request.retries:
        raise self.retry(countdown=0.2)
    return changes


@merged("retries_all", Merge("calls", keep="all"), bind=True, max_retries=1)
def retries_all(self, calls):
    if not self.request.retries:
        raise self.retry(countdown=0.2)
    return [each.args[0] for each in calls]


@merged("retries_with", Merge("{city}", fold=union), bind=True, max_retries=1)
def retries_with(self, city, changes):
    note("retries_with", city, changes)
    if not self.request.retries:
        raise self.retry(kwargs={"city": city, "changes": changes}, args=(), countdown=0.2)
    return changes


@merged("too_long", Merge("{city}", keep="last"), time_limit=1)
def too_long(city):
    note("too_long", city)
    time.sleep(60)


@merged("dies", Merge("{city}", keep="last"))
def dies(city):
    note("dies", city)
    os.kill(os.getpid(), 9)


@merged("replaces", Merge("{city}", keep="last"), bind=True)
def replaces(self, city):
    note("replaces", city)
    raise self.replace(add.s(city, "!"))


@app.task(name="add", affinity="merging")
def add(value, other):
    note("add", value, other)
    return value + other


@app.task(name="failed", affinity="merging")
def failed(task_id):
    note("failed", task_id)


@app.task(name="total", affinity="merging")
def total(values):
    note("total", values)
    return values
