"""Every Redis key, with its type and content. No other module spells a key.

All keys of a cohort share one hash tag, so that they live on one shard:
``<global_keyprefix>{<namespace>:<cohort>}:<name>``. The Lua side is generated from `KEYS`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from ..errors import SettingError

#: Number of the format of these keys' contents (docs/explanation/versions.md). Processes that write different numbers
#: must not share a server.
SCHEMA = 2

#: The text that stands instead of a job's id where a task has several jobs.
SEVERAL = b"+"

#: name -> (template after the base, Redis type, content). One ``%s`` for each argument.
KEYS: dict[str, tuple[str, str, str]] = {
    "job": ("job:%s", "hash", "what is known of a job, without its message"),
    "message": ("message:%s", "string", "the message as kombu sent it, until the job has ended"),
    "lane": ("lane:%s:%s", "zset", "type, lane -> waiting job ids by enqueue time, µs"),
    "heads": (
        "heads",
        "hash",
        "type -> 'lane enqueued_us job_id' of each of its lanes that is not empty; !: which rules of types there are",
    ),
    # The name begins like a lane's: a user who may write lanes, as producers may, may write this key.
    "leaders": ("lane:leaders", "hash", "type -> which of its heads go first, and how far"),
    # So do the names of all that rules by key take. No lane has as many parts as these, or a last part like theirs.
    "held": ("lane:key:held:%s", "zset", "key of a rule -> job ids that hold it, by fencing number"),
    "sublane": (
        "lane:key:sublane:%s:%s:%s",
        "zset",
        "key of a rule, type, lane -> its waiting jobs by enqueue time, µs",
    ),
    # As do those of what holds back whole types.
    "type_rules": (
        "lane:key:type_rules",
        "hash",
        "type -> what holds it back: 'limit=N', 'full', 'counting', 'paused'; * is for all; ! -> setting `reserve`",
    ),
    "limited": (
        "lane:key:limited:%s",
        "zset",
        "type -> its claims that a limit, or a reserve, counts, by lane: its priority, 11 more on demand",
    ),
    "pauses": (
        "lane:key:pauses",
        "hash",
        "'type:T', 'key:K' or '*' -> since when it is paused, until when (0: no end), why",
    ),
    "pause_ends": ("pause_ends", "zset", "pauses that have an end, by that time, µs"),
    "pause_signs": (
        "pause_signs",
        "zset",
        "pauses of which some workers have no sign yet, by those workers' join time, µs",
    ),
    "recount": (
        "lane:key:recount",
        "string",
        "where counting claims for new limits and reserves goes on: a join time, µs, worker and cursor; then 'types N'",
    ),
    "of_key": (
        "lane:key:of:%s",
        "hash",
        "key of a rule -> 'type lane': time, µs, and id of the first job, who stands; '=task': stated last; retry",
    ),
    "rates": ("lane:key:rates", "zset", "keys of rates by when all their starts are free again, µs"),
    "due_keys": (
        "lane:key:due",
        "zset",
        "keys of rules that have waiting jobs, by when a tick is to settle them, µs",
    ),
    "kept_back": (
        "lane:kept:%s:%s",
        "zset",
        "type, lane -> waiting jobs that a key keeps out of that lane, by enqueue time, µs",
    ),
    # And those of merging.
    "merging": (
        "lane:key:merging",
        "hash",
        "'type merge-key key-rules task-name' -> the call, or the batch, that the next such call joins while it waits",
    ),
    "callers": ("lane:key:callers:%s", "zset", "batch -> its calls that have not ended, in their order"),
    "batched": ("lane:key:batched", "hash", "type -> calls whose runs they were not alone in, while it has workers"),
    "waiting_calls": ("lane:key:calls", "hash", "type -> calls that wait in batches, but for one of each batch"),
    "told_callers": ("lane:key:told:%s", "zset", "batch that is dead -> its calls that know, in their order"),
    # And those of recurring calls: a call that matches one puts it off, whoever publishes the call.
    "recurring": ("lane:key:recurring", "zset", "recurring calls by when they are due, or handed out again, µs"),
    "recurring_call": (
        "lane:key:recurring:%s",
        "hash",
        "recurring call: which calls match, its interval, when it is due, its app, the last match",
    ),
    "recurs": ("lane:key:recurs", "hash", "'type merge-key task-name' -> recurring calls that such a call puts off"),
    # Not among the keys that producers and observers may read: it has the call's arguments.
    "signature": ("signature:%s", "string", "recurring call -> the call itself, in words of its app"),
    "recurring_of": (
        "recurring_of:%s",
        "hash",
        "app -> the recurring calls that its own app.conf had last: a digest of each",
    ),
    "kept_lanes": ("lane:kept", "hash", "'type lane' -> 1 for each lane out of which a key keeps jobs"),
    "waiting_keys": (
        "lane:key:waiting",
        "zset",
        "keys of rules that have waiting jobs, by the revision of the limits that they agree with",
    ),
    "scheduled": ("scheduled", "zset", "job ids that wait for their time, or for more calls, by due time, µs"),
    "ended": (
        "ended",
        "zset",
        "job ids that have ended, and are known for over a minute, by when they ended, µs",
    ),
    "dead": ("dead", "zset", "job ids that will not run again, by the time they ended, µs"),
    "task": (
        "task:%s",
        "string",
        "task id -> its job that has not ended, '+' if there are several; or the one that ended last",
    ),
    # The name begins like `task`: a user who may write that key may write this one. An encoded id has no colon.
    "jobs_of_task": ("task:jobs:%s", "zset", "task id -> its jobs that have not ended, if several, in their order"),
    "expires": ("expires", "zset", "job ids that end if they wait that long, by that time, µs"),
    "stamped": ("stamped:%s", "zset", "stamp ('name:value') -> job ids whose message bears it, by publish time, µs"),
    "revoked": ("revoked:%s", "string", "task id that was revoked: kept for some hours"),
    "revoked_stamp": ("revoked_stamp:%s", "string", "when a stamp was revoked, µs: kept for some hours"),
    "untold": ("untold", "zset", "job ids that ended without a worker, by when their callers are to be told, µs"),
    "profiles": (
        "profiles",
        "hash",
        "profile -> its types, separated by blanks; %21 marks one that it has withdrawn from",
    ),
    "serving": ("serving:%s", "zset", "type -> profiles that serve it, by their number of types"),
    "capacity": ("capacity", "hash", "type -> slots of live workers that serve it"),
    "slots": ("slots", "hash", "profile -> slots of its workers"),
    "free_slots": ("free_slots", "hash", "profile -> free slots of its workers"),
    "free": ("free:%s", "zset", "profile -> workers with a free slot, by the time of their last change, µs"),
    "members": ("members", "hash", "profile -> number of its workers"),
    "worker": ("worker:%s", "hash", "a live worker: node name, profile, slots, free slots"),
    "names": ("names", "hash", "node name -> the worker that took it last"),
    "beats": ("beats", "zset", "workers by the time they were last heard of, µs"),
    "joined": ("joined", "zset", "workers by the time they joined, µs"),
    "claims": ("claims:%s", "hash", "worker -> job ids it holds, each with its fencing number"),
    "inbox": ("inbox:%s", "list", "worker -> claimed jobs that it has not read, oldest at the right"),
    "ahead": ("ahead", "hash", "type -> the worker that took jobs of it beyond its slots last"),
    "nudges": ("nudges:%s", "list", "worker -> a sign that it may read the queues that are not scheduled again"),
    "fence": ("fence", "string", "the last fencing number given"),
    "clock": ("clock", "hash", "when the server was last ticked, and since when silence counts, µs"),
    "schema": ("schema", "string", "number of the format of all these keys"),
    "settings": ("settings", "hash", "scheduling settings in force, by name, and their revision"),
    "conf": ("conf", "hash", "scheduling settings as an app.conf had them last: what a reset goes back to"),
    "conf_of": ("conf_of:%s", "hash", "app -> scheduling settings as its own app.conf had them last: kept for a month"),
    "claim_number": (
        "claim_number",
        "string",
        "claims made that had a choice, since a share of them goes by age alone",
    ),
    "durations": (
        "durations",
        "hash",
        "type -> moving average of its jobs' time in a slot, µs; of those under 0.1 s one in eight is counted",
    ),
    # The name begins like a lane's: who publishes a job may place it, and counts its wait.
    "figures": (
        "lane:key:figures:%s",
        "hash",
        "type -> jobs published, by their waits, by their times in a slot and ends; until a day after its workers",
    ),
    "trend": ("trend", "list", "what waited, was published and ended by type, as JSON, in each of the last 15 minutes"),
    "trend_turn": ("trend_turn", "string", "whether that was noted within the last minute"),
    "counters": ("counters", "hash", "events since the start, by name"),
    "spoiled": ("spoiled", "list", "what was found deleted or overwritten, until a dispatcher's log says it"),
    "idempotency": (
        "idempotency:%s",
        "string",
        "hash of an Idempotency-Key -> digest of the request over HTTP, task id: kept for a day",
    ),
    "set_aside": ("set_aside:%s", "any", "a key that held what it must not, out of the way: kept for a week"),
}


_REDIS_TYPES = ("hash", "zset", "list", "string")

#: Names that `quote` leaves as they are: most types, and every task id.
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")

#: First character of a type in the profile of workers that have withdrawn from it: such workers serve the type, but
#: take none of its jobs for a moment.
_WITHDRAWN = "!"


def withdrawn(type_: str) -> str:
    """Return the word for *type_* (not encoded) in the profile of workers that have withdrawn from the type."""
    return _WITHDRAWN + type_


def marked(type_: str) -> str:
    """Return the word of `withdrawn`, encoded, for *type_*, which is encoded already."""
    return encode(_WITHDRAWN) + type_


def unmarked(type_: str) -> str:
    """Return the type that *type_*, an encoded word of a profile, stands for, whether the workers withdrew or not."""
    return type_.removeprefix(encode(_WITHDRAWN))


def encode(name: str) -> str:
    """Return *name* (a type, a tenant, a node) as it is written in Redis: no blank, colon, brace or comma."""
    return name if _PLAIN.fullmatch(name) else quote(name, safe="")


def decode(name: str) -> str:
    """Return the name that `encode` was given."""
    return unquote(name)


@dataclass(frozen=True)
class Keys:
    """The keys of one cohort."""

    global_keyprefix: str = ""
    namespace: str = "affinity"
    cohort: str = "default"

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
        return cls(given.get("global_keyprefix") or "", given.get("namespace", cls.namespace))

    @property
    def base(self) -> str:
        """The beginning of every key of the cohort; no key by itself."""
        return f"{self.global_keyprefix}{{{self.namespace}:{self.cohort}}}:"

    def key(self, name: str, *parts: str) -> str:
        """Return the key *name* for *parts*, which are encoded already."""
        return self.base + KEYS[name][0] % parts


def lua_expression(name: str, parts: Sequence[str]) -> str:
    """Return Lua for the key *name* of *parts*, which are Lua expressions of encoded names."""
    template = KEYS[name][0]
    pieces = template.split("%s")
    if len(pieces) != len(parts) + 1:
        raise ValueError(f"key.{name} takes {len(pieces) - 1} parts, got: {parts}")
    spelled = [f'"{pieces[0]}"']
    for part, piece in zip(parts, pieces[1:], strict=True):
        spelled += [part, f'"{piece}"'] if piece else [part]
    return f"(base .. {' .. '.join(spelled)})"


def lua_kinds() -> str:
    """Return Lua that has the Redis type of each key, and whether there is one key for each name (``of_each``)."""
    kinds = []
    for template, kind, _ in KEYS.values():
        if kind in _REDIS_TYPES and template.count("%s") < 2:
            of_each = "true" if "%s" in template else "false"
            kinds.append(f'    {{ name = "{template.removesuffix("%s")}", kind = "{kind}", of_each = {of_each} }},\n')
    return f"local KINDS = {{\n{''.join(kinds)}}}\n"


def lua_source() -> str:
    """Return the first lines of every script. `lua_expression` spells the keys themselves."""
    return (
        f"local SCHEMA = {SCHEMA} -- number of the format of the keys\n"
        f'local WITHDRAWN = "{encode(_WITHDRAWN)}" -- before a type, in a profile: withdrawn from it for a moment\n'
        f'local SEVERAL = "{SEVERAL.decode()}" -- instead of the job of a task that has several\n'
        "local base = KEYS[1] -- what every key of the cohort begins with\n"
    )
