"""Gather the facts about the app alone: settings, options, tasks, and the types and priorities that it declares.

Neither the server nor the workers are queried.
"""

import fnmatch
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from typing import Any

from celery import Celery
from kombu.transport import resolve_transport
from kombu.utils.url import url_to_parts
from redis.utils import HIREDIS_AVAILABLE

from ..errors import AffinityError, OptionError
from ..options.affinity import affinity_of, as_affinity, clamp_priority
from ..options.did_you_mean import closest_names
from ..options.key_templates import pattern_of
from ..options.keys import Rule
from ..policy.slot_math import most_buffered
from ..publishing import recurring, validation
from ..publishing.app_config import (
    gathers_messages,
    has_own_strategy,
    rules_by_name,
    settings_of,
    type_by_name,
    uses_affinity_transport,
)
from ..publishing.option_checks import (
    options_in_annotations,
    options_in_beat_schedule,
    options_in_routes,
    priorities_in,
)
from ..publishing.validation import AppComplaint, app_complaints, complaints_in
from ..schema.keys import Keys
from ..settings import limits, reserves
from ..settings.table import PREFIX, Settings
from ..transport import urls
from ..transport.channel import Channel, SentinelChannel
from ..transport.transport import Transport
from ..versions import versions
from .cohorts import shared_keys
from .facts import AppFacts, BackendFacts, StatedName
from .tenants import preemptible, without_tenant


