"""Findings about the app alone: settings, options, keys, results and versions."""

import difflib
import fnmatch
import re
import ssl
from collections.abc import Iterator, Mapping

from kombu.transport import resolve_transport
from redis.utils import HIREDIS_AVAILABLE

from ..errors import OptionError
from ..options.affinity import clamp_priority
from ..options.did_you_mean import closest_names
from ..policy.slot_math import max_buffered_calls
from ..publishing import recurring
from ..publishing.app_config import gathers_messages, has_own_strategy, uses_affinity_transport
from ..publishing.option_checks import options_in_annotations, options_in_routes, priorities_in
from ..settings.table import PREFIX
from ..transport import urls
from ..transport.channel import Channel, SentinelChannel
from ..transport.transport import Transport
from .facts import AppFacts, Facts
from .finding import Level, Problem, Problems, all_facts, app_of, finding, join_names, with_full_stop

#: Transport options that stock Celery reads on Redis, and that have no effect on jobs here.
VOID_OPTIONS = (
    "ack_emulation",
    "priority_steps",
    "queue_order_strategy",
    "retry_policy",
    "sep",
    "unacked_index_key",
    "unacked_key",
    "unacked_mutex_expire",
    "unacked_mutex_key",
    "unacked_restore_interval",
    "unacked_restore_limit",
    "unacked_restore_throttle",
    "visibility_timeout",
)

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


@finding("settings-names", Level.ERROR, lambda facts: facts.app.conf_refused)
def settings_names(error: str) -> Problems:
    """`app.conf` mixes old and new names of settings (`CELERY_RESULT_BACKEND` next to `task_acks_late`), which Celery
    refuses; or the module of settings cannot be imported. The finding has the new name of each setting. Nothing else
    was checked.
    """
    renames = dict(_RENAMED_SETTING.findall(error))
    if renames:
        yield Problem(
            f"app.conf mixes old and new names of settings, which Celery refuses: {join_names(renames, 20)}. "
            "No worker starts, and every call fails. Nothing else was checked.",
            f"Rename {join_names((f'{old} to {new}' for old, new in renames.items()), 20)}.",
        )
    else:
        yield Problem(
            f"Celery cannot read the settings of this app: {with_full_stop(' '.join(error.split()))} "
            "No worker starts, and every call fails. Nothing else was checked.",
            "Correct the settings, or the module that has them.",
        )


@finding("transport", Level.ERROR, app_of)
def transport(app: AppFacts) -> Problems:
    """`broker_transport` does not name this transport, so the app uses stock Celery's; or the name is misspelt
    (`celery_affinity:transport`, with a small t), and nothing works. Set `app.conf.broker_transport =
    "celery_affinity:Transport"`. The other checks assume this value.
    """
    name = app.conf.broker_transport
    error = _transport_error(name)
    if error:
        yield Problem(
            f"broker_transport is {name!r}, which is not a transport: "
            f"{with_full_stop(error)} Every call fails, and no worker starts.",
            'Set app.conf.broker_transport = "celery_affinity:Transport", with a capital T.',
        )
    elif not uses_affinity_transport(name):
        yield Problem(
            f"broker_transport is {name!r}: this app publishes and works with stock Celery's transport, "
            "and celery_affinity has no effect.",
            'Set app.conf.broker_transport = "celery_affinity:Transport" where the app is made, for producers and '
            "workers alike.",
        )


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


@finding("broker-url", Level.ERROR, app_of)
def broker_url(app: AppFacts) -> Problems:
    """The URL's scheme is none of `redis://`, `rediss://`, `sentinel://`, `redis-cluster://`, `socket://`: Celery would
    use another transport.
    """
    if app.url_refused:
        yield Problem(
            f"The broker's URL does not reach this transport: {with_full_stop(app.url_refused)}",
            "Write redis://, rediss://, sentinel://, redis-cluster:// or socket:///path/to/redis.sock.",
        )


@finding("settings", Level.ERROR, app_of)
def settings(app: AppFacts) -> Problems:
    """An `affinity_` setting is unknown or out of range; or a task, a route or an annotation has an invalid `affinity`,
    `on_demand` or `priority`. Workers do not start, or calls fail.
    """
    for words in app.refused:
        yield Problem(with_full_stop(words), "Correct it: workers refuse to start, and calls fail, with it.")


