"""Jobs that wait in Redis, as Celery's `inspect` shows what waits in a worker. Nothing here writes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from .reader import Reader
from .settings import complete

#: Jobs in one reply.
MOST = 500

#: Workers that are looked at in one round trip.
_PAGE = 10

#: A worker that was not heard of for so many beats answers nobody.
_BEATS_UNTIL_SILENT = 2

#: What stock Celery shows for an ETA in a worker's timer.
_TIMER_PRIORITY = 6

#: Returns arguments and keyword arguments of a message.
Arguments = Callable[[dict[str, Any]], tuple[Any, Any]]


def spokesman(reader: Reader) -> str | None:
    """Return the worker that lists what Redis holds: of those that would answer, the one that joined first."""
    beat_us = int(complete(reader.hash("settings"))["heartbeat_interval_us"])
    heard_after_us = reader.now_us() - _BEATS_UNTIL_SILENT * beat_us
    first = 0
    while ids := _ids(reader.ask_one("zrange", reader.key("joined"), first, first + _PAGE - 1)):
        rows = reader.ask([("hmget", reader.key("worker", each), ["accepting", "stalled"]) for each in ids])
        beats = reader.ask([("zscore", reader.key("beats"), each) for each in ids])
        for worker, (accepting, stalled), seen_us in zip(ids, rows, beats, strict=True):
            if accepting == b"1" and stalled is None and (seen_us or 0) > heard_after_us:
                return worker
        first += _PAGE
    return None


def scheduled(reader: Reader, arguments: Arguments, hostname: str) -> list[dict[str, Any]]:
    """Return the jobs that wait for their ETA, the first that are due, as `inspect scheduled` has them."""
    ids = _ids(reader.ask_one("zrange", reader.key("scheduled"), 0, MOST - 1))
    found = reader.ask([("get", reader.key("message", each)) for each in ids])
    messages = [loads(bytes_to_str(raw)) for raw in found if raw is not None]  # None: due by now, and done
    return [
        {"eta": each["headers"].get("eta"), "priority": _TIMER_PRIORITY, "request": _info(each, arguments, hostname)}
        for each in messages
    ]


def of_tasks(
    reader: Reader, task_ids: Iterable[str], arguments: Arguments, hostname: str
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return those of the tasks whose newest job is scheduled or pending, as `inspect query_task` has them."""
    asked = list(task_ids)[:MOST]
    newest = {task: found[-1] for task, found in zip(asked, reader.jobs_of(asked), strict=True) if found}
    states = reader.ask([("hget", reader.key("job", job), "state") for job in newest.values()])
    messages = reader.ask([("get", reader.key("message", job)) for job in newest.values()])
    return {
        task: (state.decode(), _info(loads(bytes_to_str(raw)), arguments, hostname))
        for task, state, raw in zip(newest, states, messages, strict=True)
        if state in (b"scheduled", b"pending") and raw is not None
    }


def _ids(members: list[bytes]) -> list[str]:
    return [each.decode() for each in members]


def _info(message: Mapping[str, Any], arguments: Arguments, hostname: str) -> dict[str, Any]:
    """Return what Celery's ``Request.info`` returns of a request that has not started."""
    headers, properties = message["headers"], message["properties"]
    delivery = properties.get("delivery_info") or {}
    args, kwargs = arguments(dict(message))
    return {
        "id": headers.get("id"),
        "name": headers.get("shadow") or headers.get("task"),
        "args": args,
        "kwargs": kwargs,
        "type": headers.get("task"),
        "hostname": hostname,
        "time_start": None,
        "acknowledged": False,
        "delivery_info": {
            "exchange": delivery.get("exchange"),
            "routing_key": delivery.get("routing_key"),
            "priority": properties.get("priority"),
            "redelivered": delivery.get("redelivered", False),
        },
        "worker_pid": None,
    }
