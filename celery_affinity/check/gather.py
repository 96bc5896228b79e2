"""Gather the facts of the cohorts beside `default`: of their servers, and of the workers and jobs there.

Gather the facts for the checks from server and fleet. Nothing is changed, and no wait is long.
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
from .facts import AppFacts, ChangedSetting, Facts, FleetFacts, FullBound, JobLeftToCelery, MemberFacts, OtherCohortMap
from .results import BackendQuery
from .server import gather_server
from .workers import answers_of_workers


def gather_in_cohorts(
    own: AppFacts,
    channel: AffinityChannel,
    of_cohort: Callable[[str], AppFacts],
    fleet_of: Callable[[AppFacts, AffinityChannel, Scheduler], FleetFacts],
) -> Iterator[tuple[str, Facts]]:
    """Yield the name and the facts of each cohort. One that is down is said to be, and holds up no other."""
    routes = channel.routes
    for name in () if routes is None else routes.names:
        try:
            its = routes.channel_of(name)  # type: ignore[union-attr]  # there are names
            # The channel's own scheduler would write the schema to a server without one.
            scheduler = Scheduler(redis.Redis(connection_pool=its.pool), its.keys)
            app = of_cohort(name)
            yield name, Facts(app, gather_server(scheduler.reader, scheduler.client), fleet_of(app, its, scheduler))
        except (OperationalError, RedisError, OSError, AffinityError) as exc:
            yield name, Facts(own, down=str(exc))


#: Longest wait, s, for all facts; twice the time given to workers comes on top.
_MOST_S = 25.0

_TRANSPORT = "celery_affinity:Transport"


def gather_facts(app: Celery, *, fleet: bool = True, answers_within_s: float = 1.0) -> Facts:
    """Return the facts of *app*, of its broker and, with *fleet*, of workers and jobs.

    Workers have *answers_within_s* to answer.
    """
    own = gather_app(app)
    if own.conf_refused:
        return Facts(own)
    asking = BackendQuery(app)
    facts = _of_broker(app, own, fleet=fleet, answers_within_s=answers_within_s)
    return replace(facts, results=asking.answer())


def _of_broker(app: Celery, own: AppFacts, *, fleet: bool, answers_within_s: float) -> Facts:
    if own.url_refused or own.keys_refused:
        return Facts(own)
    # The facts are gathered in a thread, since two waits have no bound that we could set: for a resolver's answer about
    # a host name, and for the end of a connection to a server that stopped.
    found: Queue[Facts | Exception] = Queue()
    arguments = app, own, answers_within_s if fleet else None, found
    threading.Thread(target=_ask_all, args=arguments, daemon=True).start()
    most_s = _MOST_S + 2 * answers_within_s
    try:
        facts = found.get(timeout=most_s)
    except Empty:
        return Facts(own, down=f"no end within {most_s:g} s")
    if isinstance(facts, Exception):
        raise facts
    return facts


def _ask_all(app: Celery, own: AppFacts, answers_within_s: float | None, found: "Queue[Facts | Exception]") -> None:
    with _connection(app) as connection:
        try:
            found.put(_on(connection, app, own, answers_within_s))
        except (OperationalError, RedisError, AffinityError, OSError, ValueError, *connection.connection_errors) as exc:
            # ValueError: kombu's, for a database that is no number, or a URL without a Sentinel's master.
            found.put(Facts(own, down=str(exc) or type(exc).__name__))
        except Exception as exc:  # raised in the thread that waits
            found.put(exc)


def _connection(app: Celery) -> Any:
    """Return a connection with this transport, whatever the app's is, and with a bound on each wait."""
    options = app.conf.broker_transport_options or {}
    most_s = app_api.PATIENCE_S
    bounds = {name: min(options.get(name) or most_s, most_s) for name in ("socket_timeout", "socket_connect_timeout")}
    retries = {"max_retries": 0, "interval_start": 0}
    return app.connection_for_write(transport=_TRANSPORT, transport_options={**bounds, **retries})


