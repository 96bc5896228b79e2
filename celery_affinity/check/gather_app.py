"""Gather the facts for the checks from an app: its settings and its tasks. Neither server nor workers are asked."""

import fnmatch
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from typing import Any

from celery import Celery
from kombu.transport import resolve_transport
from kombu.utils.url import url_to_parts
from redis.utils import HIREDIS_AVAILABLE

from ..client import misspelt, recurring
from ..client.of_app import gathers, has_own_strategy, is_ours, rules_by_name, settings_of
from ..client.options_in_app import options_in_annotations, options_in_beat_schedule, options_in_routes
from ..client.wrong_in_app import Wrong, wrong_in, wrong_with_app
from ..errors import AffinityError, OptionError
from ..rules import reserves
from ..rules.affinity import affinity_of
from ..rules.keyed import key_limits
from ..rules.keyed.key_rules import Rule
from ..rules.keyed.template import pattern_of
from ..rules.lending import most_buffered
from ..rules.redis_keys import Keys
from ..rules.settings import PREFIX, Settings
from ..rules.spelling import closest
from ..transport import urls
from ..transport.channel import Channel, SentinelChannel
from ..transport.transport import Transport
from ..versions import versions
from .facts import App, Backend, Name
from .gather_cohorts import shared_keys
from .gather_preemptible import preemptible
from .gather_tenants import without_tenant
from .gather_types import by_type, declared_types, out_of_range, priorities

#: Options that kombu's connection and transport read by themselves.
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

#: Base classes of tasks that refuse a second call: nothing is left to merge.
_OF_OTHERS = {"celery_singleton.Singleton", "celery_once.QueueOnce"}

#: A line of Celery's error about settings with old and new names.
_RENAME = re.compile(r"^(\w+) +-> (\w+)$", re.MULTILINE)

#: Settings that have no effect here -> their defaults. Celery 5.5 has the first one alone.
_PREFETCH = {"worker_prefetch_multiplier": 4, "worker_disable_prefetch": False}


def gather_app(app: Celery) -> App:
    """Return the facts of *app*, after importing its tasks' modules."""
    try:
        list(app.conf.keys())  # which reads them
    except Exception as exc:  # any: a module of settings is the user's, and Celery refuses names that it cannot mix
        return App(
            name=app.main or "", broker="unknown", conf_refused=str(exc), renames=dict(_RENAME.findall(str(exc)))
        )
    not_imported = _import_tasks(app)
    refused: list[str] = []
    own = _settings(app, refused)
    url = str(app.conf.broker_write_url)
    broker, url_refused = _parse(url)
    use_ssl = app.conf.broker_use_ssl
    given_ssl = use_ssl if isinstance(use_ssl, Mapping) else {}
    wrong, wrong_entries = _wrong_options(app, own)
    refused.extend(str(each) for each in wrong if not each.misspelt)
    declared = dict(by_type(each for each in declared_types(app, own, refused) if own.schedules(each[0])))
    return App(
        name=app.main or "",
        broker=urls.masked(url),
        transport=repr(app.conf.broker_transport),
        transport_is_ours=is_ours(app.conf.broker_transport),
        transport_fails=_wrong_with_transport(app.conf.broker_transport),
        keys_refused=_wrong_with_keys(app.conf.broker_transport_options or {}),
        url_refused=url_refused,
        refused=tuple(dict.fromkeys(refused)),
        misspelt=tuple(dict.fromkeys(str(each) for each in (*wrong, *wrong_entries) if each.misspelt)),
        not_sent=tuple(str(each) for each in wrong_entries if not each.misspelt),
        not_imported=not_imported,
        options=tuple(app.conf.broker_transport_options or ()),
        known_options=(
            *Channel.from_transport_options,
            *SentinelChannel.from_transport_options,
            *_OPTIONS_OF_CONNECTIONS,
        ),
        schedules_all="*" in own.queues,
        priority_order_is_set=any(key.lower().endswith(PREFIX + "priority_order") for key in app.conf.keys()),  # noqa: SIM118  # Celery's conf iterates over other keys
        priorities=tuple(priorities(app)),
        out_of_range=tuple(dict.fromkeys(out_of_range(app))) if "*" in own.queues else (),
        void=dict(_void(app)),
        small_batches=dict(_small_batches(app)),
        cancels_on_connection_loss=bool(app.conf.worker_cancel_long_running_tasks_on_connection_loss),
        guard=own.guard,
        tls_unverified=broker is not None
        and broker.scheme in urls.TLS
        and _is_none({**broker.ssl, **given_ssl}.get("ssl_cert_reqs")),
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
        reserves=tuple(reserves.typed(own.reserve) or {} if isinstance(own.reserve, str) else own.reserve),
        limits=tuple(key_limits.typed(own.limits) or {} if isinstance(own.limits, str) else own.limits),
        key_patterns=_key_patterns(app, own),
        no_tasks=tuple(_no_tasks(app, own)),
        hinted=tuple(_hinted(app, own)),
        not_recurring=tuple(_not_recurring(app)) if not refused and not not_imported else (),
    )


