"""Every Redis key, with its type and content. No other module spells a key.

All keys of a cohort share one hash tag, so that they live on one shard:
``<global_keyprefix>{<namespace>:<cohort>}:<name>``. The Lua side is generated from `KEYS`.

What a pause or a limit is about, as settings, arrows and people name it: ``type:T``, ``key:K``, ``*`` for all types.

Names of types and keys are encoded where Redis has them (`encoding.encode`).

Names of the Redis lists to which stock Celery's producers publish: one list per queue and priority step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import SettingError

# Longer than 300 lines: a table, and the names of the keys of one cohort.


#: Number of the format of these keys' contents (docs/explanation/versions.md). Processes that write different numbers
#: must not share a server.
SCHEMA = 2

#: The text that stands instead of a job's id where a task has several jobs.
SEVERAL = b"+"

#: The text that stands there where a task has none, and is revoked.
NONE = b""

#: Transport option by which this package's connections to a cohort are told from those of the broker.
COHORT = "affinity_cohort"

#: name -> (template after the base, Redis type, content). One ``%s`` for each argument.
KEYS: dict[str, tuple[str, str, str]] = {
    "job": ("job:%s", "hash", "the fields of a job, without its message"),
    "message": ("message:%s", "string", "the message of a job as kombu sent it, until the job has ended"),
    "lane": ("lane:%s:%s", "zset", "type, lane -> waiting job ids by enqueue time, µs"),
    "heads": (
        "heads",
        "hash",
        "type -> the first job of each non-empty lane: 'lane enqueued_us job_id'; ! -> which rules of types exist",
    ),
    # The name begins like a lane's: a user who may write lanes, as producers may, may write this key.
    # So do the names of all that rules by key take. No lane has as many parts as these, or a last part like theirs.
    "held": ("lane:key:held:%s", "zset", "key of a rule -> ids of the jobs that hold it, by fencing number"),
    "sublane": (
        "lane:key:sublane:%s:%s:%s",
        "zset",
        "key of a rule, type, lane -> its waiting jobs by enqueue time, µs",
    ),
    # As do those of what holds back whole types.
    "type_rules": (
        "lane:key:type_rules",
        "hash",
        "type -> its rule: 'limit=N', 'full', 'counting', 'paused'; * -> all types; ! -> reserves; !first; !placing",
    ),
    "limited": (
        "lane:key:limited:%s",
        "zset",
        "type -> claims that a limit or a reserve counts, by lane: the priority, plus 11 for on demand",
    ),
    "pauses": (
        "lane:key:pauses",
        "hash",
        "'type:T', 'key:K' or '*' (all types) -> start, end (0: no end) and reason of its pause",
    ),
    "pause_ends": ("pause_ends", "zset", "pauses that have an end, by the time of their end, µs"),
    "pause_signs": (
        "pause_signs",
        "zset",
        "pauses that some workers have not been told of yet, by the join time of the next such worker, µs",
    ),
    "recount": (
        "lane:key:recount",
        "string",
        "progress of counting claims for new limits and reserves: a join time, µs, worker and cursor; then 'types N'",
    ),
    "preemptible": (
        "lane:key:preemptible:%s",
        "zset",
        "key of a tenant -> its claimed jobs that may be stopped (`preemptible=True`), by fencing number",
    ),
    "giving": ("lane:key:giving", "zset", "keys of tenants with such jobs, by the number of these"),
    "of_key": (
        "lane:key:of:%s",
        "hash",
        "key of a rule: 'type lane' -> time, µs, and id of its first job, or '*'; '=task' -> its last limit; its retry",
    ),
    "coming": (
        "lane:key:coming:%s",
        "zset",
        "key of a rule -> waiting jobs that have this key as their second one, by enqueue time, µs",
    ),
    "tags": (
        "lane:key:tags",
        "zset",
        "tenants by the slot-time that they were charged, by weight, µs, or its logarithm; member ! has the clock",
    ),
    "credits": ("lane:key:credits", "hash", "tenant -> time that its jobs were charged and did not use, µs"),
    "turns": (
        "lane:key:turns:%s:%s:%s",
        "zset",
        "type, lane, era of shares -> 'enqueued id' of jobs of tenants that stand in this lane, by start, or less",
    ),
    "first_heads": (
        "lane:key:first_heads",
        "hash",
        "type -> the heads of its first lanes, as `heads` has those of lanes",
    ),
    "first_lane": (
        "lane:key:first:%s:%s",
        "zset",
        "type, lane -> the jobs in this lane that go before all others, of tenants below their minimum",
    ),
    # And those of hints, which a claim of any publisher may look at.
    "hints": (
        "lane:key:hints:%s",
        "zset",
        "worker -> hints of the jobs that it ended well, by the time of the last one, µs",
    ),
    "holders": ("lane:key:holders:%s", "zset", "hint -> workers that hold it, by the time since when they do, µs"),
    "near_heads": (
        "lane:key:near",
        "hash",
        "'hint type' -> the heads of its near lanes, as `heads` has those of lanes",
    ),
    "near_lane": (
        "lane:key:near:%s:%s:%s",
        "zset",
        "hint, type, lane -> the jobs in this lane that have this hint, by enqueue time, µs",
    ),
    "rates": ("lane:key:rates", "zset", "keys of rates, by the time when all their starts are free again, µs"),
    "due_keys": (
        "lane:key:due",
        "zset",
        "keys of rules with waiting jobs, by the time when a tick looks after them, µs",
    ),
    "kept_back": (
        "lane:kept:%s:%s",
        "zset",
        "type, lane -> waiting jobs that a key keeps out of this lane, by enqueue time, µs",
    ),
    # And those of merging.
    "merging": (
        "lane:key:merging",
        "hash",
        "'type merge-key key-rules task-name' -> the waiting call, or batch, that the next such call joins",
    ),
    "callers": ("lane:key:callers:%s", "zset", "batch -> its calls that have not ended, in order"),
    "batched": (
        "lane:key:batched",
        "hash",
        "type -> number of calls that ran merged with others; counts only while the type has workers",
    ),
    "waiting_calls": (
        "lane:key:calls",
        "hash",
        "type -> number of calls that wait in batches, without the first call of each batch",
    ),
    "told_callers": ("lane:key:told:%s", "zset", "dead batch -> its calls whose callers have been told, in order"),
    # And those of recurring calls: a call that matches one puts it off, whoever publishes the call.
    "recurring": (
        "lane:key:recurring",
        "zset",
        "recurring calls, by the time when they are due or will be handed out again, µs",
    ),
    "recurring_call": (
        "lane:key:recurring:%s",
        "hash",
        "recurring call: which calls match it, its interval, due time, app and last match",
    ),
    "recurs": ("lane:key:recurs", "hash", "'type merge-key task-name' -> recurring calls that such a call postpones"),
    # Not among the keys that producers and observers may read: it has the call's arguments.
    "signature": ("signature:%s", "string", "recurring call -> the call itself, serialized by its app"),
    "recurring_of": (
        "recurring_of:%s",
        "hash",
        "app -> digests of the recurring calls that its app.conf had last",
    ),
    "kept_lanes": ("lane:kept", "hash", "'type lane' -> 1 for each lane that keys keep jobs out of"),
    "waiting_keys": (
        "lane:key:waiting",
        "zset",
        "keys of rules with waiting jobs, by the revision of the limits that was last applied to them",
    ),
    "scheduled": (
        "scheduled",
        "zset",
        "ids of jobs that wait for their ETA, or for more calls to merge with, by due time, µs",
    ),
    "ended": (
        "ended",
        "zset",
        "ids of ended jobs that are remembered for more than a minute, by the time of their end, µs",
    ),
    "dead": ("dead", "zset", "job ids of dead letters, by the time of their end, µs"),
    "task": (
        "task:%s",
        "string",
        "task id -> its unfinished job, or '+' if there are several; else the job that ended last; '' if it is revoked",
    ),
    # The name begins like `task`: a user who may write that key may write this one. An encoded id has no colon.
    "jobs_of_task": ("task:jobs:%s", "zset", "task id -> its unfinished jobs in order, if there are several"),
    "expires": ("expires", "zset", "ids of waiting jobs that can expire, by the time of their expiry, µs"),
    "stamped": (
        "stamped:%s",
        "zset",
        "stamp ('name:value') -> ids of jobs whose message has this stamp, by publish time, µs",
    ),
    "revoked": ("revoked:%s", "string", "a revoked task id: kept for three hours"),
    "revoked_stamp": ("revoked_stamp:%s", "string", "stamp -> when it was revoked, µs: kept for three hours"),
    "untold": (
        "untold",
        "zset",
        "ids of jobs that ended without a worker, by the time when their callers will be told, µs",
    ),
    "profiles": (
        "profiles",
        "hash",
        "profile -> its types, separated by blanks; %21 marks types that its workers refuse for the moment",
    ),
    "serving": ("serving:%s", "zset", "type -> profiles that serve it, by their number of types"),
    "capacity": ("capacity", "hash", "type -> slots of live workers that serve it"),
    "slots": ("slots", "hash", "profile -> slots of its workers"),
    "free_slots": ("free_slots", "hash", "profile -> free slots of its workers"),
    "free": ("free:%s", "zset", "profile -> workers with a free slot, by the time when their slots last changed, µs"),
    "members": ("members", "hash", "profile -> number of its workers"),
    "worker": ("worker:%s", "hash", "a live worker: node name, profile, slots, free slots"),
    "names": ("names", "hash", "node name -> the worker that used it last"),
    "heartbeats": ("heartbeats", "zset", "workers, by the time of their last sign of life, µs"),
    "joined": ("joined", "zset", "workers, by the time when they joined, µs"),
    "claims": ("claims:%s", "hash", "worker: id of each job that it holds -> fencing number"),
    "inbox": ("inbox:%s", "list", "worker -> claimed jobs that it has not read, the oldest at the right end"),
    "ahead": ("ahead", "hash", "type -> the worker that last took jobs of the type beyond its slots"),
    "vacating": (
        "vacating",
        "hash",
        "job that its worker is to stop -> fence, worker, tenant and type it gives way to, time of the order, grace",
    ),
    "nudges": ("nudges:%s", "list", "worker -> a sign that it may read unscheduled queues again"),
    "fence": ("fence", "string", "the last fencing number"),
    "clock": (
        "clock",
        "hash",
        "time of the last tick, and the time from which silence counts, µs; the last step of this clock, and its time",
    ),
    "schema": ("schema", "string", "the number of the schema; then, in `default`, revision and map of the cohorts"),
    "settings": ("settings", "hash", "scheduling settings in force, by name, and their revision"),
    "conf": ("conf", "hash", "scheduling settings of the app.conf that changed last: a reset restores them"),
    "conf_of": ("conf_of:%s", "hash", "app -> scheduling settings that its app.conf had last: kept for a month"),
    "claim_number": (
        "claim_number",
        "string",
        "number of claims that had a choice of jobs (for affinity_priority_percentage)",
    ),
    "durations": (
        "durations",
        "hash",
        "type -> moving average of its jobs' time in a slot, µs",
    ),
    # The name begins like a lane's: who publishes a job counts it.
    "metrics": (
        "lane:key:metrics:%s",
        "hash",
        "type -> numbers of jobs: published (before, if no worker serves it), by wait, by time in a slot and end",
    ),
    "trend": (
        "trend",
        "list",
        "jobs that waited, were published and ended, by type, in each of the last 15 minutes, as JSON",
    ),
    "trend_written": ("trend_written", "string", "exists if `trend` was written within the last minute"),
    "counters": ("counters", "hash", "name of an event -> how often it happened"),
    "spoiled": ("spoiled", "list", "findings of deleted or overwritten data, until a dispatcher has logged them"),
    "idempotency": (
        "idempotency:%s",
        "string",
        "hash of an Idempotency-Key -> digest of the HTTP request, and task id: kept for affinity_idempotency",
    ),
    "remote_worker": (
        "remote_worker:%s",
        "string",
        "a worker over HTTP: name, types, slots and a digest of its secret, as JSON; for a day after its last request",
    ),
    "left_to_celery": (
        "left_to_celery:%s",
        "hash",
        "worker over HTTP -> jobs that it gave back for Celery's workers, each with its type and the reason: for a day",
    ),
    "remote_end": (
        "remote_end:%s",
        "string",
        "fencing number -> the end that a worker over HTTP told of the claim, as JSON: kept for an hour",
    ),
    "recording": (
        "recording",
        "string",
        "id of a recording for the lab, its start and its end, µs, and the time until which it is kept, ms",
    ),
    "recorded": ("recorded:%s", "stream", "recording -> claims that ended, and their workers, until it is fetched"),
    "set_aside": ("set_aside:%s", "any", "a key that had a wrong type, renamed: kept for a week"),
}


@dataclass(frozen=True)
class Keys:
    """The keys of one cohort."""

    global_keyprefix: str = ""
    namespace: str = "affinity"
    cohort: str = "default"
    #: Whether kombu's own keys have the tag as well: a fleet on a cluster has one node.
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
        """Return the keys that ``broker_transport_options`` ask for. Raises SettingError.

        As for kombu, None is no prefix.
        """
        given: Mapping[str, Any] = options  # `__post_init__` refuses what is no text
        return cls(
            given.get("global_keyprefix") or "", given.get("namespace", cls.namespace), given.get(COHORT, cls.cohort)
        )

    @property
    def base(self) -> str:
        """The beginning of every key of the cohort; no key by itself."""
        return f"{self.global_keyprefix}{{{self.namespace}:{self.cohort}}}:"

    @property
    def of_kombu(self) -> str:
        """The beginning of kombu's own keys: bindings, and lists of queues that are not scheduled."""
        return f"{self.base}kombu:" if self.in_cluster else self.global_keyprefix

    def key(self, name: str, *parts: str) -> str:
        """Return the key *name* for *parts*, which are encoded already."""
        return self.base + KEYS[name][0] % parts


