"""Every Redis key, with its type and content. No other module contains a key name.

All keys of a cohort share one hash tag, so that they are stored on one shard:
``<global_keyprefix>{<namespace>:<cohort>}:<name>``. The Lua code is generated from `KEYS`. Names of types and rule keys
are percent-encoded in Redis (`values.encode_part`).

Also here: the addresses of pauses and limits in settings, functions and commands (``type:T``, ``key:K``, ``*`` for all
types), and the names of the Redis lists to which stock Celery's producers publish.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import SettingError

#: Schema number: version of these keys' contents (docs/how-to/upgrade.md). Processes with different schema
#: numbers must not share a server.
SCHEMA = 3
#: Value of key ``task`` if the task has several jobs.
SEVERAL = b"+"
#: Value of key ``task`` if the task has no job and is revoked.
NONE = b""
#: Transport option that distinguishes this package's cohort connections from the broker's connections.
COHORT = "affinity_cohort"

#: Name -> (template after the base, Redis type, content). One ``%s`` per argument.
KEYS: dict[str, tuple[str, str, str]] = {
    "job": ("job:%s", "hash", "job id -> the fields of the job, without its message"),
    "message": ("message:%s", "string", "job id -> the message in kombu's format, until the job has ended"),
    "lane": ("lane:%s:%s", "zset", "type, lane -> waiting job ids by rank (µs): the enqueue time minus the head start"),
    "heads": (
        "heads",
        "hash",
        "type -> head of each non-empty lane: 'lane enqueued_us job_id'; ! -> kinds of type rules that exist",
    ),
    # Names of further keys begin like a lane's, so that the ACL of producers, which can write lanes, covers them: the
    # keys of rules by key, of rules per type, of hints (a claim on behalf of any publisher can read them), of merging,
    # of recurring calls (any publisher can postpone one) and of metrics (publishers count their jobs). They cannot
    # collide with a lane, which has fewer parts, or other last parts.
    "held": ("lane:key:held:%s", "zset", "rule key -> ids of the jobs that hold it, by fencing token"),
    "key_queue": ("lane:key:queue:%s:%s:%s", "zset", "rule key, type, lane -> its waiting jobs by rank (µs)"),
    "type_rules": (
        "lane:key:type_rules",
        "hash",
        "type -> its rule: 'limit=N', 'full', 'counting', 'paused'; * -> all types; ! -> reserves; !first and others",
    ),
    "type_running": (
        "lane:key:running:%s",
        "zset",
        "type -> claims counted by a limit or a reserve, by lane: priority, plus 11 if on-demand",
    ),
    "pauses": (
        "lane:key:pauses",
        "hash",
        "'type:T', 'key:K' or '*' (all types) -> pause: start, end (0: no end), reason",
    ),
    "pause_ends": ("pause_ends", "zset", "pauses with an end, by end time (µs)"),
    "pause_signs": (
        "pause_signs",
        "zset",
        "pauses not yet sent to all workers, by the join time (µs) of the next worker",
    ),
    "recount": (
        "lane:key:recount",
        "string",
        "progress of counting claims for new limits and reserves: join time (µs), worker and cursor; then 'types N'",
    ),
    "preemptible": (
        "lane:key:preemptible:%s",
        "zset",
        "tenant's key -> its claimed `preemptible=True` jobs, by fencing token",
    ),
    "preemptible_tenants": (
        "lane:key:preemptible_tenants",
        "zset",
        "tenants' keys with claimed preemptible jobs, by the number of these jobs",
    ),
    "key_state": (
        "lane:key:state:%s",
        "hash",
        "rule key: 'type lane' -> time (µs) and id of its first job, or '*'; '=task' -> its last limit; its retry",
    ),
    "second_key_jobs": (
        "lane:key:second:%s",
        "zset",
        "rule key -> waiting jobs with this key as their second one, by rank (µs)",
    ),
    "turns": ("lane:key:turns:%s:%s", "zset", "type, lane -> 'enqueued id' of its tenants' candidates, by start tag"),
    "untenanted": (
        "lane:key:untenanted:%s:%s",
        "zset",
        "type, lane -> waiting jobs without a tenant, by rank (µs); exists with fair shares",
    ),
    "share": (
        "lane:key:share:%s:%s:%s",
        "string",
        "lane, tenant's key, generation of shares -> its credit and use, and its start tag and candidate by type",
    ),
    "clocks": ("lane:key:clocks", "zset", "'lane type' by the greatest start tag (µs) of a turn of its slots"),
    "unlisted": (
        "lane:key:unlisted",
        "hash",
        "'type lane' -> time (µs) and number up to which the jobs of a lane are listed after fair shares began",
    ),
    "minimum_heads": (
        "lane:key:minimum_heads",
        "hash",
        "type -> the heads of its minimum lanes, in the format of `heads`",
    ),
    "minimum_lane": (
        "lane:key:minimum:%s:%s",
        "zset",
        "type, lane -> jobs that are claimed first: their tenants are below their minimum",
    ),
    "hints": ("lane:key:hints:%s", "zset", "worker -> hints of the jobs it completed, by the last one's end time (µs)"),
    "holders": ("lane:key:holders:%s", "zset", "hint -> workers that hold it, by the time (µs) since when they do"),
    "hint_heads": (
        "lane:key:hint_heads",
        "hash",
        "'hint type' -> the heads of its hint lanes, in the format of `heads`",
    ),
    "hint_lane": (
        "lane:key:hint:%s:%s:%s",
        "zset",
        "hint, type, lane -> the lane's jobs with this hint, by rank (µs)",
    ),
    "rates": ("lane:key:rates", "zset", "rate keys, by the time (µs) at which their capacity is full again"),
    "due_keys": (
        "lane:key:due",
        "zset",
        "rule keys with waiting jobs, by the time (µs) at which a tick re-evaluates them",
    ),
    "due_times": (
        "lane:key:due_times",
        "zset",
        "ids of waiting jobs with their own due time, by that time (µs)",
    ),
    "kept_back": ("lane:kept:%s:%s", "zset", "type, lane -> waiting jobs that a key blocks, by rank (µs)"),
    "merging": (
        "lane:key:merging",
        "hash",
        "'type merge-key key-rules task-name' -> the waiting call, or batch, that the next such call joins",
    ),
    "callers": ("lane:key:callers:%s", "zset", "batch -> its calls that have not ended, in order"),
    "batched": (
        "lane:key:batched",
        "hash",
        "type -> number of calls that ran merged; counted only while the type has workers",
    ),
    "waiting_calls": (
        "lane:key:calls",
        "hash",
        "type -> number of calls waiting in batches, without each batch's first call",
    ),
    "reported_calls": (
        "lane:key:reported:%s",
        "zset",
        "dead-lettered batch -> its calls whose ends were reported, in order",
    ),
    "recurring": (
        "lane:key:recurring",
        "zset",
        "recurring calls, by the time (µs) at which they are due or will be assigned again",
    ),
    "recurring_call": (
        "lane:key:recurring:%s",
        "hash",
        "recurring call: its match rule, interval, due time, app and last match",
    ),
    "recurring_matches": (
        "lane:key:recurring_matches",
        "hash",
        "'type merge-key task-name' -> recurring calls that such a call postpones",
    ),
    # Producers and observers must not read this key: it contains the call's arguments.
    "signature": ("signature:%s", "string", "recurring call -> the call, serialized by its app"),
    "recurring_of": ("recurring_of:%s", "hash", "app -> digests of the recurring calls in its latest app.conf"),
    "kept_lanes": ("lane:kept", "hash", "'type lane' -> 1 for each lane in which keys block jobs"),
    "waiting_keys": (
        "lane:key:waiting",
        "zset",
        "rule keys with waiting jobs, by the revision of the limits last applied to them",
    ),
    "scheduled": ("scheduled", "zset", "ids of jobs that wait for their ETA, or in a merge window, by due time (µs)"),
    "ended": ("ended", "zset", "ids of ended jobs that are remembered for more than a minute, by end time (µs)"),
    "dead": ("dead", "zset", "job ids of dead letters, by end time (µs)"),
    "requeues": (
        "requeues",
        "list",
        "the last jobs that left a worker unfinished, with cause, worker and time (µs): kept for a day",
    ),
    "task": (
        "task:%s",
        "string",
        "task id -> its unfinished job, '+' if several; otherwise the job that ended last; '' if the task is revoked",
    ),
    # The name begins like `task`: an ACL that permits that key permits this one. An encoded id has no colon.
    "jobs_of_task": ("task:jobs:%s", "zset", "task id -> its unfinished jobs in order, if there are several"),
    "expires": ("expires", "zset", "ids of waiting jobs that can expire, by expiry time (µs)"),
    "stamped": (
        "stamped:%s",
        "zset",
        "stamp ('name:value') -> ids of jobs whose message has this stamp, by publish time (µs)",
    ),
    "revoked": ("revoked:%s", "string", "a revoked task id: kept for three hours"),
    "revoked_stamp": ("revoked_stamp:%s", "string", "stamp -> time (µs) of its revocation: kept for three hours"),
    "unreported": (
        "unreported",
        "zset",
        "ids of jobs that ended without a worker, by the time (µs) at which their end will be reported",
    ),
    "profiles": (
        "profiles",
        "hash",
        "profile -> its types, separated by spaces; %21 marks types its workers currently refuse",
    ),
    "serving": ("serving:%s", "zset", "type -> profiles that serve it, by their number of types"),
    "capacity": ("capacity", "hash", "type -> slots of live workers that serve it"),
    "slots": ("slots", "hash", "profile -> slots of its workers"),
    "free_slots": ("free_slots", "hash", "profile -> free slots of its workers"),
    "free": (
        "free:%s",
        "zset",
        "profile -> workers with a free slot, by the time (µs) of the last change of their slots",
    ),
    "members": ("members", "hash", "profile -> number of its workers"),
    "worker": ("worker:%s", "hash", "a live worker: node name, profile, slots, free slots"),
    "names": ("names", "hash", "node name -> the worker that used it last"),
    "heartbeats": ("heartbeats", "zset", "workers, by the time (µs) of their last heartbeat"),
    "joined": ("joined", "zset", "workers, by join time (µs)"),
    "claims": ("claims:%s", "hash", "worker: id of each job it has claimed -> fencing token"),
    "inbox": ("inbox:%s", "list", "worker -> claimed jobs it has not read, the oldest at the right end"),
    "prefetch_turn": ("prefetch_turn", "hash", "type -> the worker that last prefetched jobs of the type"),
    "stop_orders": (
        "stop_orders",
        "hash",
        "job being preempted -> fence, worker, tenant and type it gives way to, preemption time, grace period",
    ),
    "nudges": ("nudges:%s", "list", "worker -> control message that it can read unscheduled queues again"),
    "fence": ("fence", "string", "the last fencing token"),
    "clock": (
        "clock",
        "hash",
        "times (µs) of the last tick and from which silence counts; the last step of this clock, and its time",
    ),
    "schema": ("schema", "string", "the schema number; in cohort `default`, then revision and map of the cohorts"),
    "settings": ("settings", "hash", "current scheduling settings by name, and their revision"),
    "conf_last": ("conf_last", "hash", "scheduling settings of the app.conf that changed last: a reset restores them"),
    "conf_by_app": ("conf_by_app:%s", "hash", "app -> scheduling settings in its latest app.conf: kept for a month"),
    "claim_number": (
        "claim_number",
        "string",
        "number of claims with a choice of jobs (for affinity_priority_percentage)",
    ),
    "durations": ("durations", "hash", "type -> moving average of its jobs' slot-time (µs)"),
    "run_times": ("run_times", "hash", "task -> runs, time of the last one (µs), sums of its run times and sizes"),
    "metrics": (
        "lane:key:metrics:%s",
        "hash",
        "type -> job counts: published (before, if no worker serves the type), by wait, lateness, slot-time and end",
    ),
    "trend": (
        "trend",
        "list",
        "jobs that waited, were published and ended, by type, in each of the last 15 minutes, as JSON",
    ),
    "trend_written": ("trend_written", "string", "exists if `trend` was written within the last minute"),
    "history": (
        "history:%s",
        "list",
        "interval (s) -> packed points: ended and waiting jobs and waits by type; slots, memory: kept for a week",
    ),
    "history_base": ("history:base:%s", "list", "interval (s) -> metrics of the types at its last points, compressed"),
    "history_names": ("history:names", "hash", "checksum in points -> name of the type"),
    "history_written": ("history:written", "string", "exists if a point was written within the last 5 s"),
    "counters": ("counters", "hash", "name of an event -> number of occurrences"),
    "damage_log": ("damage_log", "list", "findings about corrupt keys, until a dispatcher has logged them"),
    "idempotency": (
        "idempotency:%s",
        "string",
        "hash of an Idempotency-Key -> digest of the HTTP request, and task id: kept for affinity_idempotency",
    ),
    "remote_worker": (
        "remote_worker:%s",
        "string",
        "an HTTP worker: name, types, slots and a digest of its secret, as JSON; kept for a day after its last request",
    ),
    "left_to_celery": (
        "left_to_celery:%s",
        "hash",
        "HTTP worker -> jobs it returned for Celery workers, each with its type and the reason: kept for a day",
    ),
    "remote_end": (
        "remote_end:%s",
        "string",
        "fencing token -> the claim's end as an HTTP worker reported it, as JSON: kept for an hour",
    ),
    "recording": (
        "recording",
        "string",
        "id of a recording for the lab, its start and end (µs), and its expiry time (ms)",
    ),
    "recorded": (
        "recorded:%s",
        "stream",
        "recording -> ended claims and their workers, until the recording is fetched",
    ),
    "set_aside": ("set_aside:%s", "any", "a key with a wrong type, renamed (quarantined): kept for a week"),
}


@dataclass(frozen=True)
class Keys:
    """The Redis keys of one cohort."""

    global_keyprefix: str = ""
    namespace: str = "affinity"
    cohort: str = "default"
    #: True if kombu's own keys have the hash tag as well: a fleet on a cluster uses only one node.
    in_cluster: bool = False

    def __post_init__(self) -> None:
        for option in ("global_keyprefix", "namespace", "cohort"):
            value = getattr(self, option)
            if not isinstance(value, str) or "{" in value or "}" in value:
                raise SettingError(
                    f"{option} must be a str that holds no braces (they would break the hash tag), got: {value!r}"
                )

    @classmethod
    def of_options(cls, options: Mapping[str, object]) -> "Keys":
        """Return the keys configured by ``broker_transport_options``. Raises SettingError.

        None is an empty prefix, like in kombu.
        """
        given: Mapping[str, Any] = options  # `__post_init__` rejects values that are not a str
        return cls(
            given.get("global_keyprefix") or "", given.get("namespace", cls.namespace), given.get(COHORT, cls.cohort)
        )

    @property
    def base(self) -> str:
        """The common prefix of the cohort's keys; not a key itself."""
        return f"{self.global_keyprefix}{{{self.namespace}:{self.cohort}}}:"

    @property
    def of_kombu(self) -> str:
        """The prefix of kombu's own keys: bindings, and lists of unscheduled queues."""
        return f"{self.base}kombu:" if self.in_cluster else self.global_keyprefix

    def key(self, name: str, *parts: str) -> str:
        """Return the Redis key *name* with the encoded *parts*."""
        return self.base + KEYS[name][0] % parts


