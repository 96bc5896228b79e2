"""Gather the facts for the checks from the server, the fleet and its cohorts.

Nothing is changed, and every wait is bounded.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Queue
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError

from ..clock import SECOND_US
from ..errors import AffinityError
from ..http_workers import handout
from ..options.type_names import misspelt_type
from ..publishing.app_config import settings_of
from ..reports import key_usage, sentences
from ..reports.status import Report, Status
from ..reports.stock_messages import StockMessages
from ..scheduler import runtime_settings
from ..scheduler.reader import Reader
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
from .app import gather_app
from .cohorts import keys_in_use
from .facts import AppFacts, ChangedSetting, Facts, FleetFacts, FullBound, MemberFacts, OtherCohortMap
from .results import BackendQuery
from .server import gather_server
from .workers import answers_of_workers


def gather_in_cohorts(
    own: AppFacts,
    channel: AffinityChannel,
    app_facts_of: Callable[[str], AppFacts],
    fleet_of: Callable[[AppFacts, AffinityChannel, Scheduler], FleetFacts],
) -> Iterator[tuple[str, Facts]]:
    """Yield the name and the facts of each cohort. A cohort that is down has only the fact `down`."""
    routes = channel.routes
    for name in () if routes is None else routes.names:
        try:
            there = routes.channel_of(name)  # type: ignore[union-attr]  # not None, because there are names
            # The channel's scheduler would write the schema number to a server without one.
            scheduler = Scheduler(redis.Redis(connection_pool=there.pool), there.keys)
            app = app_facts_of(name)
            yield name, Facts(app, gather_server(scheduler.reader, scheduler.client), fleet_of(app, there, scheduler))
        except (OperationalError, RedisError, OSError, AffinityError) as exc:
            yield name, Facts(own, down=str(exc))


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
    # The channel's scheduler would write the schema number to a server without one.
    scheduler = Scheduler(redis.Redis(connection_pool=channel.pool), channel.keys)
    server = gather_server(scheduler.reader, scheduler.client)
    if server.schema not in (None, str(SCHEMA)):
        return Facts(own, server)
    other_map = _differing_map(app, scheduler.reader)
    if answers_within_s is None or other_map is not None:
        return Facts(own, server, other_map=other_map)

    def fleet_of(facts: AppFacts, there: AffinityChannel, cohort: Scheduler) -> FleetFacts:
        return _fleet(app, facts, None, there, cohort, cohort.reader, answers_within_s, not_asked=None)

    others = dict(gather_in_cohorts(own, channel, lambda name: _limit_to_cohort(own, app, name), fleet_of))
    own = _limit_to_cohort(own, app, channel.keys.cohort)
    is_full = server.has_no_room_for_replies
    used = f"the server uses {min(1.0, server.used / server.maxmemory):.0%} of its maxmemory" if is_full else None
    to_workers = None if is_full else connection
    fleet = _fleet(app, own, to_workers, channel, scheduler, scheduler.reader, answers_within_s, not_asked=used)
    ids = [None if one.fleet is None else {member.id for member in one.fleet.members} for one in others.values()]
    elsewhere = None if None in ids else frozenset().union(*(cohort_ids for cohort_ids in ids if cohort_ids))
    return Facts(own, server, replace(fleet, elsewhere=elsewhere), cohorts=others)


def _differing_map(app: Celery, reader: Reader) -> OtherCohortMap | None:
    """Return the fleet's cohort map if it differs from the app's; the app's processes are rejected then."""
    stated = reader.ask_one("get", reader.key("schema"))
    with suppress(AffinityError):  # reported by `gather_app`
        own = shown_cohorts(settings_of(app).cohort_map)
        revision, in_force = stated_cohorts(stated)
        if stated is not None and in_force != own:
            return OtherCohortMap(own, in_force, revision)
    return None


def _limit_to_cohort(own: AppFacts, app: Celery, cohort: str) -> AppFacts:
    """Return *own* with only the declared types of *cohort*, because other types have their workers elsewhere."""
    with suppress(AffinityError):  # reported by `gather_app`
        settings = settings_of(app)
        if settings.cohorts:
            declared = {type_: places for type_, places in own.declared.items() if settings.cohort_of(type_) == cohort}
            return replace(own, declared=declared)
    return own