Kind = Literal["type", "key", "all"]

#: All types.
ALL = "*"

#: What goes before the name of a type, and of a key.
OF_TYPE, OF_KEY = "type:", "key:"


def type_address(type_: str) -> str:
    return OF_TYPE + type_


def key_address(key: str) -> str:
    return OF_KEY + key


def parts_of(address: str) -> tuple[Kind, str]:
    """Return the kind and the name in *address*; what is no address is that of a type."""
    if address == ALL:
        return "all", ""
    if address.startswith(OF_KEY):
        return "key", address.removeprefix(OF_KEY)
    return "type", address.removeprefix(OF_TYPE)


#: Maximum number of queues whose lists one report reads.
MOST_QUEUES = 500


@dataclass(frozen=True)
class StockLists:
    """The lists to which stock Celery's producers of an app can publish, according to the app's configuration."""

    #: Names of the queues to which the app's calls can be routed.
    queues: tuple[str, ...]
    #: Names of the exchanges to which kombu binds these queues. Other queues can be bound to them too.
    exchanges: tuple[str, ...]
    #: Transport option ``priority_steps``.
    steps: tuple[int, ...]
    #: Transport option ``sep``.
    sep: str
    #: Returns True if this transport schedules the queue, so that its workers ingest the queue's lists.
    schedules: Callable[[str], bool]
    #: Setting ``affinity_ingest``.
    ingests: bool = True

    def lists(self, prefix: str, queue: str) -> list[str]:
        """Return the names of the lists of *queue*, most urgent first. *prefix*: kombu's key prefix."""
        return [f"{prefix}{queue}{self.sep}{step}" if step else f"{prefix}{queue}" for step in self.steps]

    def binding(self, prefix: str, exchange: str) -> str:
        """Return the key of the set of queues that kombu has bound to *exchange*."""
        return f"{prefix}_kombu.binding.{exchange}"