def _on(connection: Any, app: Celery, own: AppFacts, answers_within_s: float | None) -> Facts:
    channel = app_api.channel_on(connection, _TRANSPORT)
    # The channel's own scheduler would write the schema to a server without one.
    scheduler = Scheduler(redis.Redis(connection_pool=channel.pool), channel.keys)
    server = gather_server(scheduler.reader, scheduler.client)
    if server.schema not in (None, str(SCHEMA)):
        return Facts(own, server)
    other_map = _other_map(app, scheduler.reader)
    if answers_within_s is None or other_map is not None:
        return Facts(own, server, other_map=other_map)

    def fleet_of(its: AppFacts, where: AffinityChannel, one: Scheduler) -> FleetFacts:
        return _fleet(app, its, None, where, one, one.reader, answers_within_s, not_asked=None)

    others = dict(gather_in_cohorts(own, channel, lambda name: _of_cohort(own, app, name), fleet_of))
    own = _of_cohort(own, app, channel.keys.cohort)
    is_full = server.has_no_room_for_replies
    used = f"the server uses {min(1.0, server.used / server.maxmemory):.0%} of its maxmemory" if is_full else None
    where = None if is_full else connection
    fleet = _fleet(app, own, where, channel, scheduler, scheduler.reader, answers_within_s, not_asked=used)
    fleets = [each.fleet for each in others.values()]
    ids = [None if each is None else {member.id for member in each.members} for each in fleets]
    elsewhere = None if None in ids else frozenset().union(*(each for each in ids if each))
    return Facts(own, server, replace(fleet, elsewhere=elsewhere), cohorts=others)


def _other_map(app: Celery, reader: Reader) -> OtherCohortMap | None:
    """Return the map of the fleet's cohorts if the app's is another: the app's processes are refused then."""
    stated = reader.ask_one("get", reader.key("schema"))
    with suppress(AffinityError):  # said by `gather_app`
        own = shown_cohorts(settings_of(app).cohort_map)
        revision, in_force = stated_cohorts(stated)
        if stated is not None and in_force != own:
            return OtherCohortMap(own, in_force, revision)
    return None


def _of_cohort(own: AppFacts, app: Celery, cohort: str) -> AppFacts:
    """Return *own* with the declared types of *cohort* alone: workers and jobs of the others stand elsewhere."""
    with suppress(AffinityError):  # said by `gather_app`
        settings = settings_of(app)
        if settings.cohorts:
            declared = {type_: who for type_, who in own.declared.items() if settings.cohort_of(type_) == cohort}
            return replace(own, declared=declared)
    return own


# -- the fleet


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
        # All workers are on the broker of `default`, whatever their cohorts.
        answers = () if connection is None else answers_of_workers(app, connection, reader, answers_within_s)
    except (ResponseError, OperationalError) as exc:
        if not isinstance(exc.__cause__ or exc, ResponseError):
            raise
        answers, not_asked = (), str(exc)
    status = report.status()
    # Members of both reports count, since a worker may have come or gone in between.
    members = {**before, **_members(reader, status)}
    settings = complete_settings(reader.hash("settings"))
    ticked_us = reader.fields("clock", ["ticked"]).get("ticked")
    pending = {each.type: each.pending for each in status.types if each.pending}
    served = {type_ for member in members.values() for type_ in member.types}
    lists = stock_lists_of(app)
    messages = StockMessages(reader, lists, scheduler.keys.of_kombu, sorted({*own.declared, *pending, *served}))
    cohort = scheduler.keys.cohort
    in_lists = {each.queue: each.messages for each in messages.waiting() if _is_of(conf, each.queue, cohort)}
    return FleetFacts(
        answers=answers,
        members=tuple(members.values()),
        pending=pending,
        stock_messages=in_lists,
        oldest=dict(_oldest(messages, served)) if in_lists else {},
        left_to_kombu=frozenset(each for each in in_lists if not lists.schedules(each)),
        more_lists=not messages.are_all,
        scheduled=status.scheduled,
        dead=status.dead,
        unserved=status.counters.get("unserved", 0),
        ticked_s=None if ticked_us is None else max(0.0, (reader.now_us() - decode_number(ticked_us)) / SECOND_US),
        settings=_settings(app, scheduler),
        reserves=tuple(each.sentence for type_ in status.types for each in type_.reserves if each.is_too_large),
        heartbeat_s=int(settings["heartbeat_interval_us"]) / SECOND_US,
        namespace=channel.namespace,
        not_asked=not_asked,
        full=tuple(_full(status)),
        limits_in_use=tuple(each for each in own.limits if key_usage.find_keys(reader, each, 1).keys),
        slots=sum(worker.slots for worker in status.workers),
        minima={each.name: each.minimum for each in status.tenants if each.is_named and each.minimum},
        tenants_misspelt=dict(_tenants_misspelt(status)),
        keys_in_use=keys_in_use(reader, conf),
        left_to_celery=tuple(_left_to_celery(reader, status)),
    )


