"""The contents of Redis for a quiet fleet: the states of jobs, and leaked keys."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

import redis

from celery_affinity.reports.recurring import recurring_rows
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import ENDED_KEPT_S
from celery_affinity.schema.job_record import is_batch, key_suffix
from celery_affinity.schema.keys import KEYS, Keys
from celery_affinity.schema.rules_codec import HINTED, MERGES

from . import hints

_CHUNK = 500

#: The keys of a fleet without cohorts.
HOME = Keys()
_NO_KEY = -2

#: States of jobs that are deleted after a minute.
_OVER = (b"done", b"failed", b"revoked", b"expired")

#: Keys of Celery and kombu: results, bindings and replies of remote control.
_KOMBU = re.compile(
    r"celery-task(set)?-meta-.+|_kombu\.binding(\.|_permanent\.|_deadlines).*|.+\.reply\.celery\.pidbox|unacked.*|/\d+\..*"
)

#: Keys that a quiet fleet does not have, since no job waits, and Redis deletes empty keys.
BUSY = {
    *("lane", "heads", "scheduled", "claims", "inbox", "held", "key_queue", "key_state", "second_key_jobs", "turns"),
    *("untenanted", "unlisted"),
    *("minimum_lane", "minimum_heads", "rates", "due_keys", "kept_back", "kept_lanes", "waiting_keys"),
    *("hint_heads", "hint_lane", "preemptible", "preemptible_tenants", "stop_orders"),
    *("type_rules", "type_running", "pauses", "pause_ends", "pause_signs", "recount", "merging"),
    *("expires", "due_times", "stamped", "unreported", "waiting_calls", "set_aside"),
}

#: Keys that a quiet fleet may have; keys of jobs, tasks, batches and workers are checked individually.
MAY_STAY = {
    *("job", "message", "task", "jobs_of_task", "callers", "reported_calls", "dead", "ended", "worker"),
    *("history", "history_base", "history_names", "history_written"),
    *("revoked", "revoked_stamp", "idempotency", "remote_worker", "left_to_celery", "remote_end", "damage_log"),
    *("batched", "nudges", "prefetch_turn", "requeues"),
    *("recurring", "recurring_call", "recurring_matches", "signature", "recurring_of"),
    *("profiles", "serving", "capacity", "slots", "free_slots", "free", "members", "names", "heartbeats", "joined"),
    *("hints", "holders"),
    *("fence", "clock", "schema", "settings", "conf_last", "conf_by_app", "claim_number"),
    *("durations", "run_times", "metrics", "trend", "trend_written", "counters", "share", "clocks"),
    *("recording", "recorded"),
}


@dataclass
class Remains:
    """The contents of Redis."""

    #: Job -> state.
    states: dict[str, str] = field(default_factory=dict)
    #: Expired waiting job -> time of the monotonic clock.
    expired: dict[str, float] = field(default_factory=dict)
    #: Task id -> state of the result.
    results: dict[str, str] = field(default_factory=dict)
    #: Merged call -> batch.
    into: dict[str, str] = field(default_factory=dict)
    #: Task id of a merged call -> result.
    values: dict[str, Any] = field(default_factory=dict)
    #: Dead letter -> reason.
    reasons: dict[str, str] = field(default_factory=dict)
    #: Preempted job -> number of deliveries.
    deliveries: dict[str, int] = field(default_factory=dict)
    #: Preempted job -> number of preemptions.
    preemptions: dict[str, int] = field(default_factory=dict)
    #: Keys that should not exist.
    leaks: list[str] = field(default_factory=list)
    #: Number of recurring calls published by the server.
    fired: int | None = None
    #: Number of successful jobs with a hint.
    hinted: int = 0
    #: Time of the monotonic clock at which Redis was read.
    at: float = 0.0

    def is_done(self, job: str, last_start: float) -> bool:
        """Return True if a job is done, or if Redis may have deleted the done job since the start of its last run."""
        return self.states.get(job, "done" if self.at - last_start > ENDED_KEPT_S else "") == "done"


def suspend_recurring(client: redis.Redis) -> list[str]:
    """Suspend the active recurring calls, so that the quiet fleet has no such jobs. Return their names."""
    scheduler = Scheduler(client, Keys())
    names = [each.name for each in recurring_rows(scheduler.reader) if not each.is_suspended]
    return [name for name in names if scheduler.pause_recurring(name, True)]


def resume_recurring(client: redis.Redis, names: Iterable[str]) -> None:
    """Resume suspended recurring calls."""
    for name in names:
        Scheduler(client, Keys()).pause_recurring(name, False)


def why_not_quiet(client: redis.Redis, workers: int, keys: Keys = HOME) -> str:
    """Describe the remaining activity; return "" if *workers* workers are live and idle, and no job waits."""
    try:
        status = Report(Reader(client, keys)).status()
        claims = sum(1 for _ in client.scan_iter(keys.key("claims", "*"), count=1000))
        unreported = client.zcard(keys.key("unreported"))
        rates = client.zcard(keys.key("rates"))
    except redis.RedisError as exc:
        return f"the server does not answer: {exc}"
    pending = sum(each.pending for each in status.types)
    busy = [each.name for each in status.workers if each.free != each.slots]
    facts = []
    if len(status.workers) != workers:
        facts.append(f"{len(status.workers)} workers instead of {workers}: {[each.name for each in status.workers]}")
    if pending or status.scheduled or busy or claims or unreported:
        facts.append(f"{pending} pending, {status.scheduled} scheduled, {claims} with claims, busy: {busy}")
        facts.append(f"{unreported} ends are unreported")
    if rates:
        facts.append(f"{rates} rates still have starts to give back")
    return "; ".join(facts)


def look(client: redis.Redis, results: redis.Redis, slots: int | None, keys: Keys = HOME) -> Remains:
    """Return the contents of Redis for a fleet with *slots* slots, or with any number of slots if None.

    Delete done jobs, which would expire within a minute, and results.
    """
    remains = Remains(at=monotonic(), fired=int(client.hget(keys.key("counters"), "recurring_fired") or 0))
    for each in (client, results):
        _look_at_results(each, remains)
    _look_at_jobs(client, remains, keys)
    _look_at_slots(client, remains, slots, keys)
    _look_at_keys(client, remains, keys)
    remains.leaks += hints.leaks(client, keys)
    counters = [keys.key("counters"), "locality_hits", "locality_misses"]
    remains.hinted = sum(int(each or 0) for each in client.hmget(*counters))
    return remains


def _look_at_results(client: redis.Redis, remains: Remains) -> None:
    for names in _chunks(client.scan_iter("celery-task-meta-*", count=1000)):
        for raw in client.mget(names):
            if raw is not None:  # SCAN can return a key twice
                meta = json.loads(raw)
                remains.results[meta["task_id"]] = meta["status"]
                if isinstance(meta["result"], dict):
                    remains.values[meta["task_id"]] = meta["result"]
        client.unlink(*names)


def _look_at_jobs(client: redis.Redis, remains: Remains, keys: Keys) -> None:
    for names in _chunks(client.scan_iter(keys.key("job", "*"), count=1000)):
        with client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hmget(name, "state", "reason", "ended", "into", "deliveries", "preemptions").ttl(name)
            replies = pipe.execute()
        jobs = zip(names, replies[::2], replies[1::2], strict=True)
        # SCAN can return a key twice: the second time the key has been deleted.
        over = [name for name, row, ttl in jobs if ttl != _NO_KEY and _note_job(remains, name, row, ttl)]
        if over:
            client.unlink(*over)
    _look_at_dead_letters(client, remains, keys)


def _note_job(remains: Remains, name: bytes, row: Sequence[bytes | None], ttl: int) -> bool:
    """Note the facts of a job from its hash *row*. Return True if Redis will delete the job soon."""
    state, reason, ended, into, deliveries, preemptions = row
    job = _id(name.decode().rpartition(":")[2])
    if state is None:
        remains.leaks.append(f"half of a job: {name!r}")
        return False
    remains.states[job] = state.decode()
    if preemptions:
        remains.deliveries[job], remains.preemptions[job] = int(deliveries or 0), int(preemptions)
    if state == b"dead":
        remains.reasons[job] = (reason or b"none").decode()
    if state == b"merged":
        remains.into[job] = (into or b"nothing").decode()
    if state == b"expired":
        remains.expired[job] = int(ended or 0) / 1e6 - time() + monotonic()
    if (state in _OVER) != (0 <= ttl <= 60):
        remains.leaks.append(f"{name!r} is {state.decode()} and has a TTL of {ttl}")
    return state in _OVER


def _look_at_dead_letters(client: redis.Redis, remains: Remains, keys: Keys) -> None:
    listed = {_id(job.decode()) for job in client.zrange(keys.key("dead"), 0, -1)}
    remains.leaks += [f"an unlisted dead letter: {job}" for job in remains.reasons.keys() - listed]
    of_none = [job for job, batch in remains.into.items() if remains.states.get(_id(batch)) != "dead"]
    remains.leaks += [f"a merged call whose batch {remains.into[job]} is not dead: {job}" for job in of_none]
    remains.leaks += [f"a listed dead letter that is not dead: {job}" for job in listed - remains.reasons.keys()]


def _look_at_slots(client: redis.Redis, remains: Remains, slots: int | None, keys: Keys) -> None:
    """Compare the counters with the hashes and claims of workers."""
    key = keys.key
    workers = [worker.decode() for worker in client.zrange(key("heartbeats"), 0, -1)]
    rows = {worker: _text(client.hgetall(key("worker", worker))) for worker in workers}
    by_profile: dict[str, int] = {}
    by_type: dict[str, int] = {}
    members: dict[str, int] = {}
    types_of = _text(client.hgetall(key("profiles")))
    for worker, row in rows.items():
        claims = client.hlen(key("claims", worker))
        if int(row["free"]) != int(row["slots"]) - claims - int(row["other"]) or claims or int(row["other"]):
            remains.leaks.append(f"a slot of {row['name']} is leaked: {row}, {claims} claims")
        by_profile[row["profile"]] = by_profile.get(row["profile"], 0) + int(row["free"])
        members[row["profile"]] = members.get(row["profile"], 0) + 1
        for type_ in types_of.get(row["profile"], "").split():
            by_type[type_] = by_type.get(type_, 0) + int(row["slots"])
    for name, counted in (("free_slots", by_profile), ("members", members), ("capacity", by_type)):
        stored = {field: int(value) for field, value in _text(client.hgetall(key(name))).items()}
        if stored != counted:
            remains.leaks.append(f"{name} is {stored}, but must be {counted}")
    if slots is not None and sum(by_profile.values()) != slots:
        remains.leaks.append(f"{sum(by_profile.values())} free slots instead of {slots}")


def _look_at_keys(client: redis.Redis, remains: Remains, keys: Keys = HOME) -> None:
    live = {worker.decode() for worker in client.zrange(keys.key("heartbeats"), 0, -1)}
    patterns = {
        name: re.compile(re.escape(keys.base) + re.escape(template).replace("%s", "([^:]*)"))
        for name, (template, _, _) in KEYS.items()
    }
    for raw in client.scan_iter("*", count=1000):
        key = raw.decode()
        matches = [(name, hit) for name, each in patterns.items() if (hit := each.fullmatch(key))]
        match = min(matches, key=lambda each: len(each[1].groups()), default=None)  # `lane:%s:%s` also matches others
        if match is None:
            if not _KOMBU.fullmatch(key):
                remains.leaks.append(f"an unknown key: {key}")
            continue
        name, job = match[0], _id(match[1][1]) if match[1].groups() else ""
        if name not in MAY_STAY and not _has_only_flags(client, name, key):
            remains.leaks.append(f"a key that a quiet fleet has not: {key}")
        elif name == "task" and _is_task_of_nothing(client, key, remains):
            remains.leaks.append(f"a key of a task whose jobs are deleted: {key}")
        elif name == "worker" and job not in live:
            remains.leaks.append(f"a key of a worker that left: {key}")
        elif name in ("job", "message") and job not in remains.reasons and job not in remains.states:
            remains.leaks.append(f"a key of a deleted job: {key}")
        elif name in ("callers", "reported_calls") and remains.states.get(job) != "dead":
            remains.leaks.append(f"calls of a batch that is {remains.states.get(job)}: {key}")
        elif name == "message" and remains.states.get(job) not in ("dead", "merged"):
            remains.leaks.append(f"a message of a job that is {remains.states.get(job)}: {key}")


def _has_only_flags(client: redis.Redis, name: str, key: str) -> bool:
    """Return True if a key of rules says only that tenants have shares or that run times give head starts."""
    due = b"256000000/2"  # hints.py changes `stretch` only
    fields = {
        "heads": [{b"!": b"+shares"}, {b"!": b"+due=" + due}, {b"!": b"+due=" + due + b"+shares"}],
        "type_rules": [{b"!shares": b"1"}, {b"!due": due}, {b"!shares": b"1", b"!due": due}],
    }
    return name in fields and client.type(key) == b"hash" and client.hgetall(key) in fields[name]


def _is_task_of_nothing(client: redis.Redis, name: str, remains: Remains) -> bool:
    """Return True if the index by task id keeps a task without a dead letter forever."""
    jobs = (client.get(name) or b"").decode().split()
    return client.ttl(name) == -1 and not any(remains.states.get(_id(job)) in ("dead", "merged") for job in jobs)


def _id(job: str) -> str:
    """Return the id of a job in the form of the ledger."""
    return job if is_batch(job) else job.removesuffix(key_suffix(job)).removesuffix(MERGES).removesuffix(HINTED)


def _text(row: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in row.items()}


def _chunks(names: Iterable[bytes]) -> Iterable[list[bytes]]:
    chunk: list[bytes] = []
    for name in names:
        chunk.append(name)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