def _import_tasks(app: Celery) -> str | None:
    """Import the modules that a worker would import. Return the error, or None."""
    try:
        app.loader.import_default_modules()
        misspelt.finalize_anyway(app)
    except Exception as exc:  # any: these are modules of the user's
        return f"{type(exc).__name__}: {exc}"
    return None


def _settings(app: Celery, refused: list[str]) -> Settings:
    try:
        return settings_of(app)
    except AffinityError as exc:
        refused.append(str(exc))
        return Settings()


def _not_recurring(app: Celery) -> Iterator[str]:
    for name, found in recurring.calls_in_conf(app):
        if isinstance(found, OptionError):
            yield f"{PREFIX}recurring[{name!r}]: {found}"


def _wrong_options(app: Celery, own: Settings) -> tuple[list[Wrong], list[Wrong]]:
    """Return complaints about options of tasks, routes and annotations, and about those of beat_schedule entries."""
    scheduled = "*" in own.queues
    entries = (wrong_in(where, options, scheduled=scheduled) for where, options in options_in_beat_schedule(app.conf))
    return list(wrong_with_app(app)), list(chain.from_iterable(entries))


def _void(app: Celery) -> Iterator[tuple[str, object]]:
    """Yield the settings of prefetch that were changed, but for the one that bounds the buffers of tasks."""
    has_buffers = any(map(has_own_strategy, app.tasks.values()))
    for name, default in _PREFETCH.items():
        said = app.conf.get(name, default)
        if said != default and not (has_buffers and name == "worker_prefetch_multiplier"):
            yield name, said


