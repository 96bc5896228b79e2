"""Gather the facts for the checks from the server, the fleet and its cohorts.

Nothing is changed, and every wait is bounded.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, Queue
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError

from ..clock import SECOND_US
from ..errors import AffinityError
from ..http_workers import handout
from ..publishing.app_config import settings_of
from ..reports import history, key_usage
from ..reports.status import Report, Status
from ..reports.stock_messages import StockMessages
from ..scheduler.reader import Reader
from ..scheduler.runtime_settings import read_settings
from ..scheduler.scheduler import Scheduler
from ..scheduler.server_info import stated_cohorts
from ..schema.constants import FORCE
from ..schema.keys import SCHEMA
from ..schema.values import decode_number, decode_part, decode_text
from ..settings.cohorts import shown_cohorts
from ..settings.table import Settings
from ..settings.wire import complete_settings
from ..transport import app_api
from ..transport.app_api import stock_lists_of
from ..transport.channel import AffinityChannel
from .facts import AppFacts, Facts, FleetFacts, MemberFacts, OtherCohortMap, WorkerAnswer, gather_app
from .results import BackendQuery
from .server import gather_server
from .workers import answers_of_workers

#: Maximum number of keys that are read per cohort.
_MAX_KEYS = 1_000

#: Maximum time for all facts, in seconds, without twice the time that workers have to answer.
_TIMEOUT_S = 25.0

_TRANSPORT = "celery_affinity:Transport"


def gather_facts(app: Celery, *, fleet: bool = True, answers_within_s: float = 1.0) -> Facts:
    """Return the facts of *app*, of its broker and, with *fleet*, of workers and jobs.

    Workers have *answers_within_s* to answer.
    """
    own = gather_app(app)
    if own.conf_refused:
        return Facts(own)
    backend_query = BackendQuery(app)
    facts = _gather_from_broker(app, own, fleet=fleet, answers_within_s=answers_within_s)
    return replace(facts, results=backend_query.answer())


def _gather_from_broker(app: Celery, own: AppFacts, *, fleet: bool, answers_within_s: float) -> Facts:
    if own.url_refused or own.keys_refused:
        return Facts(own)
    # The facts are gathered in a thread, because two waits cannot be bounded: for a host name's resolution, and for
    # closing the connection to a stopped server.
    outcomes: Queue[Facts | Exception] = Queue()
    arguments = app, own, answers_within_s if fleet else None, outcomes
    threading.Thread(target=_gather_into, args=arguments, daemon=True).start()
    timeout_s = _TIMEOUT_S + 2 * answers_within_s
    try:
        facts = outcomes.get(timeout=timeout_s)
    except Empty:
        return Facts(own, down=f"no end within {timeout_s:g} s")
    if isinstance(facts, Exception):
        raise facts
    return facts


def _gather_into(
    app: Celery, own: AppFacts, answers_within_s: float | None, outcomes: "Queue[Facts | Exception]"
) -> None:
    with _connection(app) as connection:
        try:
            outcomes.put(_gather_on(connection, app, own, answers_within_s))
        except (OperationalError, RedisError, AffinityError, OSError, ValueError, *connection.connection_errors) as exc:
            # kombu raises ValueError for a database that is not a number, or a URL without a Sentinel's master.
            outcomes.put(Facts(own, down=str(exc) or type(exc).__name__))
        except Exception as exc:  # raised again in the waiting thread
            outcomes.put(exc)


def _connection(app: Celery) -> Any:
    """Return a connection with this transport, regardless of the app's, and with a timeout for each wait."""
    options = app.conf.broker_transport_options or {}
    max_s = app_api.PATIENCE_S
    bounds = {name: min(options.get(name) or max_s, max_s) for name in ("socket_timeout", "socket_connect_timeout")}
    retries = {"max_retries": 0, "interval_start": 0}
    return app.connection_for_write(transport=_TRANSPORT, transport_options={**bounds, **retries})


def _gather_on(connection: Any, app: Celery, own: AppFacts, answers_within_s: float | None) -> Facts:
    channel = app_api.channel_on(connection, _TRANSPORT)
    scheduler = _scheduler_of(channel)
    server = gather_server(scheduler.reader, scheduler.client)
    if server.schema not in (None, str(SCHEMA)):
        return Facts(own, server)
    other_map = _differing_map(app, scheduler.reader)
    if answers_within_s is None or other_map is not None:
        return Facts(own, server, other_map=other_map)
    cohorts = dict(_gather_in_cohorts(own, channel))
    own = replace(own, cohort=channel.keys.cohort)
    is_full = server.has_no_room_for_replies
    used = server.number("used_memory") / server.number("maxmemory") if is_full else 0.0
    not_asked = f"the server uses {min(1.0, used):.0%} of its maxmemory" if is_full else None
    # All workers are on the broker of `default`, regardless of their cohorts.
    query = None if is_full else partial(answers_of_workers, app, connection, scheduler.reader, answers_within_s)
    fleet = _fleet(own, channel, scheduler, query, not_asked=not_asked)
    fleets = [cohort.fleet for cohort in cohorts.values()]
    ids = {member.id for fleet in fleets if fleet is not None for member in fleet.members}
    return Facts(own, server, replace(fleet, elsewhere=None if None in fleets else frozenset(ids)), cohorts=cohorts)


def _scheduler_of(channel: AffinityChannel) -> Scheduler:
    # The channel's scheduler would write the schema number to a server that has none.
    return Scheduler(redis.Redis(connection_pool=channel.pool), channel.keys)


