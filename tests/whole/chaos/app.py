"""The app under test. Publishers and workers write each publish, start and end of a task to the ledger."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from itertools import count
from pathlib import Path

from celery import Celery
from celery.app.backends import by_url
from celery.backends.redis import RedisBackend
from celery.exceptions import Retry
from celery.signals import after_task_publish, before_task_publish, task_failure, worker_init, worker_ready

from celery_affinity import Affinity, Exclusive, Merge, Preempted, Rate, Tenant, preempted
from celery_affinity.options.keys import tenant_in
from celery_affinity.publishing.message import PROPERTY, job_id, parse_time
from celery_affinity.publishing.option_sources import rules_in
from celery_affinity.schema.job_record import key_suffix
from celery_affinity.schema.rules_codec import decode_rules
from celery_affinity.schema.values import decode_part

from .hints import without_mark
from .ledger import Ledger

TYPES = ("pdf", "excel", "index", "mail")

#: Key rules of some jobs. Enough jobs have them that jobs of a key wait, and few enough to finish within a storm.
RULES = (Exclusive("one"), Exclusive("ordered", keep_order=True), Exclusive("pair", limit=2), Rate("5/s", "rate"))

#: Tenants of some jobs -> maximum number of slots, or None.
TENANTS = {"acme": 2, "small": 1, "free": None, "batch": None}


def quota_of(most: int | None) -> Tenant:
    """Return a quota with the maximum *most*, and a minimum of two slots or of *most* if it is lower."""
    return Tenant(max=most, min=2 if most is None else min(2, most))


#: Prefix, pattern and number of keys with few jobs each. One invocation cannot process a changed limit for all of them.
MANY, OF_MANY, HOW_MANY = "many:", "many:*", 400

#: Worker timeout, heartbeat interval and reply timeout in seconds. They are short, so a storm is long enough to notice
#: a death.
WORKER_TIMEOUT_S, HEARTBEAT_S, REPLY_TIMEOUT_S = 5.0, 1.0, 1.0

#: Preemption: delay before it and grace of the task, both in seconds, and maximum preemptions of a job.
DELAY_S, GRACE_S, MAX_STOPS = 0.1, 0.6, 3

#: Interval of the recurring calls in seconds.
STALE_S = 2.0

#: Seconds for which SIGUSR2 blocks the event loop of a worker.
BLOCK_S = 7.0

#: Name prefix of merging tasks (`merged_tasks`). The ledger identifies their calls by their tokens.
MERGED = "merged_"

ledger = Ledger(Path(os.environ.get("LEDGER", os.devnull)))

# -- a host whose clock is wrong

_offset_s = float(os.environ.get("CLOCK_OFFSET_S", "0"))
if _offset_s:
    _right_time = time.time
    time.time = lambda: _right_time() + _offset_s


class App(Celery):
    def now(self):
        return super().now() + timedelta(seconds=_offset_s)


app = App("chaos", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("RESULT_URL"))
_master = {"master_name": os.environ.get("MASTER_NAME", "")}
app.conf.update(
    broker_transport="celery_affinity:Transport",
    affinity_worker_timeout=WORKER_TIMEOUT_S,
    affinity_heartbeat_interval=HEARTBEAT_S,
    broker_transport_options={
        **_master,
        "socket_timeout": REPLY_TIMEOUT_S,
        "socket_connect_timeout": REPLY_TIMEOUT_S,
        "health_check_interval": 2,  # seconds until kombu checks a blocking read for a half-open connection
    },
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # Publishers survive outages. A message published again after a lost reply must be stored once.
    task_publish_retry_policy={"max_retries": 300, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.4},
    result_backend_transport_options=_master,
    # Celery's default is False: a result that cannot be stored is lost.
    result_backend_always_retry=os.environ.get("RETRIES_RESULTS") == "1",
    result_backend_max_sleep_between_retries_ms=500,
    redis_socket_timeout=2 * REPLY_TIMEOUT_S,
    redis_socket_connect_timeout=REPLY_TIMEOUT_S,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=True,
    affinity_tenants={name: quota_of(most) for name, most in TENANTS.items()},
    affinity_tenant_turns="share",
    affinity_preemption_delay=DELAY_S,
    affinity_preemption_grace=GRACE_S,
    affinity_preemption_exempt=1,
    affinity_preemption_max=MAX_STOPS,
    affinity_recurring={
        since: {"task": "tests.whole.chaos.app.recurs", "args": (since,), "stale_after": STALE_S, "since": since}
        for since in ("enqueue", "end")
    },
)

#: Options of a chord's body. Celery treats a chord as claimed while its body may be published, 4 s per attempt. After a
#: death in this phase, the body must still be published before the fleet must be quiet.
BODY = {"retry_policy": {**app.conf.task_publish_retry_policy, "max_retries": 10}}


def _on_the_brokers_server() -> RedisBackend:
    """Return a result backend on the server or servers of the broker."""
    url = os.environ.get("BROKER_URL", "redis://")
    backend_class, _ = by_url(url, app.loader)
    return backend_class(app=app, url=url)


# -- the ledger

_runs = count(1)
_worker_pid = 0
last_intended = ""
_intended: dict[int, tuple[str, str]] = {}


@before_task_publish.connect
def _note_intended(headers=None, properties=None, routing_key="", body=None, **_):
    global last_intended
    name = headers["task"].rpartition(".")[2]
    facts = {"task": headers["id"], "name": name, "try": headers["retries"], "type": routing_key}
    is_call = name.startswith(MERGED)
    last_intended = job = body[0][0][0] if is_call else without_mark(job_id(properties[PROPERTY], routing_key))
    _intended[id(headers)] = ("call_accepted" if is_call else "accepted"), job
    if name == "recurs":
        _intended[id(headers)] = "fired", job  # the server accepts it only if it is still due
        return
    if tenant := properties.get("tenant") or tenant_in(rules_in(properties[PROPERTY])):  # the option, or a retry's
        facts["tenant"] = tenant
    if name == "step":
        facts["token"] = body[0][1]
    for name, header in (("due", "eta"), ("expires", "expires")):
        if headers[header]:
            facts[name] = _monotonic(parse_time(headers[header], app))
    ledger.note("call" if is_call else "intended", job, **facts)  # threads share `last_intended`


def _monotonic(unix_s: float) -> str:
    return f"{time.monotonic() + unix_s - time.time():.6f}"


@after_task_publish.connect
def _note_accepted(headers=None, **_):
    ledger.note(*_intended.pop(id(headers)))  # the dict is the same object


@task_failure.connect
def _note_failed(sender=None, exception=None, **_):
    """Note a failure of a lost pool process, which could not note it."""
    is_call = sender.name.rpartition(".")[2].startswith(MERGED)
    is_noted = not is_call and sender is not recurs
    if os.getpid() == _worker_pid and type(exception).__name__ == "WorkerLostError" and is_noted:
        ledger.note("failed", _job_of(sender.request), error="WorkerLostError")


def _job_of(request) -> str:
    job, _, _ = request.properties["delivery_tag"].rpartition(":")
    return without_mark(job.removesuffix(key_suffix(job)))  # the signal of the publish has no suffix yet


def _keys_of(left) -> str:
    """Return the keys of a job from its message."""
    return " ".join(decode_part(each.key) for each in decode_rules(rules_in(left) or "").keys)


@contextmanager
def _noted(request, kind: str = "start", **more: object) -> Iterator[str]:
    """Note the start and the end of a run. Yield the name of the run."""
    job, run = _job_of(request), f"{os.getpid()}.{next(_runs)}"
    left = request.properties.get(PROPERTY) or {}
    facts = {"priority": request.properties["priority"], "mode": "on_demand" if left.get("on_demand") else "queued"}
    facts |= {"worker": _worker_pid, "keys": _keys_of(left), "fence": request.affinity.fence, **more}
    ledger.note(kind, job, run=run, **facts)
    outcome = "done"
    try:
        yield run
    except BaseException as exc:
        # A retry that could not be published is a Reject with the error as its reason.
        outcome = "retried" if isinstance(exc, Retry) else type(getattr(exc, "reason", None) or exc).__name__
        raise
    finally:
        ledger.note("end", job if kind == "start" else "-", run=run, outcome=outcome)


# -- results that could not be stored

_store_result = RedisBackend.store_result


def _stores_result(self, task_id, result, state, *args, **kwargs):
    """Note a result that is lost because its worker tries only once, on a broken connection.

    Celery loses it on any broker. A pooled connection may have broken long before its use, since the pool returns the
    most recently used connection first.
    """
    try:
        return _store_result(self, task_id, result, state, *args, **kwargs)
    except self.connection_errors as exc:
        ledger.note("unstored", task_id, state=state, worker=_worker_pid, error=type(exc).__name__)
        raise


if "LEDGER" in os.environ:  # a process of a storm, not the checker
    RedisBackend.store_result = _stores_result

# -- a blocked event loop


@worker_init.connect
def _on_worker_init(**_):
    global _worker_pid
    _worker_pid = os.getpid()


@worker_ready.connect
def _on_worker_ready(sender=None, **_):
    if not sender.hub:
        _on_signal_block_a_green_pool(sender.pool)
        os.write(1, b"worker ready.\n")
        return
    # In another thread: the signal can interrupt the main thread while it holds the lock of `call_soon`.
    read, write = os.pipe()

    def block() -> None:
        while os.read(read, 1):
            sender.hub.call_soon(time.sleep, BLOCK_S)

    threading.Thread(target=block, daemon=True).start()
    signal.signal(signal.SIGUSR2, lambda *_: os.write(write, b"!"))
    os.write(1, b"worker ready.\n")  # the log contains only warnings


def _on_signal_block_a_green_pool(pool) -> None:
    """Make SIGUSR2 block all greenlets: the only thread runs the handler."""
    if type(pool).__module__.endswith("gevent"):
        sleep = import_module("gevent.monkey").get_original("time", "sleep")
    else:
        sleep = import_module("eventlet.patcher").original("time").sleep
    signal.signal(signal.SIGUSR2, lambda *_: sleep(BLOCK_S))


# -- tasks


#: Tasks whose results are on the broker's server. Other results are on a separate server.
ON_THE_BROKERS_SERVER = ("early", "retrying")
_backend = _on_the_brokers_server()


@app.task(bind=True, acks_late=False, backend=_backend)
def early(self, seconds):
    with _noted(self.request):
        time.sleep(seconds)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def late(self, seconds):
    with _noted(self.request):
        time.sleep(seconds)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True, affinity=Affinity(preemptible=True))
def stoppable(self, seconds):
    """When preempted, stop or continue to the end, unless the worker kills the task."""
    until, is_asked = time.monotonic() + seconds, False
    with _noted(self.request, preemptible=1) as run:
        while time.monotonic() < until:
            if not is_asked and preempted():
                is_asked = True
                ledger.note("asked", run)
                if random.random() < 0.6:
                    raise Preempted
            time.sleep(0.02)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True, max_retries=2, backend=_backend)
def retrying(self, seconds):
    with _noted(self.request):
        time.sleep(seconds)
        if self.request.retries < 2:
            raise self.retry(countdown=random.uniform(0, 0.6))


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def part(self, number, seconds):
    with _noted(self.request):
        time.sleep(seconds)
        return number


_RECURRING = Affinity("index", merge=Merge("{since}", keep="all"))


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True, affinity=_RECURRING)
def recurs(self, since):
    """Run when STALE_S have passed without a call, since the last call or since the end of its run."""
    calls = [each.task_id for each in self.request.affinity.calls] or [self.request.id]
    with _noted(self.request, "recurs", since=since, calls=",".join(calls)):
        pass


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True, affinity="index")
def total(self, numbers):
    with _noted(self.request):
        return sum(numbers)