def _fleet(
    app: Celery,
    own: AppFacts,
    connection: Any,
    channel: AffinityChannel,
    scheduler: Scheduler,
    reader: Reader,
    answers_within_s: float,
    *,
    not_asked: str | None,
) -> FleetFacts:
    conf = _conf(app)
    report = Report(reader, conf.max_pending)
    before = _members(reader, report.status())
    try:
        # All workers are on the broker of `default`, regardless of their cohorts.
        answers = () if connection is None else answers_of_workers(app, connection, reader, answers_within_s)
    except (ResponseError, OperationalError) as exc:
        if not isinstance(exc.__cause__ or exc, ResponseError):
            raise
        answers, not_asked = (), str(exc)
    status = report.status()
    # Include the members of both reports, because a worker can join or leave in between.
    members = {**before, **_members(reader, status)}
    settings = complete_settings(reader.hash("settings"))
    ticked_us = reader.fields("clock", ["ticked"]).get("ticked")
    pending = {type_.type: type_.pending for type_ in status.types if type_.pending}
    served = {type_ for member in members.values() for type_ in member.types}
    lists = stock_lists_of(app)
    messages = StockMessages(reader, lists, scheduler.keys.of_kombu, sorted({*own.declared, *pending, *served}))
    cohort = scheduler.keys.cohort
    in_lists = {q.queue: q.messages for q in messages.waiting() if _is_in_cohort(conf, q.queue, cohort)}
    return FleetFacts(
        answers=answers,
        members=tuple(members.values()),
        pending=pending,
        stock_messages=in_lists,
        oldest=dict(_oldest(messages, served)) if in_lists else {},
        left_to_kombu=frozenset(queue for queue in in_lists if not lists.schedules(queue)),
        more_lists=not messages.are_all,
        scheduled=status.scheduled,
        dead=status.dead,
        unserved=status.counters.get("unserved", 0),
        ticked_s=None if ticked_us is None else max(0.0, (reader.now_us() - decode_number(ticked_us)) / SECOND_US),
        settings=_changed_settings(app, scheduler),
        reserves=tuple(one.sentence for type_ in status.types for one in type_.reserves if one.is_too_large),
        heartbeat_s=int(settings["heartbeat_interval_us"]) / SECOND_US,
        namespace=channel.namespace,
        not_asked=not_asked,
        full=tuple(_full(status)),
        limits_in_use=tuple(pattern for pattern in own.limits if key_usage.find_keys(reader, pattern, 1).keys),
        slots=sum(worker.slots for worker in status.workers),
        minima={one.name: one.minimum for one in status.tenants if one.is_named and one.minimum},
        tenants_misspelt=dict(_tenants_misspelt(status)),
        keys_in_use=keys_in_use(reader, conf),
        left_to_celery=tuple(_left_to_celery(reader, status)),
    )


def _left_to_celery(reader: Reader, status: Status) -> list[handout.JobLeftToCelery]:
    jobs = []
    with suppress(ResponseError):  # no right to the key
        jobs = handout.still_left(reader, [worker.id for worker in status.workers if worker.withdrawn])
    return sorted(jobs, key=lambda job: job.job_id)


def _tenants_misspelt(status: Status) -> Iterator[tuple[str, str]]:
    """Yield tenants with a quota but no job, and a tenant of similar name that has jobs but no quota."""
    others = [tenant.name for tenant in status.tenants if not tenant.is_named]
    for tenant in status.tenants:
        if tenant.is_named and not tenant.held and not tenant.waiting and (meant := misspelt_type(tenant.name, others)):
            yield tenant.name, meant


def _full(status: Status) -> Iterator[FullBound]:
    """Yield the types whose bound of pending jobs is reached, with their pauses."""
    for type_ in status.types:
        if type_.bound and type_.pending >= type_.bound.most:
            pauses = [
                sentences.pause_sentence(pause)
                for pause in status.pauses
                if pause.kind == "all" or (pause.kind == "type" and pause.name == type_.type)
            ]
            yield FullBound(type_.type, type_.pending, type_.bound.most, type_.bound.full, tuple(pauses))


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


def _oldest(messages: StockMessages, served: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the queues with messages but without a worker of the fleet, and describe the oldest message."""
    for queue in messages.unserved(served):
        age = "" if queue.oldest_s is None else f", {queue.oldest_s / 60:,.0f} min old"
        if age or queue.oldest_task is not None:
            yield queue.queue, f"{queue.oldest_task or 'a task without a readable name'}{age}"


def _changed_settings(app: Celery, scheduler: Scheduler) -> tuple[ChangedSetting, ...]:
    settings = runtime_settings.read_settings(scheduler, _conf(app))
    return tuple(ChangedSetting(one.name, one.value, one.conf, one.own, one.damaged_s is not None) for one in settings)


def _conf(app: Celery) -> Settings:
    try:
        return settings_of(app)
    except AffinityError:  # another rule reports this error
        return Settings()
