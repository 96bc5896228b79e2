"""Findings about the app: settings, options, keys, results and versions, from the facts of `check.app`."""

import difflib
from collections.abc import Iterator

from .facts import Facts
from .finding import Finding, join_names, with_full_stop

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


def settings_names(facts: Facts) -> Iterator[Finding]:
    if facts.app.renames:
        yield Finding(
            "settings-names",
            f"app.conf mixes old and new names of settings, which Celery refuses: {join_names(facts.app.renames, 20)}. "
            "No worker starts, and every call fails. Nothing else was checked.",
            f"Rename {join_names((f'{old} to {new}' for old, new in facts.app.renames.items()), 20)}.",
        )
    elif facts.app.conf_refused:
        yield Finding(
            "settings-names",
            f"Celery cannot read the settings of this app: {with_full_stop(' '.join(facts.app.conf_refused.split()))} "
            "No worker starts, and every call fails. Nothing else was checked.",
            "Correct the settings, or the module that has them.",
        )


def no_tasks(facts: Facts) -> Iterator[Finding]:
    for name in facts.app.no_tasks:
        if name.meant is not None:
            yield Finding(
                "task-misspelt",
                f"{name.where} matches no task of this app: it has no effect; did you mean {name.meant!r}?",
                "Write the name of the task as the worker's banner shows it, or remove the entry.",
            )
        else:
            yield Finding(
                "task-of-no-name",
                f"{name.where} matches no task of this app: it has an effect only on calls by name of tasks elsewhere.",
                "Remove it, unless this app makes such calls.",
            )


def transport(facts: Facts) -> Iterator[Finding]:
    if facts.app.transport_fails:
        yield Finding(
            "transport",
            f"broker_transport is {facts.app.transport}, which is not a transport: "
            f"{with_full_stop(facts.app.transport_fails)} Every call fails, and no worker starts.",
            'Set app.conf.broker_transport = "celery_affinity:Transport", with a capital T.',
        )
    elif not facts.app.transport_is_ours:
        yield Finding(
            "transport",
            f"broker_transport is {facts.app.transport}: this app publishes and works with stock Celery's transport, "
            "and celery_affinity has no effect.",
            'Set app.conf.broker_transport = "celery_affinity:Transport" where the app is made, for producers and '
            "workers alike.",
        )


def broker_url(facts: Facts) -> Iterator[Finding]:
    if facts.app.url_refused:
        yield Finding(
            "broker-url",
            f"The broker's URL does not reach this transport: {with_full_stop(facts.app.url_refused)}",
            "Write redis://, rediss://, sentinel://, redis-cluster:// or socket:///path/to/redis.sock.",
        )


def settings(facts: Facts) -> Iterator[Finding]:
    for words in facts.app.refused:
        yield Finding(
            "settings", with_full_stop(words), "Correct it: workers refuse to start, and calls fail, with it."
        )


def misspelt_options(facts: Facts) -> Iterator[Finding]:
    for words in facts.app.misspelt:
        yield Finding(
            "option-misspelt",
            words,
            "Correct it: calls with a misspelt option fail, so that no option is lost silently.",
        )


def not_sent(facts: Facts) -> Iterator[Finding]:
    for words in facts.app.not_sent:
        yield Finding(
            "not-sent",
            with_full_stop(words),
            "Correct it: celery beat cannot send this entry, and logs an error each time that it is due.",
        )


def not_recurring(facts: Facts) -> Iterator[Finding]:
    for words in facts.app.not_recurring:
        yield Finding(
            "not-recurring", with_full_stop(words), "Correct it: this call is never made, and workers log an error."
        )


def keys(facts: Facts) -> Iterator[Finding]:
    if facts.app.keys_refused:
        yield Finding(
            "settings",
            f"broker_transport_options: {with_full_stop(facts.app.keys_refused)}",
            "Correct it: every call fails, and no worker starts. Server and fleet were not checked.",
        )


def imports(facts: Facts) -> Iterator[Finding]:
    if facts.app.not_imported:
        yield Finding(
            "imports",
            f"The modules of the app's tasks cannot be imported: {with_full_stop(facts.app.not_imported)}",
            "Correct it: no worker would start. The options of the tasks were not checked.",
        )


def unknown_option(facts: Facts) -> Iterator[Finding]:
    known_options = {*facts.app.known_options, *VOID_OPTIONS}
    for option in sorted(set(facts.app.options) - known_options):
        close = difflib.get_close_matches(option, known_options, n=1, cutoff=0.8)
        if close:
            yield Finding(
                "unknown-option",
                f"broker_transport_options has {option!r}, which no transport reads.",
                f"Did you mean {close[0]!r}?",
            )


