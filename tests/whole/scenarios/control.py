"""Remote control, events, and the command line."""

import re
import socket
import threading
from collections import Counter
from contextlib import suppress

from ...support import since
from ...support.processes import wait_until
from . import scenario
from .side import REPLY


@scenario
def inspection(side):
    inspect = side.inspect()
    (stats,) = inspect.stats().values()
    (queues,) = inspect.active_queues().values()
    (registered,) = inspect.registered().values()
    (report,) = inspect.report().values()
    (conf,) = inspect.conf().values()
    return (
        list(inspect.ping().values()),
        sorted(set(stats) - {"affinity"}),
        sorted(stats["pool"]),
        sorted(stats["broker"]),
        [stats["prefetch_count"] > 0, stats["broker"]["uri_prefix"], stats["broker"]["ssl"]],
        sorted(
            (each["name"], each["routing_key"], each["exchange"]["name"]) for each in queues if "." not in each["name"]
        ),
        sorted(each for each in registered if each.startswith(("parity", "celery"))),
        "transport:" in report["ok"],
        conf["task_default_queue"],
        list(inspect.scheduled().values()),
        list(inspect.reserved().values()),
        list(inspect.revoked().values()) != [],
        sorted(next(iter(inspect.clock().values()))),
    )


@scenario
def running_task_is_reported(side):
    key = "seen"
    result = side.tasks().hold.delay(key)
    side.records(f"{key}:started", 1)
    (active,) = wait_until(lambda: [each for each in _active(side) if each["id"] == result.id], 10, "it is active")
    (queried,) = side.inspect().query_task([result.id]).values()
    state, request = queried[result.id]
    side.release(key)
    shown = sorted(set(active)), active["name"], active["args"], active["acknowledged"]
    end = side.outcome(result)
    wait_until(lambda: not _active(side), 10, "it is reported as ended")
    (unknown,) = side.inspect().query_task("nobody").values()
    return shown, state, request["name"], sorted(active["delivery_info"]), end, unknown


def _active(side):
    return _all(side.inspect().active())


@scenario(stock_fails="" if since.SCHEDULED_IS_QUERIED else "query_task reports scheduled tasks since Celery 5.7")
def scheduled_task_is_reported(side):
    result = side.tasks().add.apply_async((1, 1), countdown=2)

    def scheduled():
        return [each for each in _all(side.inspect().scheduled()) if each["request"]["id"] == result.id]

    (found,) = wait_until(scheduled, 2, "it is scheduled")
    (queried,) = side.inspect().query_task(result.id).values()
    return sorted(found), queried[result.id][0], side.outcome(result)


@scenario(differs="a worker gets a task only when it has a free slot, so it has no reserved tasks")
def reserved_task_is_reported(side):
    tasks = side.tasks()
    held = [tasks.hold.delay("reserved") for _ in range(2)]
    side.records("reserved:started", 2)
    waiting = tasks.add.delay(1, 1)
    try:
        wait_until(lambda: waiting.id in [each["id"] for each in _all(side.inspect().reserved())], 2, "it is reserved")
    finally:
        side.release("reserved", 2)
    return [side.outcome(each) for each in (*held, waiting)]


def _all(replies):
    return [each for of_worker in (replies or {}).values() for each in of_worker]


@scenario
def added_and_cancelled_consumers(side):
    control, tasks = side.app.control, side.tasks()
    reply = control.add_consumer("extra", **REPLY)
    twice = control.add_consumer("extra", **REPLY)
    ran = side.outcome(tasks.request_of.apply_async(queue="extra"))
    gone = control.cancel_consumer("extra", **REPLY)
    left = tasks.add.apply_async((1, 2), queue="extra")
    wait_until(lambda: side.size("extra") == 1, 10, "it waits")
    back = control.add_consumer("extra", **REPLY)
    end = side.outcome(left)
    control.cancel_consumer("extra", **REPLY)
    replies = [list(each[0].values()) for each in (reply, twice, gone, back)]
    return replies, ran, end


@scenario
def changed_worker_settings(side):
    control = side.app.control
    replies = [
        control.pool_grow(2, **REPLY),
        control.pool_shrink(1, **REPLY),
        control.pool_shrink(1, **REPLY),
        control.rate_limit("parity.routed", "100/s", **REPLY),
        control.rate_limit("parity.routed", "0", **REPLY),
        control.rate_limit("parity.nobody", "1/s", **REPLY),
        control.time_limit("parity.routed", soft=1, hard=60, **REPLY),
        control.disable_events(**REPLY),
        control.enable_events(**REPLY),
    ]
    (stats,) = side.inspect().stats().values()
    return [list(each[0].values()) if each else each for each in replies], stats["pool"]["max-concurrency"]