def tasks_by_type(declared: Iterable[tuple[str, str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    declarations: dict[str, dict[str, None]] = {}
    for type_, declaration in declared:
        declarations.setdefault(type_, {})[declaration] = None
    yield from ((type_, tuple(texts)) for type_, texts in sorted(declarations.items()))


def declared_types(app: Celery, own: Settings, refused: list[str]) -> Iterator[tuple[str, str]]:
    """Yield types with their declarations: tasks, routes, patterns, beat_schedule entries. Add errors to *refused*."""
    for name, task in sorted(app.tasks.items()):
        if not name.startswith("celery."):
            type_ = _type_of_task(app, own, name, task, refused)
            if type_:
                yield type_, f"task {name}"
    for pattern, type_ in own.task_types.items():
        yield type_, f"affinity_task_types {pattern!r}"
    for where, options in _static_options(app):
        type_ = _type_of_options(options)
        if type_:
            yield type_, where


def _type_of_task(app: Celery, own: Settings, name: str, task: Any, refused: list[str]) -> str | None:
    """Return the type of a call without options. The sources of a type have the same precedence as in publishing."""
    given = {name: value for name, value in task._get_exec_options().items() if value is not None}
    try:
        options = app.amqp.router.route(given, name, (), {}, task)
    except Exception:  # a custom router can inspect arguments, or require a queue that is not declared
        options = {}
    try:
        affinities = [as_affinity(options.get("affinity")), affinity_of(task)]
    except AffinityError as exc:
        refused.append(f"task {name}: {exc}")
        return None
    types = [*(affinity.type for affinity in affinities), type_by_name(name, own), _queue_name(options.get("queue"))]
    return next((type_ for type_ in types if type_), None)


def _static_options(app: Celery) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the options in task_routes and beat_schedule entries, with their places."""
    yield from options_in_routes(app.conf)
    yield from options_in_beat_schedule(app.conf)


def _type_of_options(options: Mapping[str, Any]) -> str | None:
    try:
        return as_affinity(options.get("affinity")).type or _queue_name(options.get("queue"))
    except AffinityError:  # reported by `app_complaints`
        return None


def _queue_name(queue: Any) -> str | None:
    return queue if isinstance(queue, str) else getattr(queue, "name", None)


def stated_priorities(app: Celery) -> Iterator[str]:
    """Yield the places that set Celery's priority instead of the priority of `Affinity`."""
    if app.conf.task_default_priority is not None:
        yield "task_default_priority"
    for name, task in sorted(app.tasks.items()):
        if getattr(task, "priority", None) not in (None, app.conf.task_default_priority):
            yield f"task {name}"
    for where, options in _static_options(app):
        if options.get("priority") is not None:
            yield where


def priorities_out_of_range(app: Celery) -> Iterator[str]:
    """Yield a description of each priority outside of 0 to 10 in an app with this transport."""
    default = app.conf.task_default_priority
    places = [
        ("task_default_priority", {"priority": default}),
        *options_in_annotations(app.conf),
        *_static_options(app),
    ]
    for name, task in sorted(app.tasks.items()):
        on_task = {option: getattr(task, option, None) for option in ("priority", "affinity")}
        places.append((f"task {name}", {option: value for option, value in on_task.items() if value != default}))
    for where, options in places:
        for priority in priorities_in(options):
            if clamp_priority(priority) != priority:
                yield f"{where}: priority {priority} counts as {clamp_priority(priority)}"


#: Options that kombu's connection and transport read.
_OPTIONS_OF_CONNECTIONS = (
    "callback",
    "connect_retries_timeout",
    "errback",
    "interval_max",
    "interval_start",
    "interval_step",
    "max_retries",
    "polling_interval",
)

#: Task classes of other packages that reject a second call, so there are no calls to merge.
_DEDUPLICATING_CLASSES = {"celery_singleton.Singleton", "celery_once.QueueOnce"}

#: A line of Celery's error about settings with old and new names.
_RENAMED_SETTING = re.compile(r"^(\w+) +-> (\w+)$", re.MULTILINE)

#: Settings without effect here -> defaults. Celery 5.5 has only the first setting.
_PREFETCH_DEFAULTS = {"worker_prefetch_multiplier": 4, "worker_disable_prefetch": False}


def gather_app(app: Celery) -> AppFacts:
    """Return the facts of *app*, after importing its tasks' modules."""
    try:
        list(app.conf.keys())  # reads them
    except Exception as exc:  # any: a settings module is user code, and Celery rejects mixed old and new names
        return AppFacts(
            name=app.main or "",
            broker="unknown",
            conf_refused=str(exc),
            renames=dict(_RENAMED_SETTING.findall(str(exc))),
        )
    not_imported = _import_tasks(app)
    refused: list[str] = []
    own = _settings(app, refused)
    url = str(app.conf.broker_write_url)
    broker, url_refused = _parse(url)
    use_ssl = app.conf.broker_use_ssl
    given_ssl = use_ssl if isinstance(use_ssl, Mapping) else {}
    complaints, entry_complaints = _option_complaints(app, own)
    refused.extend(str(complaint) for complaint in complaints if not complaint.misspelt)
    types = declared_types(app, own, refused)
    declared = dict(tasks_by_type((type_, where) for type_, where in types if own.schedules(type_)))
    return AppFacts(
        name=app.main or "",
        broker=urls.mask_url(url),
        transport=repr(app.conf.broker_transport),
        transport_is_ours=uses_affinity_transport(app.conf.broker_transport),
        transport_fails=_transport_error(app.conf.broker_transport),
        keys_refused=_key_error(app.conf.broker_transport_options or {}),
        url_refused=url_refused,
        refused=tuple(dict.fromkeys(refused)),
        misspelt=tuple(dict.fromkeys(str(one) for one in (*complaints, *entry_complaints) if one.misspelt)),
        not_sent=tuple(str(complaint) for complaint in entry_complaints if not complaint.misspelt),
        not_imported=not_imported,
        options=tuple(app.conf.broker_transport_options or ()),
        known_options=(
            *Channel.from_transport_options,
            *SentinelChannel.from_transport_options,
            *_OPTIONS_OF_CONNECTIONS,
        ),
        schedules_all="*" in own.queues,
        priority_order_is_set=any(key.lower().endswith(PREFIX + "priority_order") for key in app.conf.keys()),  # noqa: SIM118  # Celery's conf iterates over other keys
        priorities=tuple(stated_priorities(app)),
        out_of_range=tuple(dict.fromkeys(priorities_out_of_range(app))) if "*" in own.queues else (),
        void=dict(_void_settings(app)),
        small_batches=dict(_small_batches(app)),
        cancels_on_connection_loss=bool(app.conf.worker_cancel_long_running_tasks_on_connection_loss),
        guard=own.guard,
        tls_unverified=broker is not None
        and broker.scheme in urls.TLS
        and _is_cert_none({**broker.ssl, **given_ssl}.get("ssl_cert_reqs")),
        cluster=broker is not None and broker.scheme in urls.CLUSTER,
        ingests=own.ingest,
        results_on_a_node=_is_on_a_node(app.conf.result_backend, url),
        backend=_backend(app, broker),
        declared=declared,
        versions=versions(),
        hiredis=bool(HIREDIS_AVAILABLE),
        merges_twice=dict(_merges_twice(app, own)),
        preemptible=dict(preemptible(app, own)),
        shared_keys=dict(shared_keys(app, own)),
        no_tenant=tuple(without_tenant(app, own)),
        bounds=tuple(own.max_pending),
        reserves=tuple(reserves.typed_reserves(own.reserve) or {} if isinstance(own.reserve, str) else own.reserve),
        limits=tuple(limits.typed_limits(own.limits) or {} if isinstance(own.limits, str) else own.limits),
        key_patterns=_key_patterns(app, own),
        no_tasks=tuple(_no_tasks(app, own)),
        hinted=tuple(_hinted(app, own)),
        not_recurring=tuple(_not_recurring(app)) if not refused and not not_imported else (),
    )


def _import_tasks(app: Celery) -> str | None:
    """Import the modules that a worker would import. Return the error, or None."""
    try:
        app.loader.import_default_modules()
        validation.finalize_anyway(app)
    except Exception as exc:  # any: these modules are user code
        return f"{type(exc).__name__}: {exc}"
    return None


def _settings(app: Celery, refused: list[str]) -> Settings:
    try:
        return settings_of(app)
    except AffinityError as exc:
        refused.append(str(exc))
        return Settings()


def _not_recurring(app: Celery) -> Iterator[str]:
    for name, call in recurring.calls_in_conf(app):
        if isinstance(call, OptionError):
            yield f"{PREFIX}recurring[{name!r}]: {call}"


def _option_complaints(app: Celery, own: Settings) -> tuple[list[AppComplaint], list[AppComplaint]]:
    """Return the errors in options of tasks, routes and annotations, and the errors in beat_schedule entries."""
    scheduled = "*" in own.queues
    entries = (
        complaints_in(where, options, scheduled=scheduled) for where, options in options_in_beat_schedule(app.conf)
    )
    return list(app_complaints(app)), list(chain.from_iterable(entries))


def _void_settings(app: Celery) -> Iterator[tuple[str, object]]:
    """Yield the changed prefetch settings, except the setting that limits the buffers of custom strategies."""
    has_buffers = any(map(has_own_strategy, app.tasks.values()))
    for name, default in _PREFETCH_DEFAULTS.items():
        value = app.conf.get(name, default)
        if value != default and not (has_buffers and name == "worker_prefetch_multiplier"):
            yield name, value


def _small_batches(app: Celery) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield tasks whose batches exceed a worker's buffers, with the batch size and the maximum buffer size."""
    max_buffered = most_buffered(app.conf.worker_prefetch_multiplier, app.conf.worker_concurrency or 1)
    for name, task in sorted(app.tasks.items()):
        if gathers_messages(task) > max_buffered:
            yield name, (gathers_messages(task), max_buffered)


def _transport_error(name: object) -> str | None:
    """Return the error if *name* leads to no transport, or looks like ours but leads to another, or None."""
    try:
        resolved = resolve_transport(name)
    except Exception as exc:  # any: an import can raise anything
        return f"{type(exc).__name__}: {exc}"
    if not uses_affinity_transport(name):
        return None
    is_ours = isinstance(resolved, type) and issubclass(resolved, Transport)
    return None if is_ours else f"the name leads to {resolved!r}"


def _key_error(options: Mapping[str, Any]) -> str | None:
    try:
        Keys.of_options(options)
    except AffinityError as exc:
        return str(exc)
    return None


def _parse(url: str) -> tuple[urls.BrokerURL | None, str | None]:
    try:
        parsed = [urls.parse_broker_url(part) for part in url.split(";")]
    except AffinityError as exc:
        return None, str(exc)
    return parsed[0], None


def _is_cert_none(requirement: object) -> bool:
    """True if *requirement* is a spelling of ``ssl.CERT_NONE``."""
    return requirement == ssl.CERT_NONE or requirement in ("none", "CERT_NONE")


def _no_tasks(app: Celery, own: Settings) -> Iterator[StatedName]:
    """Yield task names and patterns in settings that match no task of *app*, unless *app* has no tasks (a producer)."""
    tasks = [name for name in app.tasks if not name.startswith("celery.")]
    if not tasks:
        return
    for setting, names in (("affinity_task_types", own.task_types), ("affinity_task_rules", own.task_rules)):
        for pattern in names:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in tasks):
                yield StatedName(f"{setting}[{pattern!r}]", closest_names(pattern, tasks))
    for options_in in (options_in_routes, options_in_annotations):
        all_places = {where for where, _ in options_in(app.conf)}
        matching_places = {where for name in app.tasks for where, _ in options_in(app.conf, name)}
        for where in sorted(all_places - matching_places):
            yield StatedName(where, closest_names(where.split("'")[1] if "'" in where else where, tasks))


def _key_patterns(app: Celery, own: Settings) -> tuple[str, ...] | None:
    """Return the patterns of the keys that tasks' rules make, or None if a function makes some."""
    patterns: dict[str, None] = {}
    for name, rule in _rules(app, own):
        if not isinstance(rule.key, str):
            return None
        patterns[rule.prefix + pattern_of(rule.option, rule.key, name)] = None
    return tuple(patterns)


def _rules(app: Celery, own: Settings) -> Iterator[tuple[str, Rule]]:
    """Yield the key rules of tasks and of `affinity_task_rules`, with the task name or pattern."""
    for name, task in sorted(app.tasks.items()):
        with suppress(AffinityError):  # reported by `declared_types`
            for rule in affinity_of(task).keys:
                yield name, rule
    yield from ((pattern, rule) for pattern, named in own.task_rules.items() for rule in named.keys)


def _hinted(app: Celery, own: Settings) -> Iterator[str]:
    """Yield the tasks and the patterns of `affinity_task_rules` with a locality hint."""
    for name, task in sorted(app.tasks.items()):
        with suppress(AffinityError):  # reported by `declared_types`
            if affinity_of(task).locality:
                yield f"task {name}"
    yield from (f"affinity_task_rules[{name!r}]" for name, named in own.task_rules.items() if named.locality)


def _merges_twice(app: Celery, own: Settings) -> Iterator[tuple[str, str]]:
    """Yield the tasks that merge although a class of another package rejects their calls, with that class."""
    for name, task in sorted(app.tasks.items()):
        with suppress(AffinityError):  # reported by `declared_types`
            if affinity_of(task).merge or rules_by_name(name, own).merge:
                yield from (
                    (name, cls) for cls in map(_class_name, type(task).__mro__) if cls in _DEDUPLICATING_CLASSES
                )


def _class_name(cls: type) -> str:
    """Return the package and the name of a class. Modules are left out, because packages move classes between them."""
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


def _backend(app: Celery, broker: urls.BrokerURL | None) -> BackendFacts | None:
    """Return the result backend if it is on the broker's server, or None."""
    url = app.conf.result_backend
    server = _server_of_url(str(app.conf.broker_write_url))
    if broker is None or server is None or not isinstance(url, str) or _server_of_url(url) != server:
        return None
    expires = app.conf.result_expires
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
    return BackendFacts(urls.mask_url(url), float(seconds) if seconds else None)


def _is_on_a_node(backend: object, broker: str) -> bool:
    """Return whether the URL *backend* names one node of a cluster: Celery would keep all results on that node.

    The node may be one of the cluster in *broker*, the broker's URL, or of another cluster.
    """
    if not isinstance(backend, str) or "://" not in backend:
        return False
    nodes = {
        _server_of_url(re.sub(r"^\w+[+-]cluster:", "redis:", each))
        for each in broker.split(";")
        if "cluster://" in each
    }
    scheme = backend.partition("://")[0]  # of several nodes; kombu reads one
    return scheme.endswith("+cluster") or (not scheme.endswith("-cluster") and _server_of_url(backend) in nodes)


def _server_of_url(url: str) -> tuple[str, int] | str | None:
    """Return the server of a Redis URL, as host and port or as a path, or None for another URL."""
    parts = url_to_parts(re.sub(r"^valkey(s?):", r"redis\1:", url.partition(";")[0]))
    if parts.scheme in ("socket", "redis+socket"):
        return str(parts.path).strip("/")
    if parts.scheme not in ("redis", "rediss", "sentinel"):
        return None
    host = parts.hostname or "localhost"
    default = 26379 if parts.scheme == "sentinel" else 6379
    return "localhost" if host in ("127.0.0.1", "::1") else host, int(parts.port or default)