@finding("option-misspelt", Level.ERROR, app_of)
def misspelt_options(app: AppFacts) -> Problems:
    """A task, `task_routes`, `task_annotations` or a `beat_schedule` entry has an option that is one letter away from
    `affinity`, `on_demand` or `priority` (`affinty`, `ondemand`). Calls with the option fail, and workers do not start
    (a misspelt `beat_schedule` entry does not stop workers).
    """
    complaints = [str(one) for one in (*app.complaints, *app.entry_complaints) if one.misspelt]
    for words in dict.fromkeys(complaints):
        yield Problem(words, "Correct it: calls with a misspelt option fail, so that no option is lost silently.")


@finding("not-sent", Level.ERROR, app_of)
def not_sent(app: AppFacts) -> Problems:
    """A `beat_schedule` entry has an invalid option, such as a text as `on_demand`, or a `deadline` that is not in
    seconds. Workers start, but `celery beat` cannot send the entry, and logs an error each time that it is due.
    """
    for complaint in app.entry_complaints:
        if not complaint.misspelt:
            yield Problem(
                with_full_stop(complaint),
                "Correct it: celery beat cannot send this entry, and logs an error each time that it is due.",
            )


@finding("not-recurring", Level.ERROR, app_of)
def not_recurring(app: AppFacts) -> Problems:
    """An entry of `affinity_recurring` has no effect: the app lacks its task, or the call has no merge key. The other
    entries work.
    """
    if app.refused or app.not_imported:
        return  # these errors can be the reason
    for name, call in recurring.calls_in_conf(app.celery):
        if isinstance(call, OptionError):
            words = with_full_stop(f"{PREFIX}recurring[{name!r}]: {call}")
            yield Problem(words, "Correct it: this call is never made, and workers log an error.")


@finding("task-misspelt", Level.WARNING, app_of)
def task_misspelt(app: AppFacts) -> Problems:
    """A name or pattern in `task_routes`, `task_annotations`, `affinity_task_types` or `affinity_task_rules` matches no
    task of the app, but is close to the name of one. The entry has no effect.
    """
    for where, meant in _names_without_task(app):
        if meant is not None:
            yield Problem(
                f"{where} matches no task of this app: it has no effect; did you mean {meant!r}?",
                "Write the name of the task as the worker's banner shows it, or remove the entry.",
            )


@finding("task-of-no-name", Level.NOTE, app_of)
def task_of_no_name(app: AppFacts) -> Problems:
    """A name or pattern in one of these settings matches no task of the app, and no task has a similar name. The entry
    has an effect only on calls by name of tasks that another app has.
    """
    for where, meant in _names_without_task(app):
        if meant is None:
            yield Problem(
                f"{where} matches no task of this app: it has an effect only on calls by name of tasks elsewhere.",
                "Remove it, unless this app makes such calls.",
            )


def _names_without_task(app: AppFacts) -> Iterator[tuple[str, str | None]]:
    """Yield names and patterns in settings that match no task, as their places, with the task of a similar name.

    An app without tasks is a producer, whose names are not checked.
    """
    tasks = [name for name, _ in app.tasks if not name.startswith("celery.")]
    if not tasks:
        return
    own = app.settings
    for setting, names in (("affinity_task_types", own.task_types), ("affinity_task_rules", own.task_rules)):
        for pattern in names:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in tasks):
                yield f"{setting}[{pattern!r}]", closest_names(pattern, tasks)
    for options_in in (options_in_routes, options_in_annotations):
        all_places = {where for where, _ in options_in(app.conf)}
        matching_places = {where for name, _ in app.tasks for where, _ in options_in(app.conf, name)}
        for where in sorted(all_places - matching_places):
            yield where, closest_names(where.split("'")[1] if "'" in where else where, tasks)


@finding("settings", Level.ERROR, app_of)
def transport_options(app: AppFacts) -> Problems:
    """`broker_transport_options` has an invalid `namespace` or `global_keyprefix`. Workers do not start, and calls
    fail.
    """
    if app.keys_refused:
        yield Problem(
            f"broker_transport_options: {with_full_stop(app.keys_refused)}",
            "Correct it: every call fails, and no worker starts. Server and fleet were not checked.",
        )


@finding("imports", Level.ERROR, app_of)
def imports(app: AppFacts) -> Problems:
    """A module that a worker would import (`include`, `imports`, autodiscovery) cannot be imported."""
    if app.not_imported:
        yield Problem(
            f"The modules of the app's tasks cannot be imported: {with_full_stop(app.not_imported)}",
            "Correct it: no worker would start. The options of the tasks were not checked.",
        )