Kind = Literal["type", "key", "all"]
#: Address of all types.
ALL = "*"
#: Address prefixes of types and of rule keys.
OF_TYPE, OF_KEY = "type:", "key:"


def type_address(type_: str) -> str:
    return OF_TYPE + type_


def key_address(key: str) -> str:
    return OF_KEY + key


def parts_of(address: str) -> tuple[Kind, str]:
    """Return the kind and the name in *address*. Without a prefix, it is the name of a type."""
    if address == ALL:
        return "all", ""
    if address.startswith(OF_KEY):
        return "key", address.removeprefix(OF_KEY)
    return "type", address.removeprefix(OF_TYPE)


#: Maximum number of queues whose lists one report reads.
MAX_QUEUES = 500


@dataclass(frozen=True)
class StockLists:
    """The Redis lists to which stock Celery's producers can publish, according to the app's configuration."""

    #: Names of the queues to which the app's calls can be routed.
    queues: tuple[str, ...]
    #: Names of the exchanges to which kombu binds these queues. Other queues can be bound to the exchanges too.
    exchanges: tuple[str, ...]
    #: Transport option ``priority_steps``.
    steps: tuple[int, ...]
    #: Transport option ``sep``.
    sep: str
    #: Function that returns True if this transport schedules a queue, so that its workers ingest the queue's lists.
    schedules: Callable[[str], bool]
    #: Setting ``affinity_ingest``.
    ingests: bool = True

    def lists(self, prefix: str, queue: str) -> list[str]:
        """Return the names of the lists of *queue*, most urgent first. *prefix* is kombu's key prefix."""
        return [f"{prefix}{queue}{self.sep}{step}" if step else f"{prefix}{queue}" for step in self.steps]

    def binding(self, prefix: str, exchange: str) -> str:
        """Return the key of the set of queues bound by kombu to *exchange*."""
        return f"{prefix}_kombu.binding.{exchange}"