@scenario
def grown_pool_runs_more_tasks(side):
    side.app.control.pool_grow(2, **REPLY)
    key = "grown"
    results = [side.tasks().hold.delay(key) for _ in range(4)]
    started = len(side.records(f"{key}:started", 4))
    side.release(key, 4)
    ends = [side.outcome(each)[0] for each in results]
    side.app.control.pool_shrink(2, **REPLY)
    return started, ends, side.outcome(side.tasks().add.delay(1, 1))


@scenario
def events(side):
    tasks = side.tasks()
    seen = []
    with _listening(side, seen):
        results = [tasks.add.delay(1, 1), tasks.fail.delay("seen"), tasks.third_time_lucky.delay()]
        ends = [side.outcome(each) for each in results]
        ids = {each.id: number for number, each in enumerate(results)}

        def of_tasks():
            return [each for each in seen if each.get("uuid") in ids]

        # Events: sent, received, started, and succeeded or failed; the third task has two retries more.
        wait_until(lambda: len(of_tasks()) >= 8 + 12, 10, f"all events: {sorted(e['type'] for e in of_tasks())}")
    fields = {each["type"]: sorted(set(each) - {"queue", "exchange", "routing_key"}) for each in of_tasks()}
    return ends, sorted((ids[each["uuid"]], each["type"]) for each in of_tasks()), sorted(fields.items())


class _listening:
    """A context that collects events."""

    def __init__(self, side, seen):
        self._side, self._seen = side, seen
        self._ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self):
        self._thread.start()
        wait_until(self._is_heard, 10, "events arrive")

    def __exit__(self, *_):
        self._end.set()
        self._thread.join(10)

    def _is_heard(self):
        with self._side.app.events.default_dispatcher() as dispatcher:
            dispatcher.send("test-probe")
        return any(each["type"] == "test-probe" for each in tuple(self._seen))

    def _listen(self):
        with self._side.app.connection_for_read() as connection:
            receiver = self._side.app.events.Receiver(connection, handlers={"*": self._seen.append})
            with receiver.consumer_context(no_ack=True, accept=None) as (consuming, _, _):
                while not self._end.is_set():
                    with suppress(TimeoutError):
                        consuming.drain_events(timeout=0.2)


@scenario(stock_fails="" if since.REJECTED_FAILS else "a task that rejects its message fails since Celery 5.7")
def signals(side):
    tasks = side.tasks()
    results = [tasks.add.delay(1, 1), tasks.fail.delay("signal"), tasks.third_time_lucky.delay()]
    revoked = tasks.add.apply_async((1, 1), countdown=0.3)
    side.app.control.revoke(revoked.id, **REPLY)
    unknown = side.app.send_task("no.such.task")
    rejected = tasks.rejected.delay("signal", False)
    results += [revoked, rejected]
    ends = [side.outcome(each)[0] for each in results[:4]]
    ids = {each.id: number for number, each in enumerate(results)}

    def received():
        # Whether a task revoked before its ETA has been received depends on where it waits: in the worker or in Redis.
        names = [(ids[task_id], name) for name, task_id in side.current_records("signals") if task_id in ids]
        return [each for each in names if each != (3, "task_received")]

    wait_until(lambda: _counts(received()) == {0: 3, 1: 4, 2: 11, 3: 1, 4: 4}, 10, f"signals: {sorted(received())}")
    return ends, sorted(received()), unknown.state


def _counts(numbered):
    return Counter(number for number, _ in numbered)


@scenario
def command_line(side):
    here = ["--timeout", "10", "--destination", f"shared@{socket.gethostname()}"]
    for _ in range(3):
        side.app.send_task("parity.add", (1, 1), queue="nobody")
    waited = side.size("nobody")
    replies = side.celery(
        ["purge", "-f", "-Q", "nobody"],
        ["list", "bindings"],
        ["inspect", "ping", "--json", *here],
        ["status", *here],
        ["call", "parity.add", "--args", "[2, 3]"],
        ["control", "rate_limit", "parity.routed", "0", *here],
        ["inspect", "active_queues", *here],
        ["amqp", "queue.declare", "by_hand"],
    )
    called = replies[4][2].strip().splitlines()[-1]
    end = side.outcome(side.result(called))
    (got,) = side.celery(["result", called])
    return waited, [_without_names(each) for each in replies], end, _without_names(got), side.size("nobody")


def _without_names(reply):
    code, error, text = reply
    for pattern, name in ((r"[0-9a-f-]{36}", "<id>"), (r"redis://\S+", "<url>"), (r"[\w-]+@[\w.-]+", "<node>")):
        text = re.sub(pattern, name, text)
    return [code, error, sorted(set(text.splitlines()))]


@scenario
def purging(side):
    for _ in range(3):
        side.app.send_task("parity.add", (1, 1), queue="nobody")
    with side.app.connection_for_write() as connection:
        purged = connection.default_channel.queue_purge("nobody"), connection.default_channel.queue_purge("nobody")
    for _ in range(2):
        side.app.send_task("parity.add", (1, 1), queue="nobody")
    with side.app.connection_for_write() as connection:
        connection.default_channel.queue_delete("nobody")
    return purged, side.size("nobody")