def _gather_in_cohorts(own: AppFacts, channel: AffinityChannel) -> Iterator[tuple[str, Facts]]:
    """Yield the name and the facts of each cohort. A cohort that is down has only the fact `down`."""
    routes = channel.routes
    for name in () if routes is None else routes.names:
        try:
            there = routes.channel_of(name)  # type: ignore[union-attr]  # not None, because there are names
            scheduler = _scheduler_of(there)
            app = replace(own, cohort=name)
            server = gather_server(scheduler.reader, scheduler.client)
            yield name, Facts(app, server, _fleet(app, there, scheduler, None, not_asked=None))
        except (OperationalError, RedisError, OSError, AffinityError) as exc:
            yield name, Facts(own, down=str(exc))


def _differing_map(app: Celery, reader: Reader) -> OtherCohortMap | None:
    """Return the fleet's cohort map if it differs from the app's; the app's processes are rejected then."""
    stated = reader.ask_one("get", reader.key("schema"))
    with suppress(AffinityError):  # one of the app's errors
        own = shown_cohorts(settings_of(app).cohort_map)
        revision, in_force = stated_cohorts(stated)
        if stated is not None and in_force != own:
            return OtherCohortMap(own, in_force, revision)
    return None


def _fleet(
    own: AppFacts,
    channel: AffinityChannel,
    scheduler: Scheduler,
    query: Callable[[], tuple[WorkerAnswer, ...]] | None,
    *,
    not_asked: str | None,
) -> FleetFacts:
    """Return the facts of the cohort of *channel*. *query*: queries the workers by remote control."""
    reader, conf = scheduler.reader, own.settings
    report = Report(reader, conf.max_pending)
    before = _members(reader, report.status())
    try:
        answers = () if query is None else query()
    except (ResponseError, OperationalError) as exc:
        if not isinstance(exc.__cause__ or exc, ResponseError):
            raise
        answers, not_asked = (), str(exc)
    status = report.status()
    # Include the members of both reports, because a worker can join or leave in between.
    members = {**before, **_members(reader, status)}
    settings = complete_settings(reader.hash("settings"))
    ticked_us = reader.fields("clock", ["ticked"]).get("ticked")
    keys = key_usage.find_keys(reader, "*", _MAX_KEYS).keys if conf.cohorts else []
    fleet = FleetFacts(
        own,
        status,
        answers=answers,
        members=tuple(members.values()),
        ticked_s=None if ticked_us is None else max(0.0, (reader.now_us() - decode_number(ticked_us)) / SECOND_US),
        settings=tuple(read_settings(scheduler, conf)),
        heartbeat_s=int(settings["heartbeat_interval_us"]) / SECOND_US,
        namespace=channel.namespace,
        not_asked=not_asked,
        limits_in_use=tuple(pattern for pattern in own.limits if key_usage.find_keys(reader, pattern, 1).keys),
        keys_in_use=frozenset(key.key for key in keys if key.limit is not None or key.starts or key.minimum),
        left_to_celery=tuple(_left_to_celery(reader, status)),
        run_times=sum(reader.ask([("hlen", reader.key(name)) for name in ("run_times", "durations")])),
        due_jobs=reader.ask_one("zcard", reader.key("due_times")),
        waits_p99_s=history.recent_waits_s(reader, 0.99),
    )
    messages = StockMessages(
        reader,
        stock_lists_of(own.celery),
        scheduler.keys.of_kombu,
        sorted({*own.declared, *fleet.pending, *fleet.served}),
    )
    in_lists = {q.queue: q for q in messages.waiting() if _is_in_cohort(conf, q.queue, scheduler.keys.cohort)}
    oldest = {q.queue: q for q in messages.unserved(fleet.served) if q.queue in in_lists} if in_lists else {}
    return replace(fleet, stock_messages={**in_lists, **oldest}, more_lists=not messages.are_all)


def _left_to_celery(reader: Reader, status: Status) -> list[handout.JobLeftToCelery]:
    jobs = []
    with suppress(ResponseError):  # no right to the key
        jobs = handout.still_left(reader, [worker.id for worker in status.workers if worker.withdrawn])
    return sorted(jobs, key=lambda job: job.job_id)


def _members(reader: Reader, status: Status) -> dict[str, MemberFacts]:
    ids = [worker.id for worker in status.workers]
    stops = reader.ask([("hget", reader.key("worker", id_), "stops") for id_ in ids])
    joined = reader.ask([("zscore", reader.key("joined"), id_) for id_ in ids])
    now_us = reader.now_us()
    return {
        worker.id: MemberFacts(
            *(worker.id, worker.name, tuple(worker.types), worker.last_heartbeat_s, worker.stalled),
            _preemptible_tasks(tasks),
            None if at_us is None else max(0.0, (now_us - decode_number(at_us)) / SECOND_US),
        )
        for worker, tasks, at_us in zip(status.workers, stops, joined, strict=True)
    }


def _preemptible_tasks(field: Any) -> frozenset[str] | None:
    """Return the tasks that a worker can preempt, from field `stops` of its hash, or None for all."""
    stops = decode_text(field or b"")
    return None if stops == FORCE else frozenset(map(decode_part, stops.split()))


def _is_in_cohort(conf: Settings, queue: str, cohort: str) -> bool:
    with suppress(AffinityError):  # several cohorts match, so calls fail with this error
        return conf.cohort_of(queue) == cohort
    return False