@finding("unknown-option", Level.WARNING, app_of)
def unknown_option(app: AppFacts) -> Problems:
    """`broker_transport_options` has an unknown name that is close to a known one: most likely a misspelling."""
    transports = {*Channel.from_transport_options, *SentinelChannel.from_transport_options}
    known_options = {*transports, *_OPTIONS_OF_CONNECTIONS, *VOID_OPTIONS}
    for option in sorted(set(app.conf.broker_transport_options or ()) - known_options):
        close = difflib.get_close_matches(option, known_options, n=1, cutoff=0.8)
        if close:
            yield Problem(
                f"broker_transport_options has {option!r}, which no transport reads.",
                f"Did you mean {close[0]!r}?",
            )


@finding("void-options", Level.NOTE, app_of)
def void_options(app: AppFacts) -> Problems:
    """`visibility_timeout`, `priority_steps`, `queue_order_strategy` and similar options have no effect on scheduled
    jobs. Remove them once no worker or producer uses stock Celery's transport: until then stock Celery reads them, and
    so do the workers that take over its messages. With `affinity_queues` this note is omitted, because unlisted queues
    need the options.
    """
    void = sorted(set(app.conf.broker_transport_options or ()) & set(VOID_OPTIONS))
    if void and app.schedules_all:
        yield Problem(
            f"broker_transport_options has options without effect on scheduled jobs: {join_names(void, 20)}.",
            "Remove them once no worker and no producer uses stock Celery's transport: no job runs again because of a "
            "timeout, and only the score decides which job is next.",
        )


@finding("priority-order", Level.WARNING, app_of)
def priority_order(app: AppFacts) -> Problems:
    """The app uses Celery's priorities (`priority` of a task or a route, `task_default_priority`, `priority_steps`)
    without `affinity_priority_order`. On stock Redis 0 is the highest priority, here 10 is. Set the order that you
    mean.
    """
    default = app.conf.task_default_priority
    users = [] if default is None else ["task_default_priority"]
    users += [f"task {name}" for name, task in app.tasks if getattr(task, "priority", None) not in (None, default)]
    users += [where for where, options in app.static_options() if options.get("priority") is not None]
    given = app.conf.broker_transport_options or ()
    users += [
        f"broker_transport_options {name}" for name in ("priority_steps", "queue_order_strategy") if name in given
    ]
    is_set = any(key.lower().endswith(PREFIX + "priority_order") for key in app.conf.keys())  # noqa: SIM118  # Celery's conf iterates over other keys
    if users and not is_set:
        yield Problem(
            f"This app uses Celery's priorities ({join_names(users)}) and does not set which priority is the highest: "
            "on stock Redis 0 is, here 10 is.",
            'Set affinity_priority_order: "lower-first" if the app was written for stock Redis, else "higher-first".',
        )


@finding("priority-range", Level.WARNING, app_of)
def priority_range(app: AppFacts) -> Problems:
    """A task, `task_routes`, `task_annotations`, `task_default_priority` or a `beat_schedule` entry has a priority
    below 0 or above 10. The nearest valid priority applies. Entries in the database of django-celery-beat are not
    checked.
    """
    default = app.conf.task_default_priority
    of_default = ("task_default_priority", {"priority": default})
    places = [of_default, *options_in_annotations(app.conf), *app.static_options()]
    for name, task in app.tasks:
        on_task = {option: getattr(task, option, None) for option in ("priority", "affinity")}
        places.append((f"task {name}", {option: value for option, value in on_task.items() if value != default}))
    descriptions = [
        f"{where}: priority {priority} counts as {clamp_priority(priority)}"
        for where, options in places
        for priority in priorities_in(options)
        if clamp_priority(priority) != priority
    ]
    for words in dict.fromkeys(descriptions) if app.schedules_all else ():
        yield Problem(with_full_stop(words), "Write a priority from 0 to 10.")


@finding("prefetch", Level.NOTE, app_of)
def prefetch(app: AppFacts) -> Problems:
    """`worker_prefetch_multiplier` or `worker_disable_prefetch` was changed, without effect. If a task gathers calls,
    like with celery-batches, the first one has an effect. With `affinity_queues`, the change affects unlisted queues.
    """
    changed = {
        name: app.conf.get(name)
        for name, default in _PREFETCH_DEFAULTS.items()
        if app.conf.get(name, default) != default
    }
    if any(has_own_strategy(task) for _, task in app.tasks):
        changed.pop("worker_prefetch_multiplier", None)  # limits the buffers of custom strategies
    if changed and app.schedules_all:
        yield Problem(
            f"{join_names(f'{name} = {value!r}' for name, value in changed.items())}: without effect. A job is claimed "
            "only for a free slot, so nothing is prefetched.",
            "Remove it.",
        )


