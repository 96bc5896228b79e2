"""An app with typical tasks that is independent of the transport: it runs on stock Celery and on this transport.

Only ``$TRANSPORT`` differs. Tasks and signals record their effects in lists on the broker's server.
"""
# Over 300 lines: Celery names tasks after their module, and both sides call all of these by name.

import json
import os
import time

import redis
from celery import Celery, chain, current_app, group, signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from kombu import Exchange, Queue
from kombu.common import Broadcast

_TASKS = []

#: Settings that a test passes to its workers.
_MORE = json.loads(os.environ.get("SETTINGS", "{}"))


def make_app(url, transport=None, **settings):
    app = Celery("parity", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=True,
        task_send_sent_event=True,
        worker_send_task_events=True,
        task_track_started=True,
        result_extended=True,
        result_backend_thread_safe=True,
        accept_content=["json", "pickle", "yaml", "msgpack", "application/x-python-serialize"],
        task_queues=[
            *(Queue(name, routing_key=name) for name in ("celery", "routed", "with space/and.dot")),
            Queue("topics", Exchange("news", type="topic"), routing_key="news.#"),
            Queue("one", Exchange("both", type="direct"), routing_key="key"),
            Queue("two", Exchange("both", type="direct"), routing_key="key"),
            Broadcast("everybody"),
        ],
        task_default_queue="celery",
        task_routes={"parity.routed": {"queue": "routed"}, "parity.tell": {"queue": "everybody"}},
        beat_schedule={
            "often": {"task": "parity.add", "schedule": 0.3, "args": (1, 1)},
            "noted": {"task": "parity.note", "schedule": 0.3, "args": ("ticks", "tick"), "options": {"expires": 60}},
        },
    )
    app.conf.update(settings)
    if transport:
        app.conf.broker_transport = transport
    for function, options in _TASKS:
        app.task(name=f"parity.{function.__name__}", shared=False, **options)(function)
    return app


def task(**options):
    def remember(function):
        _TASKS.append((function, options))
        return function

    return remember


def record(key, value):
    _client().rpush(f"record:{key}", json.dumps(value))


def _client():
    # A client per call: green threads and forked processes must not share a client.
    return redis.Redis.from_url(os.environ["BROKER_URL"], socket_timeout=None)


# -- plain


@task()
def add(x, y):
    return x + y


@task()
def total(numbers):
    return sum(numbers)


@task()
def echo(*args, **kwargs):
    return [args, kwargs]


@task()
def fail(message):
    raise ValueError(message)


@task()
def note(key, value):
    record(key, value)
    return value


@task(ignore_result=True)
def quiet(key):
    record(key, "ran")
    return "not kept"


@task()
def routed():
    return "by its name"


@task()
def tell(key):
    record(key, os.getppid())


@task(bind=True)
def hold(self, key):
    """Record the start, and wait until the test lets the task end."""
    record(f"{key}:started", self.request.id)
    with _client() as client:
        client.blpop(f"go:{key}", 60)
    record(f"{key}:ended", self.request.id)
    return key


@task(bind=True, acks_late=True)
def hold_late(self, key):
    record(f"{key}:started", bool(self.request.delivery_info["redelivered"]))
    with _client() as client:
        client.blpop(f"go:{key}", 60)
    return key


@task(bind=True)
def request_of(self):
    """Return the facts about its message that a task can read."""
    request = self.request
    info = request.delivery_info
    return {
        "args": request.args,
        "kwargs": request.kwargs,
        "retries": request.retries,
        "is_eager": request.is_eager,
        "eta": bool(request.eta),
        "expires": bool(request.expires),
        "timelimit": request.timelimit,
        "argsrepr": request.argsrepr,
        "group": bool(request.group),
        "root": request.root_id == request.id,
        "parent": bool(request.parent_id),
        "correlation": request.correlation_id == request.id,
        "reply_to": bool(request.reply_to),
        "called_directly": request.called_directly,
        "shadow": request.shadow,
        "ignore_result": request.ignore_result,
        "stamps": request.stamps,
        "headers": {key: value for key, value in (request.headers or {}).items() if key.startswith("x_")},
        "custom": request.get("x_custom"),
        "exchange": info["exchange"],
        "routing_key": info["routing_key"],
        "redelivered": bool(info["redelivered"]),
        "content_type": (request.properties or {}).get("content_type"),
    }


