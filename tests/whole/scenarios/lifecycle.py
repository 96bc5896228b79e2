"""Other pools and settings of workers, and shutdowns."""

import signal
import socket
import sys

from celery import chord

from ...support.processes import Process, wait_until
from . import scenario
from .side import APP, REPLY


def _pool(side, pool):
    """Run all kinds of tasks on a pool, and shut the worker down warmly during a task."""
    tasks = side.tasks()
    with side.running_worker(pool, pool, pool=pool) as worker:
        here = {"queue": pool}
        results = [
            tasks.add.apply_async((1, 1), **here),
            tasks.add.apply_async((1, 1), countdown=0.2, **here),
            tasks.fail.apply_async(("here",), **here),
            tasks.third_time_lucky.apply_async(**here),
            chord([tasks.add.s(1, 1).set(**here), tasks.add.s(2, 2).set(**here)])(tasks.total.s().set(**here)),
        ]
        ends = [side.outcome(each) for each in results]
        expired = tasks.add.apply_async((1, 1), expires=-1, **here)
        revoked = tasks.add.apply_async((1, 1), countdown=0.5, **here)
        side.app.control.revoke(revoked.id, **REPLY, destination=[_node(worker)])
        ends += [side.failure(expired), side.failure(revoked)]
        if pool != "solo":
            results = [tasks.hold.apply_async((pool,), **here) for _ in range(2)]
            side.records(f"{pool}:started", 2)
        worker.term()
        side.release(pool, 2)
        code = worker.wait(20)
        return ends, code, [each.state for each in results]


def _node(worker):
    return f"{worker.name}@{socket.gethostname()}"


@scenario
def threads_pool(side):
    return _pool(side, "threads")


@scenario
def solo_pool(side):
    return _pool(side, "solo")


@scenario
def gevent_pool(side):
    return _pool(side, "gevent")


@scenario
def eventlet_pool(side):
    return _pool(side, "eventlet")


def _shut_down(side, key, *numbers, settings=None):
    """Shut down a worker with two running and further waiting tasks, which another worker then completes."""
    tasks = side.tasks()
    with side.running_worker(key, key, settings=settings) as worker:
        running = [tasks.hold.apply_async((key,), queue=key), tasks.hold_late.apply_async((key,), queue=key)]
        side.records(f"{key}:started", 2)
        waiting = [tasks.add.apply_async((number, 1), queue=key) for number in range(3)]
        later = tasks.add.apply_async((5, 5), queue=key, countdown=0.2)
        for number in numbers:
            worker.signal(number)
            wait_until(lambda: "hutdown" in worker.log() or not worker.is_running, 10, "it shuts down")
        if numbers == (signal.SIGTERM,) or numbers == (signal.SIGINT,):
            side.release(key, 2)
        code = worker.wait(30)
    side.app.control.add_consumer(key, **REPLY)
    side.release(key, 2)
    ends = [side.outcome(each) for each in (*waiting, later, running[1])]
    side.app.control.cancel_consumer(key, **REPLY)
    return code, ends, running[0].state, len(side.current_records(f"{key}:started"))


@scenario
def warm_shutdown(side):
    return _shut_down(side, "warm", signal.SIGTERM)


@scenario
def keyboard_shutdown(side):
    return _shut_down(side, "keyboard", signal.SIGINT)


@scenario(differs="an interrupted early-acked task is reported as lost; with Celery its state stays RETRY")
def cold_shutdown(side):
    return _shut_down(side, "cold", signal.SIGQUIT)


@scenario(differs="like a cold shutdown, after the timeout")
def soft_shutdown(side):
    return _shut_down(side, "soft", signal.SIGQUIT, settings={"worker_soft_shutdown_timeout": 1})


@scenario
def unusual_settings(side):
    """Run tasks on a worker with many rarely used settings, and a new pool process for each task."""
    settings = {
        "worker_disable_prefetch": True,
        "broker_pool_limit": 0,
        "task_protocol": 1,
        "task_acks_late": True,
        "worker_enable_remote_control": False,
        "task_default_priority": 5,
        "task_inherit_parent_priority": True,
        "worker_lost_wait": 1,
        "broker_transport_options": {
            "visibility_timeout": 60,
            "socket_timeout": 20,
            "socket_keepalive": True,
            "health_check_interval": 5,
            "queue_order_strategy": "priority",
            "fanout_prefix": True,
            "max_connections": 50,
        },
    }
    extra = ["--max-tasks-per-child=1", "--autoscale=3,1", "--max-memory-per-child=1", "-O", "fair"]
    tasks = side.tasks()
    with side.running_worker("unusual", "unusual", settings=settings, extra=extra):
        results = [tasks.add.apply_async((number, 1), queue="unusual", priority=number) for number in range(6)]
        ends = [side.outcome(each) for each in results]
        held = [tasks.hold.apply_async(("unusual",), queue="unusual") for _ in range(3)]
        grown = len(side.records("unusual:started", 3))
        side.release("unusual", 3)
        return ends, grown, [side.outcome(each) for each in held]


@scenario
def results_by_rpc(side):
    app = side.new_app(result_backend="rpc://")
    tasks = side.tasks(app)
    with side.running_worker("rpc", "rpc", settings={"result_backend": "rpc://"}) as worker:
        here = {"queue": "rpc"}
        linked = tasks.add.s(1, 1).set(**here) | tasks.add.s(1).set(**here)
        results = [
            tasks.add.apply_async((1, 1), **here),
            tasks.fail.apply_async(("by rpc",), **here),
            tasks.third_time_lucky.apply_async(**here),
            linked.apply_async(),
        ]
        ends = [side.outcome(each) for each in results]
        several = [tasks.add.apply_async((number, 0), **here) for number in range(10)]
        ends.append([each.get(timeout=20) for each in several])
        side.app.control.shutdown(destination=[_node(worker)])
        ends.append(worker.wait(20))
    app.close()
    return ends


@scenario
def priorities(side):
    """Tasks published without a worker run by priority, the lowest number first, and then in order."""
    settings = {"worker_prefetch_multiplier": 1, "affinity_priority_order": "lower-first"}
    app = side.new_app(affinity_priority_order="lower-first")
    app.set_current()
    for priority in (9, 0, 6, 3, 9, 0, 6, 3):
        side.tasks(app).note.apply_async(("priorities", priority), priority=priority, queue="priorities")
    side.app.set_current()
    with side.running_worker("priorities", "priorities", settings=settings, pool="solo", concurrency=1):
        order = side.records("priorities", 8)
    app.close()
    return order


@scenario
def beat(side):
    command = [sys.executable, "-m", "celery", "-A", APP, "beat", "--scheduler", "celery.beat:Scheduler"]
    process = Process(f"heartbeat-{side.name}", command, side.environment())
    try:
        return set(side.records("ticks", 3))
    finally:
        process.end()