@finding("cancel-on-loss", Level.WARNING, app_of)
def cancel_on_loss(app: AppFacts) -> Problems:
    """`worker_cancel_long_running_tasks_on_connection_loss` cancels tasks that would otherwise continue. Set it to
    `False`.
    """
    if app.conf.worker_cancel_long_running_tasks_on_connection_loss:
        yield Problem(
            "worker_cancel_long_running_tasks_on_connection_loss is on: each lost connection cancels running tasks "
            "with acks_late, which would otherwise go on and be acked after the reconnect.",
            "Set it to False.",
        )


@finding("tls-unverified", Level.WARNING, app_of)
def tls_unverified(app: AppFacts) -> Problems:
    """`rediss://` with `ssl_cert_reqs=none`. Give `ssl_ca_certs` instead."""
    if app.node is None or app.node.scheme not in urls.TLS:
        return
    use_ssl = app.conf.broker_use_ssl
    given = {**app.node.ssl, **(use_ssl if isinstance(use_ssl, Mapping) else {})}.get("ssl_cert_reqs")
    if given == ssl.CERT_NONE or given in ("none", "CERT_NONE"):
        yield Problem(
            f"The certificate of {app.broker} is not verified: a third party can read and write jobs.",
            "Remove ssl_cert_reqs from the URL and from broker_use_ssl, or give ssl_ca_certs.",
        )


@finding("results-never-expire", Level.WARNING, app_of)
def results_never_expire(app: AppFacts) -> Problems:
    """Results are on the broker's server and `result_expires` is off: they fill the server."""
    if app.results_on_broker and not app.conf.result_expires:
        yield Problem(
            "result_expires keeps results forever, and the results are on the broker's server: once it is full, "
            "publishing fails.",
            "Set result_expires, set ignore_result on tasks whose results are not read, or give results a server of "
            "their own.",
        )


@finding("results-share-memory", Level.NOTE, all_facts)
def results_share_memory(facts: Facts) -> Problems:
    """Results are on the broker's server, which has a `maxmemory`: a flood of results makes publishing fail or, with
    `volatile-*`, makes the server drop results.
    """
    server = facts.server
    if server is None or not server.number("maxmemory") or not facts.app.results_on_broker:
        return
    dropped = server.policy.startswith("volatile")
    effect = f"with {server.policy} results are then dropped" if dropped else "publishing then fails"
    yield Problem(
        f"Results are on the broker's server, and its maxmemory counts both: {effect}.",
        "Watch its memory, shorten result_expires, or give results a server of their own.",
    )


@finding("merges-twice", Level.WARNING, app_of)
def merges_twice(app: AppFacts) -> Problems:
    """A task with `merge` has a base class of celery-singleton or celery-once. The base class refuses calls before they
    can merge.
    """
    for name, task, sources in app.sources:
        merges = sources.task_affinity.merge or sources.named.merge
        for cls in type(task).__mro__ if merges else ():
            base = f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"  # packages move classes between modules
            if base in _DEDUPLICATING_CLASSES:
                yield Problem(
                    f"Task {name} has merge=, but its base class {base} refuses, or drops, a call while a like one "
                    "waits or runs: none is left to merge.",
                    "Remove the base class.",
                )


@finding("batches-small", Level.WARNING, app_of)
def small_batches(app: AppFacts) -> Problems:
    """A task of celery-batches has a `flush_every` above the number of calls that a worker keeps in buffers. Its
    batches stay smaller, and wait for `flush_interval`. Raise `worker_prefetch_multiplier`, or use `merge`.
    """
    max_buffered = max_buffered_calls(app.conf.worker_prefetch_multiplier, app.conf.worker_concurrency or 1)
    for name, task in app.tasks:
        gathered = gathers_messages(task)
        if gathered > max_buffered:
            yield Problem(
                f"Task {name} gathers {gathered:,} calls (flush_every), but a worker keeps at most {max_buffered:,} "
                "calls in buffers: a batch has no more, and runs when flush_interval is over.",
                f"Set worker_prefetch_multiplier so that its product with the concurrency is {gathered:,} or more; or "
                "use merge, whose calls wait in Redis.",
            )


@finding("hiredis", Level.NOTE, app_of)
def hiredis(_: AppFacts) -> Problems:
    """redis-py has no fast parser: run `pip install 'hiredis>=3'` for workers, producers and reports."""
    if not HIREDIS_AVAILABLE:
        yield Problem(
            "hiredis is not installed: redis-py parses replies in Python, which is slower.",
            "pip install 'hiredis>=3', for workers, producers and reports.",
        )