# -- ends


@task(bind=True, max_retries=3, default_retry_delay=0.05)
def third_time_lucky(self):
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries


@task(bind=True, autoretry_for=(KeyError,), retry_backoff=0.05, retry_jitter=False, max_retries=2)
def never_lucky(self, key):
    record(key, self.request.retries)
    raise KeyError("never")


@task(bind=True, max_retries=1)
def retry_elsewhere(self):
    if not self.request.retries:
        raise self.retry(countdown=0, queue="routed", kwargs={}, headers={"x_kept": "yes"})
    return self.request.delivery_info["routing_key"]


@task(time_limit=1)
def too_long():
    time.sleep(60)


@task(soft_time_limit=1)
def too_long_softly(caught):
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        if not caught:
            raise
        return "in time"


@task()
def ignored(key):
    record(key, "ran")
    raise Ignore


@task(bind=True, acks_late=True)
def rejected(self, key, requeue):
    record(key, bool(self.request.delivery_info["redelivered"]))
    if self.request.delivery_info["redelivered"]:
        return "again"
    raise Reject("no", requeue=requeue)


@task(bind=True, acks_late=True, reject_on_worker_lost=True)
def lost_once(self, key):
    record(key, bool(self.request.delivery_info["redelivered"]))
    if not self.request.delivery_info["redelivered"]:
        os._exit(1)
    return "again"


@task()
def lost():
    os._exit(1)


@task(acks_late=True, acks_on_failure_or_timeout=False)
def fail_unacked(key):
    record(key, "ran")
    raise ValueError("not acked")


@task()
def exits():
    raise SystemExit(3)


@task(bind=True)
def progress(self, key):
    self.update_state(state="PROGRESS", meta={"done": 50})
    with _client() as client:
        client.blpop(f"go:{key}", 60)
    return "done"


@task(bind=True)
def unreadable(self):
    return object()


# -- canvas


@task(bind=True)
def replaced(self, x):
    return self.replace(chain(self.app.tasks["parity.add"].s(x, 1), self.app.tasks["parity.add"].s(10)))


@task(bind=True)
def replaced_by_group(self, n):
    add = self.app.tasks["parity.add"]
    return self.replace(group(add.s(i, i) for i in range(n)))


@task(bind=True)
def grow_the_chord(self, x):
    self.add_to_chord(self.app.tasks["parity.add"].s(x, 100))
    return x


@task(bind=True)
def stamps(self, *args):
    return dict((self.request.stamps or {}).items())


@task()
def fan_out(key, n):
    """Publish other tasks from within a task."""
    for number in range(n):
        current_app.tasks["parity.note"].delay(key, number)


@task()
def on_error(request, exc, traceback, key):
    record(key, [type(exc).__name__, str(exc)])


# -- signals of a worker


_SIGNALS = ("received", "prerun", "postrun", "success", "failure", "retry", "revoked", "rejected", "internal_error")


def _record_signals():
    def connect(name):
        def handler(sender=None, task_id=None, request=None, **_):
            record("signals", [name, task_id or getattr(request, "id", None) or ""])

        getattr(signals, name).connect(handler, weak=False)

    for name in _SIGNALS:
        connect(f"task_{name}")


app = make_app(os.environ.get("BROKER_URL", "redis://"), os.environ.get("TRANSPORT"), **_MORE)
if "RECORD_SIGNALS" in os.environ:
    _record_signals()
