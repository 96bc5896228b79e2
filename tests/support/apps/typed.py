"""An app whose tasks need different workers. Every start and end is recorded in a ledger outside Redis."""

import ctypes
import os
import sys
import time
from pathlib import Path

from billiard.util import set_pdeathsig
from celery import current_task
from celery.exceptions import Ignore, Reject
from celery.signals import worker_process_init
from celery.worker.control import control_command

from celery_affinity import Affinity, Preempted
from celery_affinity.broker.client import take_connection

from . import new_app
from .wrong_clock import set_off_by

if "CLOCK_OFFSET_S" in os.environ:
    set_off_by(float(os.environ["CLOCK_OFFSET_S"]))

app = new_app(
    "typed",
    affinity_worker_timeout=float(os.environ.get("WORKER_TIMEOUT", "30")),
    affinity_heartbeat_interval=float(os.environ.get("HEARTBEAT_INTERVAL", "5")),
    affinity_max_deliveries=int(os.environ.get("MAX_DELIVERIES", "20")),
    affinity_guard=os.environ.get("GUARD", "1") == "1",
    task_acks_late=os.environ.get("ACKS_LATE") == "1",
    worker_send_task_events=os.environ.get("EVENTS") == "1",
    broker_transport_options={"master_name": os.environ.get("MASTER_NAME", "")},
    worker_pool_restarts=os.environ.get("POOL_RESTARTS") == "1",
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=True,
)


#: ARGV: seconds. The server's clock does not advance during a script, so the script reads the CPU time.
_BUSY = "local from_s = os.clock() while os.clock() - from_s < tonumber(ARGV[1]) do end"


def note(event: str, job: object) -> None:
    """Append a line to the ledger: event, job, process, time, claim. One write, so that lines never mix."""
    claim = getattr(current_task.request if current_task else None, "affinity", None)  # missing on stock Celery
    fence, key = getattr(claim, "fence", None) or 0, getattr(claim, "key", None) or ""  # a header may have that name
    line = f"{event} {job} {os.getpid()} {time.time()} {fence} {key}\n"
    descriptor = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _work(job: object, seconds: float) -> object:
    note("start", job)
    time.sleep(seconds)
    note("end", job)
    return job


@app.task(affinity="pdf")
def pdf(job, seconds=0.0):
    return _work(job, seconds)


@app.task(affinity=Affinity("excel", priority=5))
def excel(job, seconds=0.0):
    return _work(job, seconds)


@app.task(affinity="index")
def index(job, seconds=0.0):
    return _work(job, seconds)


@app.task(affinity="mail", rate_limit=os.environ.get("RATE_LIMIT"))
def mail(job, seconds=0.0):
    return _work(job, seconds)


@app.task(affinity="pdf", acks_late=True, bind=True)
def late(self, job, seconds=0.0):
    """Work for *seconds* in the first run, and return immediately when redelivered."""
    return _work(job, 0 if self.request.delivery_info["redelivered"] else seconds)


@app.task(affinity="pdf", acks_late=False)
def early(job, seconds=0.0):
    return _work(job, seconds)


@app.task(affinity="pdf", acks_late=True)
def compute(job, seconds=0.0):
    """Keep the interpreter busy for *seconds*."""
    note("start", job)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    note("end", job)


@app.task(affinity="pdf", acks_late=True, bind=True)
def hold_the_interpreter(self, job, seconds=0.0):
    """Keep the interpreter locked in a C call for *seconds*, the first time."""
    note("start", job)
    if not self.request.delivery_info["redelivered"]:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    note("end", job)


@app.task(affinity="pdf", acks_late=True, ignore_result=True)
def keep_the_server(job, seconds=0.0):
    """Block the server for *seconds*, beyond the end of this task."""
    note("start", job)
    connection = take_connection(app.connection_for_write().default_channel.client.connection_pool)
    connection.send_command("EVAL", _BUSY, 0, seconds)
    time.sleep(seconds / 10)


@app.task(affinity="pdf")
def send_off(job, seconds=0.0):
    """Fork a process that starts a new session and outlives its worker."""
    if os.fork() == 0:
        os.setsid()
        _work(job, seconds)
        os._exit(0)


@control_command(args=[("seconds", float)])
def block(state, seconds):
    """Block the event loop of a worker, and nothing else in the process."""
    note("start", "block")
    time.sleep(seconds)
    note("end", "block")


@worker_process_init.connect
def _outlive_the_parent(**_):
    """If a test requires it, let a pool process survive its parent, like on systems other than Linux."""
    if os.environ.get("CHILDREN_SURVIVE") == "1":
        set_pdeathsig(0)


@app.task(affinity="pdf")
def fail(job):
    note("start", job)
    raise ValueError(job)


@app.task(affinity="pdf", bind=True, max_retries=1)
def retry(self, job, countdown=0.1):
    note("start", job)
    if not self.request.retries:
        raise self.retry(countdown=countdown)
    return self.request.delivery_info["routing_key"]


@app.task(affinity="pdf")
def ignore(job):
    note("start", job)
    raise Ignore


@app.task(affinity="pdf", acks_late=True, bind=True)
def reject(self, job, requeue=False, for_ever=False):
    note("start", job)
    if self.request.delivery_info["redelivered"] and not for_ever:
        return "again"
    raise Reject(job, requeue=requeue)


@app.task(affinity="pdf", acks_late=True)
def not_yet(job, runs):
    """Request another run until the run with the number *runs*."""
    note("start", job)
    begun = Path(os.environ["LEDGER"]).read_text().count(f"start {job} ")
    if begun < runs:
        raise Reject(f"run {begun}", requeue=True)
    return begun


@app.task(affinity="pdf", acks_late=True, acks_on_failure_or_timeout=False, time_limit=1)
def late_too_long(job):
    note("start", job)
    time.sleep(60)


@app.task(affinity="pdf", acks_late=True, reject_on_worker_lost=True)
def lose_each_child(job):
    note("start", job)
    os.kill(os.getpid(), 9)


@app.task(affinity="pdf", acks_late=True)
def stop_unasked(job):
    note("start", job)
    raise Preempted


@app.task(affinity="pdf")
def leave(job):
    note("start", job)
    sys.exit(3)


@app.task(affinity="pdf", acks_late=True, reject_on_worker_lost=True, bind=True)
def lose_child(self, job):
    note("start", job)
    if self.request.delivery_info["redelivered"]:
        return "again"
    os.kill(os.getpid(), 9)
    return None


@app.task(affinity="pdf", time_limit=1)
def too_long(job):
    note("start", job)
    time.sleep(60)


@app.task(affinity="pdf", soft_time_limit=1)
def too_long_softly(job):
    note("start", job)
    time.sleep(60)


@app.task(ignore_result=True)
def tally(job):
    note("start", job)
