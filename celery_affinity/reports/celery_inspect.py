"""List waiting jobs in Redis in the form in which Celery's `inspect` shows a worker's waiting jobs."""

from collections.abc import Callable, Iterable
from typing import Any

from kombu.utils.json import object_hook

from ..scheduler.reader import Reader
from ..schema.constants import is_heartbeat_late
from ..schema.untrusted import loads
from ..schema.values import decode_text
from ..settings.wire import complete_settings
from .job_rows import read_jobs

#: Maximum number of jobs in one reply.
MAX_TASKS = 500

#: Number of workers that one round trip reads.
_PAGE = 10

#: Stock Celery's priority for a task with an ETA, an entry of a worker's timer.
_TIMER_PRIORITY = 6

#: A JSON object: a message, or a part of a reply to `inspect`.
Json = dict[str, Any]

#: A function that returns the arguments and the keyword arguments of a message.
Arguments = Callable[[Json], tuple[object, object]]


def responder_id(reader: Reader) -> str | None:
    """Return the id of the worker that lists the jobs in Redis: the first to join of those able to answer, or None."""
    heartbeat_us = int(complete_settings(reader.hash("settings"))["heartbeat_interval_us"])
    now_us = reader.now_us()
    first = 0
    while ids := _ids(reader.ask_one("zrange", reader.key("joined"), first, first + _PAGE - 1)):
        rows = reader.ask([("hmget", reader.key("worker", worker), ["accepting", "stalled"]) for worker in ids])
        heartbeats = reader.ask([("zscore", reader.key("heartbeats"), worker) for worker in ids])
        for worker, (accepting, stalled), seen_us in zip(ids, rows, heartbeats, strict=True):
            if accepting == b"1" and stalled is None and not is_heartbeat_late(now_us - (seen_us or 0), heartbeat_us):
                return worker
        first += _PAGE
    return None


def scheduled_tasks(reader: Reader, arguments: Arguments, hostname: str) -> list[Json]:
    """Return the jobs that wait for their ETA, those due next first, in the form of `inspect scheduled`."""
    ids = _ids(reader.ask_one("zrange", reader.key("scheduled"), 0, MAX_TASKS - 1))
    messages = reader.ask([("get", reader.key("message", job_id)) for job_id in ids])
    present = (raw for raw in messages if raw is not None)  # None: the job became due, and ended
    infos = (_info(raw, arguments, hostname) for raw in present)
    return [{"eta": eta, "priority": _TIMER_PRIORITY, "request": info} for eta, info in infos]


def queried_tasks(
    reader: Reader, task_ids: Iterable[str], arguments: Arguments, hostname: str
) -> dict[str, tuple[str, Json]]:
    """Return the tasks whose newest job is scheduled or pending, in the form of `inspect query_task`."""
    ids = list(task_ids)[:MAX_TASKS]
    newest = {task: jobs[-1] for task, jobs in zip(ids, reader.jobs_of(ids), strict=True) if jobs}
    jobs = read_jobs(reader, list(newest.values()), ("state",))
    messages = reader.ask([("get", reader.key("message", job)) for job in newest.values()])
    return {
        task: (job.state, _info(raw, arguments, hostname)[1])
        for task, job, raw in zip(newest, jobs, messages, strict=True)
        if job.state in ("scheduled", "pending") and raw is not None
    }


def _ids(members: list[bytes]) -> list[str]:
    return [decode_text(member) for member in members]


def _info(raw: bytes, arguments: Arguments, hostname: str) -> tuple[object, Json]:
    """Return the ETA, and the dict that Celery's ``Request.info`` returns for a request that has not started.

    Every value of an unreadable message is None: the worker that gets the message refuses it, and must be able to show
    the others.
    """
    try:
        message = loads(raw, object_hook=object_hook)
        headers, properties = message["headers"], message["properties"]
        delivery = properties.get("delivery_info") or {}
        eta, id_, task = (headers.get(name) for name in ("eta", "id", "task"))
        name, (args, kwargs) = headers.get("shadow") or task, arguments(message)
        exchange, routing_key = delivery.get("exchange"), delivery.get("routing_key")
        priority, redelivered = properties.get("priority"), delivery.get("redelivered", False)
    except Exception:  # any: a message may be anything
        eta = id_ = task = name = args = kwargs = exchange = routing_key = priority = None
        redelivered = False
    return eta, {
        "id": id_,
        "name": name,
        "args": args,
        "kwargs": kwargs,
        "type": task,
        "hostname": hostname,
        "time_start": None,
        "acknowledged": False,
        "delivery_info": {
            "exchange": exchange,
            "routing_key": routing_key,
            "priority": priority,
            "redelivered": redelivered,
        },
        "worker_pid": None,
    }