def _left_to_celery(reader: Reader, status: Status) -> Iterator[JobLeftToCelery]:
    left = []
    with suppress(ResponseError):  # no right to the key
        left = handout.still_left(reader, [each.id for each in status.workers if each.withdrawn])
    for each in sorted(left, key=lambda its: its.job_id):
        yield JobLeftToCelery(*each)


def _tenants_misspelt(status: Status) -> Iterator[tuple[str, str]]:
    """Yield tenants with a quota and no job, each with one that has jobs, no quota of its own, and a similar name."""
    others = [each.name for each in status.tenants if not each.is_named]
    for each in status.tenants:
        if each.is_named and not each.held and not each.waiting and (meant := misspelt_type(each.name, others)):
            yield each.name, meant


def _full(status: Status) -> Iterator[FullBound]:
    """Yield the types of which as many jobs wait as may, with what keeps them from starting."""
    for each in status.types:
        if each.bound and each.pending >= each.bound.most:
            pauses = [
                sentences.pause_sentence(pause)
                for pause in status.pauses
                if pause.kind == "all" or (pause.kind == "type" and pause.name == each.type)
            ]
            yield FullBound(each.type, each.pending, each.bound.most, each.bound.full, tuple(pauses))


def _members(reader: Reader, status: Status) -> dict[str, MemberFacts]:
    ids = [each.id for each in status.workers]
    stops = reader.ask([("hget", reader.key("worker", id_), "stops") for id_ in ids])
    joined = reader.ask([("zscore", reader.key("joined"), id_) for id_ in ids])
    now_us = reader.now_us()
    return {
        each.id: MemberFacts(
            each.id,
            each.name,
            tuple(each.types),
            each.last_heartbeat_s,
            each.stalled,
            _stopped(words),
            None if at_us is None else max(0.0, (now_us - decode_number(at_us)) / SECOND_US),
        )
        for each, words, at_us in zip(status.workers, stops, joined, strict=True)
    }


def _stopped(words: Any) -> frozenset[str] | None:
    """Return the tasks that a worker can stop, by its row; None for all."""
    said = decode_text(words or b"")
    return None if said == FORCE else frozenset(map(decode_part, said.split()))


def _is_of(conf: Settings, queue: str, cohort: str) -> bool:
    with suppress(AffinityError):  # several cohorts match, so calls fail with this error
        return conf.cohort_of(queue) == cohort
    return False


def _oldest(messages: StockMessages, served: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the queues with messages but without a worker of the fleet, and a description of the oldest message."""
    for each in messages.unserved(served):
        age = "" if each.oldest_s is None else f", {each.oldest_s / 60:,.0f} min old"
        if age or each.oldest_task is not None:
            yield each.queue, f"{each.oldest_task or 'a task without a readable name'}{age}"


def _settings(app: Celery, scheduler: Scheduler) -> tuple[ChangedSetting, ...]:
    found = runtime_settings.read_settings(scheduler, _conf(app))
    return tuple(
        ChangedSetting(each.name, each.value, each.conf, each.own, each.damaged_s is not None) for each in found
    )


def _conf(app: Celery) -> Settings:
    try:
        return settings_of(app)
    except AffinityError:  # another rule reports this error
        return Settings()
