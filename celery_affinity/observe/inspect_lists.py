"""Jobs that wait in Redis, as Celery's `inspect` shows what waits in a worker. Nothing here writes."""

from collections.abc import Callable, Iterable
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from ..rules.rows import text_of
from ..rules.settings import complete
from ..server.reader import Reader

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
    infos = [_info(raw, arguments, hostname) for raw in found if raw is not None]  # None: due by now, and done
    return [{"eta": eta, "priority": _TIMER_PRIORITY, "request": info} for eta, info in infos]


def of_tasks(
    reader: Reader, task_ids: Iterable[str], arguments: Arguments, hostname: str
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return those of the tasks whose newest job is scheduled or pending, as `inspect query_task` has them."""
    asked = list(task_ids)[:MOST]
    newest = {task: found[-1] for task, found in zip(asked, reader.jobs_of(asked), strict=True) if found}
    states = reader.ask([("hget", reader.key("job", job), "state") for job in newest.values()])
    messages = reader.ask([("get", reader.key("message", job)) for job in newest.values()])
    return {
        task: (state.decode(), _info(raw, arguments, hostname)[1])
        for task, state, raw in zip(newest, states, messages, strict=True)
        if state in (b"scheduled", b"pending") and raw is not None
    }


def _ids(members: list[bytes]) -> list[str]:
    return [text_of(each) for each in members]


def _info(raw: bytes, arguments: Arguments, hostname: str) -> tuple[Any, dict[str, Any]]:
    """Return ETA and what Celery's ``Request.info`` returns of a request that has not started; None: cannot be read."""
    try:
        message = loads(bytes_to_str(raw))
        headers, properties = message["headers"], message["properties"]
        delivery = properties.get("delivery_info") or {}
        eta, id_, task = (headers.get(name) for name in ("eta", "id", "task"))
        name, (args, kwargs) = headers.get("shadow") or task, arguments(message)
        exchange, routing_key = delivery.get("exchange"), delivery.get("routing_key")
        priority, redelivered = properties.get("priority"), delivery.get("redelivered", False)
    except Exception:  # whatever it is, the others are to be shown: the worker that gets it refuses it
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