def _small_batches(app: Celery) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield tasks that gather more calls than a worker keeps in buffers, each with both numbers."""
    most = most_buffered(app.conf.worker_prefetch_multiplier, app.conf.worker_concurrency or 1)
    for name, task in sorted(app.tasks.items()):
        if gathers(task) > most:
            yield name, (gathers(task), most)


def _wrong_with_transport(name: object) -> str | None:
    """Return the reason why *name* leads to no transport, or to a wrong one although it looks like ours; else None."""
    try:
        found = resolve_transport(name)
    except Exception as exc:  # any: an import may raise it
        return f"{type(exc).__name__}: {exc}"
    if not is_ours(name):
        return None
    is_one = isinstance(found, type) and issubclass(found, Transport)
    return None if is_one else f"the name leads to {found!r}"


def _wrong_with_keys(options: Mapping[str, Any]) -> str | None:
    try:
        Keys.of_options(options)
    except AffinityError as exc:
        return str(exc)
    return None


def _parse(url: str) -> tuple[urls.BrokerURL | None, str | None]:
    try:
        parsed = [urls.parse(part) for part in url.split(";")]
    except AffinityError as exc:
        return None, str(exc)
    return parsed[0], None


def _is_none(requirement: object) -> bool:
    """Return whether *requirement* says ``ssl.CERT_NONE``, in any of its spellings."""
    return requirement == ssl.CERT_NONE or requirement in ("none", "CERT_NONE")


# -- names of tasks, and keys


def _no_tasks(app: Celery, own: Settings) -> Iterator[Name]:
    """Yield names and patterns of tasks in settings that no task of *app* has. An app without tasks is a producer."""
    tasks = [name for name in app.tasks if not name.startswith("celery.")]
    if not tasks:
        return
    for setting, names in (("affinity_task_types", own.task_types), ("affinity_task_rules", own.task_rules)):
        for pattern in names:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in tasks):
                yield Name(f"{setting}[{pattern!r}]", closest(pattern, tasks))
    for of_options in (options_in_routes, options_in_annotations):
        everywhere = {where for where, _ in of_options(app.conf)}
        somewhere = {where for name in app.tasks for where, _ in of_options(app.conf, name)}
        for where in sorted(everywhere - somewhere):
            yield Name(where, closest(where.split("'")[1] if "'" in where else where, tasks))


def _key_patterns(app: Celery, own: Settings) -> tuple[str, ...] | None:
    """Return the patterns of the keys that rules of tasks make; None if a function makes some."""
    found: dict[str, None] = {}
    for name, rule in _rules(app, own):
        if not isinstance(rule.key, str):
            return None
        found[rule.prefix + pattern_of(rule.option, rule.key, name)] = None
    return tuple(found)


def _rules(app: Celery, own: Settings) -> Iterator[tuple[str, Rule]]:
    """Yield the rules by key of tasks, and those that names of tasks have, each with that name."""
    for name, task in sorted(app.tasks.items()):
        with suppress(AffinityError):  # `gather_types` says it
            for rule in affinity_of(task).keys:
                yield name, rule
    yield from ((pattern, rule) for pattern, named in own.task_rules.items() for rule in named.keys)


def _hinted(app: Celery, own: Settings) -> Iterator[str]:
    """Yield the tasks that say a hint of locality, and the names of tasks that do."""
    for name, task in sorted(app.tasks.items()):
        with suppress(AffinityError):  # `gather_types` says it
            if affinity_of(task).locality:
                yield f"task {name}"
    yield from (f"affinity_task_rules[{name!r}]" for name, named in own.task_rules.items() if named.locality)


# -- classes of other packages


def _merges_twice(app: Celery, own: Settings) -> Iterator[tuple[str, str]]:
    """Yield the tasks that merge, and whose calls a class of another package keeps from it, each with that class."""
    for name, task in sorted(app.tasks.items()):
        with suppress(AffinityError):  # `gather_types` says it
            if affinity_of(task).merge or rules_by_name(name, own).merge:
                yield from ((name, found) for found in map(_named, type(task).__mro__) if found in _OF_OTHERS)


def _named(cls: type) -> str:
    """Return the name of a class, and the first part of its module: packages move classes between their modules."""
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


# -- results


def _backend(app: Celery, broker: urls.BrokerURL | None) -> Backend | None:
    """Return the result backend if it is on the broker's server, else None."""
    url = app.conf.result_backend
    place = _place(str(app.conf.broker_write_url))
    if broker is None or place is None or not isinstance(url, str) or _place(url) != place:
        return None
    expires = app.conf.result_expires
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
    return Backend(urls.masked(url), float(seconds) if seconds else None)


def _is_on_a_node(backend: object, broker: str) -> bool:
    """Return whether the URL *backend* names one node of a cluster: Celery would keep all results on that node.

    The node may be one of the cluster in *broker*, the broker's URL, or of another cluster.
    """
    if not isinstance(backend, str) or "://" not in backend:
        return False
    nodes = {_place(re.sub(r"^\w+[+-]cluster:", "redis:", each)) for each in broker.split(";") if "cluster://" in each}
    scheme = backend.partition("://")[0]  # of several nodes; kombu reads one
    return scheme.endswith("+cluster") or (not scheme.endswith("-cluster") and _place(backend) in nodes)


def _place(url: str) -> tuple[str, int] | str | None:
    """Return the server of a Redis URL, as host and port or as a path; None for another URL."""
    parts = url_to_parts(re.sub(r"^valkey(s?):", r"redis\1:", url.partition(";")[0]))
    if parts.scheme in ("socket", "redis+socket"):
        return str(parts.path).strip("/")
    if parts.scheme not in ("redis", "rediss", "sentinel"):
        return None
    host = parts.hostname or "localhost"
    default = 26379 if parts.scheme == "sentinel" else 6379
    return "localhost" if host in ("127.0.0.1", "::1") else host, int(parts.port or default)