def void_options(facts: Facts) -> Iterator[Finding]:
    void = sorted(set(facts.app.options) & set(VOID_OPTIONS))
    if void and facts.app.schedules_all:
        yield Finding(
            "void-options",
            f"broker_transport_options has options without effect on scheduled jobs: {join_names(void, 20)}.",
            "Remove them once no worker and no producer uses stock Celery's transport: no job runs again because of a "
            "timeout, and only the score decides which job is next.",
        )


def priority_order(facts: Facts) -> Iterator[Finding]:
    options = [name for name in ("priority_steps", "queue_order_strategy") if name in facts.app.options]
    users = [*facts.app.priorities, *(f"broker_transport_options {name}" for name in options)]
    if users and not facts.app.priority_order_is_set:
        yield Finding(
            "priority-order",
            f"This app uses Celery's priorities ({join_names(users)}) and does not say which priority is the highest: "
            "on stock Redis 0 is, here 10 is.",
            'Set affinity_priority_order: "lower-first" if the app was written for stock Redis, else "higher-first".',
        )


def priority_range(facts: Facts) -> Iterator[Finding]:
    for words in facts.app.out_of_range:
        yield Finding("priority-range", with_full_stop(words), "Write a priority from 0 to 10.")


def prefetch(facts: Facts) -> Iterator[Finding]:
    if facts.app.void and facts.app.schedules_all:
        given = join_names(f"{name} = {value!r}" for name, value in facts.app.void.items())
        yield Finding(
            "prefetch",
            f"{given}: without effect. A job is claimed only for a free slot, so nothing is prefetched.",
            "Remove it.",
        )


def cancel_on_loss(facts: Facts) -> Iterator[Finding]:
    if facts.app.cancels_on_connection_loss:
        yield Finding(
            "cancel-on-loss",
            "worker_cancel_long_running_tasks_on_connection_loss is on: each lost connection cancels running tasks "
            "with acks_late, which would otherwise go on and be acked after the reconnect.",
            "Set it to False.",
        )


def tls(facts: Facts) -> Iterator[Finding]:
    if facts.app.tls_unverified:
        yield Finding(
            "tls-unverified",
            f"The certificate of {facts.app.broker} is not verified: a third party can read and write jobs.",
            "Remove ssl_cert_reqs from the URL and from broker_use_ssl, or give ssl_ca_certs.",
        )


def results_never_expire(facts: Facts) -> Iterator[Finding]:
    backend = facts.app.backend
    if backend is not None and not backend.expires_s:
        yield Finding(
            "results-never-expire",
            "result_expires keeps results for ever, and the results are on the broker's server: once it is full, "
            "publishing fails.",
            "Set result_expires, set ignore_result on tasks whose results are not read, or give results a server of "
            "their own.",
        )


def results_share_memory(facts: Facts) -> Iterator[Finding]:
    backend, server = facts.app.backend, facts.server
    if backend is None or server is None or not server.maxmemory:
        return
    dropped = server.policy.startswith("volatile")
    effect = f"with {server.policy} results are then dropped" if dropped else "publishing then fails"
    yield Finding(
        "results-share-memory",
        f"Results are on the broker's server, and its maxmemory counts both: {effect}.",
        "Watch its memory, shorten result_expires, or give results a server of their own.",
    )


def merges_twice(facts: Facts) -> Iterator[Finding]:
    for task, base in facts.app.merges_twice.items():
        yield Finding(
            "merges-twice",
            f"Task {task} says merge, and its base class {base} refuses, or drops, a call while a like one waits or "
            "runs: none is left to merge.",
            "Take the base class away.",
        )


def small_batches(facts: Facts) -> Iterator[Finding]:
    for task, (gathered, max_buffered) in facts.app.small_batches.items():
        yield Finding(
            "batches-small",
            f"Task {task} gathers {gathered:,} calls (flush_every), but a worker keeps at most {max_buffered:,} calls "
            "in buffers: a batch has no more, and runs when flush_interval is over.",
            f"Set worker_prefetch_multiplier so that its product with the concurrency is {gathered:,} or more; or use "
            "merge, whose calls wait in Redis.",
        )


def hiredis(facts: Facts) -> Iterator[Finding]:
    if not facts.app.hiredis:
        yield Finding(
            "hiredis",
            "hiredis is not installed: redis-py parses replies in Python, which is slower.",
            "pip install 'hiredis>=3', for workers and producers.",
        )


RULES = (
    settings_names,
    transport,
    broker_url,
    settings,
    misspelt_options,
    not_sent,
    not_recurring,
    no_tasks,
    keys,
    imports,
    unknown_option,
    void_options,
    priority_order,
    priority_range,
    prefetch,
    cancel_on_loss,
    tls,
    results_never_expire,
    results_share_memory,
    merges_twice,
    small_batches,
    hiredis,
)
