"""The whole state of a cohort: as read from a server, and as expected from the state of a `Reference`.

Both are dictionaries by key with the same spelling, so equal states are `==`.
"""

# Longer than 300 lines: one function per kind of key, on both sides.

import json
import re
import sys
from collections import Counter, defaultdict
from functools import cache, lru_cache
from math import ceil

from celery_affinity.clock import SECOND_US
from celery_affinity.lab.scripts_engine import CLOCK
from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.schema import values
from celery_affinity.schema.constants import (
    CONF_KEPT_S,
    ENDED_KEPT_S,
    IS_DUE,
    METRICS_KEPT_S,
    REQUEUES_KEPT_S,
    RUN_TIMES_KEPT_S,
    SHARES_KEPT_S,
    TENANT_PREFIX,
    WAS_PREEMPTED,
    WAS_REQUEUED,
)
from celery_affinity.schema.histograms import PUBLISHED, PUBLISHED_BEFORE
from celery_affinity.schema.job_record import FIELDS
from celery_affinity.schema.keys import KEYS as KEYS_OF_ALL
from celery_affinity.schema.keys import Keys
from celery_affinity.schema.rules_codec import StatedRate, decode_rules
from tests.conformance.reference import due_times, fair_share, keys, locality, matching, preemption

from ..support.kept_rules import kept_rules

#: Factor by which test libraries extend all expiry times (`wire`). The server's clock then never deletes a key, and the
#: remaining time to live shows the original one.
LONGER = 1000

KEYS = Keys()

# Every step reads the same few names.
key = cache(KEYS.key)
encode, decode = cache(values.encode_part), cache(values.decode_part)

CONF_OF = key("conf_by_app", "")
METRICS = key("metrics", "")
SHARES = KEYS.base + KEYS_OF_ALL["share"][0].partition("%")[0]

#: A share without credit, use, running jobs and start tags.
_NO_SHARE = "0 0 0"

#: The subset of the following fields that a batch has as well.
OF_A_BATCH = ("type", "task_id", "task_name")

#: Fields of a job that its hash contains unchanged. Encoding does not change the task names used here.
KEPT = [(name, field.kept) for name, field in FIELDS.items() if field.kept]

#: Lua that reads all keys with their times to live in one call. It returns a line of JSON per key.
READ_ALL = """
local read = {
    hash = function(key) return redis.call("HGETALL", key) end,
    zset = function(key) return redis.call("ZRANGE", key, 0, -1, "WITHSCORES") end,
    list = function(key) return redis.call("LRANGE", key, 0, -1) end,
    string = function(key) return redis.call("GET", key) end,
}
local found = {}
for _, key in ipairs(redis.call("KEYS", "*")) do
    local type = redis.call("TYPE", key).ok
    found[#found + 1] = cjson.encode({ key, type, redis.call("TTL", key), read[type](key) })
end
return table.concat(found, "\\n")
"""


def read(found):
    """Return the state in *found*, a reply to `READ_ALL`."""
    state = dict(map(_parsed, found.split(b"\n")))
    del state[CLOCK]
    era = state.get(key("settings"), {}).get("shares_era", "0")  # Redis forgets the shares of earlier generations
    state = {name: value for name, value in state.items() if not name.startswith(SHARES) or _is_share(name, value, era)}
    free, members = state.get(key("free_slots")), state.get(key("members"), {})
    if free:  # a profile without a free slot is equivalent to a missing one
        free = {profile: slots for profile, slots in free.items() if slots != "0" or profile not in members}
        state[key("free_slots")] = free
        if not free:
            del state[key("free_slots")]
    return state


def _is_share(name, value, era):
    """Return True for a share of this generation that says anything."""
    return name.endswith(f":{era}") and not value.startswith(f"{_NO_SHARE} (")


@lru_cache(10_000)  # most keys did not change since the last step
def _parsed(line):
    name, type_, ttl_s, value = json.loads(line)
    kept_s = ceil(ttl_s / LONGER) if ttl_s >= 0 else None
    if name.startswith(CONF_OF):
        assert kept_s == CONF_KEPT_S, f"{name} is to be forgotten in {kept_s} s"
        kept_s = None
    value = _PARSED[type_](value)
    if name in (key("heads"), key("minimum_heads"), key("hint_heads")):
        value = {lanes_of: packed if lanes_of == "!" else _lanes(packed) for lanes_of, packed in value.items()}
    if name == key("settings") and "for_claims" in value:
        value["for_claims"] = value["for_claims"].rpartition(" ")[0]  # the rest is the time of the last change
    if name == key("recurring_matches"):
        value = {place: set(names.split(" ")) for place, names in value.items()}
    if kept_s is not None and type_ == "hash":
        value[f"forgotten in {kept_s} s"] = True
    elif kept_s is not None and type_ == "list":
        value.append(f"forgotten in {kept_s} s")
    elif kept_s is not None:
        value += f" (forgotten in {kept_s} s)"
    return name, value


def _pairs(flat):
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _lanes(packed):
    """Return the lanes in a field of `heads`, unordered, because their order has no meaning."""
    words = packed.split(" ")
    return set(zip(words[::3], words[1::3], words[2::3], strict=True))


def _score(score):
    if score == "inf":
        return score
    return int(score) if score.lstrip("-").isdecimal() else float(score)


_PARSED = {
    "hash": _pairs,
    "zset": lambda flat: {member: _score(score) for member, score in _pairs(flat).items()},
    "list": list,
    "string": str,
}


# -- the state of a reference


@cache
def profile(types):
    return JoinArguments("", "", types, 1).profile


def lane(job):
    return values.lane_name(job.on_demand, job.priority)


def payload(delivery):
    if isinstance(delivery, str):
        return delivery  # a control message
    job_id, fence, type_, deliveries, enqueued_us, message, expires_us, its_lane, *times = delivery
    preemptions, requeues, due_us = times
    expires = "" if expires_us is None else f" {expires_us}"
    if its_lane is not None:
        on_demand, priority = its_lane
        expires = f"{expires or ' -'} {values.lane_name(on_demand, priority)}"
    if preemptions:
        expires += f" {WAS_PREEMPTED}{preemptions}"
    if requeues:
        expires += f" {WAS_REQUEUED}{requeues}"
    if due_us is not None:
        expires += f" {IS_DUE}{due_us}"
    return f"{job_id} {fence} {encode(type_)} {deliveries} {enqueued_us}{expires}\n{message}"


def expected(reference):
    """Return the expected state of a server after the reference's operations."""
    state = defaultdict(dict)

    def entry(names, field, value):
        state[key(*names)][field] = value

    standing = {job.id for job in keys.standing(reference, {job.type for job in reference.jobs.values()})}
    for job in reference.jobs.values():
        _expect_job(job, entry, job.id in standing)
        state[key("job", job.id)] = _job_hash(job) | _if_forgotten(reference, job)
        if job.message is not None:
            kept = f" (forgotten in {job.keep_s} s)" if job.state == "failed" and reference.is_fading(job) else ""
            state[key("message", job.id)] = job.message + kept
    for worker in reference.workers.values():
        _expect_worker(worker, entry)
        if worker.inbox:
            state[key("inbox", worker.id)] = [payload(delivery) for delivery in reversed(worker.inbox)]
    _expect_counts(reference, entry)
    _expect_keys(reference, state, entry, standing)
    _expect_type_rules(reference, entry)
    _expect_heads(reference, state, entry, standing)
    _expect_counted_claims(reference, state, entry)
    _expect_names(reference, entry)
    _expect_settings(reference, entry)
    _expect_tasks(reference, state)
    _expect_traces(reference, state, entry)
    _expect_recurring(reference, state, entry)
    state |= {name: [*reversed(messages)] for name, messages in reference.lists.items() if messages}
    if reference.requeues:
        state[key("requeues")] = [*reference.requeues, f"forgotten in {REQUEUES_KEPT_S} s"]
    if reference.ticked_us is not None:
        state[key("clock")] = {"ticked": str(reference.ticked_us), "grace": str(reference.grace_us)}
    for name, value in (
        ("schema", reference.schema),
        ("claim_number", reference.claim_number),
        ("fence", reference.fence),
    ):
        if value:
            state[key(name)] = str(value)
    return dict(state)


def _expect_names(reference, entry):
    for type_, worker in reference.ahead.items():
        entry(["prefetch_turn"], encode(type_), worker)
    for name, worker in reference.names.items():
        entry(["names"], encode(name), worker)


def _expect_traces(reference, state, entry):
    for job_id, at_us in reference.ended.items():
        entry(["ended"], job_id, at_us)
    for job_id, when_us in reference.unreported.items():
        entry(["unreported"], job_id, when_us)
    for job_id, at_us in reference.expiring.items():
        entry(["expires"], job_id, at_us)
    for stamp, bearing in reference.stamped.items():
        for job_id, at_us in bearing.items():
            entry(["stamped", stamp], job_id, at_us)
    for task in reference.revoked:
        state[key("revoked", encode(task))] = "1 (forgotten in 60 s)"
        if task not in reference.tasks:
            state[key("task", encode(task))] = " (forgotten in 60 s)"
    for stamp, at_us in reference.revoked_stamps.items():
        state[key("revoked_stamp", stamp)] = f"{at_us} (forgotten in 60 s)"


def _expect_tasks(reference, state):
    for task, jobs in reference.tasks.items():
        fading = [reference.jobs[job] for job in jobs if reference.is_fading(reference.jobs[job])]
        ended = f" (forgotten in {fading[0].keep_s} s)" if fading else ""
        state[key("task", encode(task))] = ("+" if len(jobs) > 1 else next(iter(jobs))) + ended
        if len(jobs) > 1:
            state[key("jobs_of_task", encode(task))] = dict(jobs)


def _expect_recurring(reference, state, entry):
    alike = defaultdict(set)
    for name, each in reference.recurring.items():
        _, type_, merge_key, stale_us, since, task, signature = each.call.arguments
        alike[f"{type_} {merge_key} {task}"].add(encode(name))
        state[key("signature", encode(name))] = signature
        at_us = "inf" if each.handed_out_us is None else each.handed_out_us
        entry(["recurring"], encode(name), at_us)
        fields = {
            "type": type_,
            "merge": merge_key,
            "stale": str(stale_us),
            "since": since,
            "task": task,
            "digest": each.call.digest,
            "app": encode(each.app),
            "due": str(each.due_us),
        }
        if each.handed_out_us is None:
            fields["suspended"] = "1"
        if each.matched_us is not None:
            fields |= {"matched": str(each.matched_us), "by": encode(each.matched_by)}
        if each.made:
            fields["made"] = each.made
        if each.left:
            fields |= {"left": " ".join(map(encode, each.left)), "left_at": str(each.left_us)}
        for field, value in fields.items():
            entry(["recurring_call", encode(name)], field, value)
    for place, names in alike.items():
        entry(["recurring_matches"], place, names)
    for app, declared in reference.recurring_of.items():
        for name, digest in declared.items():
            entry(["recurring_of", encode(app)], encode(name), digest)


def _expect_settings(reference, entry):
    settings = reference.settings
    for name, value in settings.values.items():
        entry(["settings"], name, value)
    if settings.revision:
        entry(["settings"], "revision", str(settings.revision))
    is_kept = {
        "for_claims": settings.for_claims,
        "shares_era": settings.shares_era,
        "shares": settings.half_life_us is not None and f"{settings.shares_era} {settings.half_life_us}",
        "has_pauses": len(reference.pauses) > 0 and 1,
        "limits_revision": settings.limits_revision,
    }
    for name, value in is_kept.items():
        if value:
            entry(["settings"], name, str(value))
    for name, value in settings.conf.items():
        entry(["conf_last"], name, value)
    for app, conf in settings.conf_of.items():
        for name, value in conf.items():
            entry(["conf_by_app", encode(app)], name, value)


def _expect_job(job, entry, stands):
    if job.state == "pending" and stands:
        entry(["lane", encode(job.type), lane(job)], job.id, job.order_us)
    elif job.state == "pending":
        entry(["kept_back", encode(job.type), lane(job)], job.id, job.order_us)
        entry(["kept_lanes"], f"{encode(job.type)} {lane(job)}", "1")
    elif job.state == "scheduled":
        entry(["scheduled"], job.id, job.due_us)
    if job.own_due_us is not None and job.state in ("pending", "scheduled"):
        entry(["due_times"], job.id, job.own_due_us)
    elif job.state == "dead" and job.is_listed:
        entry(["dead"], job.id, job.ended_us)
    for name, callers in (("callers", job.callers), ("reported_calls", job.told_callers)):
        for caller, number in callers.items():
            entry([name, job.id], caller, number)


def _times(job):
    times_us = {name: getattr(job, f"{name}_us") for name in ("published", "claimed", "started", "expires")}
    found = {name: str(at_us) for name, at_us in times_us.items() if at_us is not None}
    if job.expires_us is not None or job.is_moved or job.rank_us is not None or job.due or job.head_us:
        found.setdefault("claimed", "")  # so that a claim sees that there are more rules
    return found


def _written(value):
    """Return the text of a field in a job's hash: "1" for True, "" for False and None."""
    return "" if value is None or value is False else encode(str(int(value) if value is True else value))


def _job_hash(job):
    found = {
        **{field: _written(getattr(job, name)) for name, field in KEPT if job.calls is None or name in OF_A_BATCH},
        "lane": lane(job),
        "enqueued": str(job.enqueued_us),
        **({"deliveries": str(job.deliveries)} if job.deliveries else {}),
        **({"requeues": str(job.requeues)} if job.requeues else {}),
        **({"pauses": str(job.pauses)} if job.pauses else {}),
        **({} if job.rank_us is None else {"rank": str(job.rank_us)}),
        **({"due": f"{'-' if job.own_due_us is None else job.own_due_us} {job.due}"} if job.due else {}),
        **({"head": str(job.head_us)} if job.head_us else {}),
        "state": job.state,
        **_times(job),
    }
    if job.charged is not None:
        found["charged"] = "{}:{}".format(*job.charged)
    if job.worker is not None:
        found |= {"worker": job.worker, "fence": str(job.fence)}
    if_any = {
        "by": job.by,
        "more": job.has_more and "1",
        "acked": job.acked and "1",
        "moved": job.is_moved and "1",
        "limited": job.is_limited and "1",
        "stamps": " ".join(job.stamps),
        "rules": job.has_rules_of_its_own and kept_rules(job.rules),
        "left": " ".join(map(encode, job.left)),
        "tries": job.tries and str(job.tries),
        "into": job.into,
        "ran_in": job.ran_in,
        "primary": job.primary,
        "calls": job.calls and str(job.calls),
        "size": job.size and str(job.size),
        "again": job.again_us and str(job.again_us),
        "recurring": encode(job.recurring),
        "stop": job.stop and f"{job.stop.fence} {job.stop.key}",
        "patient": None if job.patient_us is None else str(job.patient_us),
    }
    if job.bytes is not None:
        found["bytes"] = str(job.bytes)
    found |= {name: value for name, value in if_any.items() if value}
    if job.preemptions:
        found |= {
            "preemptions": str(job.preemptions),
            "preempted": str(job.preempted_us),
            "preempted_for": encode(job.preempted_for),
            "preempted_on": encode(job.preempted_on),
            "preempted_ran": str(job.preempted_ran_us),
        }
    if job.state in ("done", "failed", "dead", "revoked", "expired"):
        found["ended"] = str(job.ended_us)
    if job.state == "dead":
        found["reason"] = job.reason
    if job.why:
        found["why"] = job.why
    return found


def _if_forgotten(reference, job):
    return {f"forgotten in {job.keep_s} s": True} if reference.is_fading(job) else {}


def _expect_worker(worker, entry):
    fields = {
        "name": encode(worker.name),
        "profile": profile(worker.types),
        "types": " ".join(sorted(map(encode, worker.types))),
        "slots": str(worker.slots),
        "other": str(worker.other),
        "accepting": str(int(worker.accepting)),
        "free": str(worker.free),
        "app": encode(worker.app),
    }
    if_any = {
        "stalled": worker.stalled and "1",
        "stops": worker.stops,
        "preempted": " ".join(map(str, worker.preempted_us)),
        "hints": " ".join(sorted(worker.hints)),
        "priority": worker.priority and str(worker.priority),
        "counted": worker.counted and str(worker.counted),
    }
    fields |= {name: value for name, value in if_any.items() if value}
    for type_, its_pace in worker.took.items():
        fields[f"took:{encode(type_)}"] = its_pace
    keeps = (str(worker.keep_s) if worker.keep_s > ENDED_KEPT_S else "") + (" failed" if worker.keeps_failed else "")
    if keeps:
        fields["keeps"] = keeps
    names = ("profile", "slots", "other", "accepting", "stalled", "types", "keeps", "hints")
    told = (fields.get(each, "") for each in names)
    fields["terms"] = "\n".join(told)
    for name, value in fields.items():
        entry(["worker", worker.id], name, value)
    for hint, at_us in worker.hints.items():
        entry(["hints", worker.id], hint, at_us)
        entry(["holders", hint], worker.id, worker.holds_since[hint])
    for job, fence in worker.claims.items():
        entry(["claims", worker.id], job, str(fence))
    entry(["heartbeats"], worker.id, worker.seen_us)
    entry(["joined"], worker.id, worker.joined_us)
    if worker.free:
        entry(["free", profile(worker.types)], worker.id, worker.free_since_us)


def _expect_counts(reference, entry):
    members, slots, free, capacity = defaultdict(int), defaultdict(int), defaultdict(int), defaultdict(int)
    for worker in reference.workers.values():
        members[worker.types] += 1
        slots[worker.types] += worker.slots
        free[worker.types] += worker.free
        for type_ in worker.types:
            capacity[type_] += worker.slots
    for types, number in members.items():
        entry(["members"], profile(types), str(number))
        entry(["slots"], profile(types), str(slots[types]))
        entry(["profiles"], profile(types), " ".join(sorted(map(encode, types))))
        if free[types]:
            entry(["free_slots"], profile(types), str(free[types]))
        for type_ in types:
            entry(["serving", encode(type_)], profile(types), len(types))
    for type_, slots in capacity.items():
        if slots:
            entry(["capacity"], encode(type_), str(slots))
    for name, value in reference.counters.items():
        entry(["counters"], name, str(value))
    _expect_batched(reference, entry)
    _expect_waiting_calls(reference, entry)
    _expect_metrics(reference, entry)
    _expect_run_times(reference, entry)
    for type_, average_us in reference.durations_us.items():
        entry(["durations"], encode(type_), str(average_us))


def _expect_batched(reference, entry):
    for type_, calls in reference.batched.items():
        entry(["batched"], encode(type_), str(calls))


def _expect_waiting_calls(reference, entry):
    calls = Counter()
    for job in reference.jobs.values():
        if job.state == "pending":
            calls[job.type] += max(0, len(job.callers) - 1)
    for type_, number in (+calls).items():
        entry(["waiting_calls"], encode(type_), str(number))


def _expect_run_times(reference, entry):
    for task, learned in reference.run_times.items():
        entry(["run_times"], task, learned.text)
    if reference.run_times:
        entry(["run_times"], f"forgotten in {RUN_TIMES_KEPT_S} s", True)


def _expect_metrics(reference, entry):
    for type_, counted in reference.metrics.items():
        is_served = reference.capacity(type_)
        for field, number in counted.items():
            is_before = field == PUBLISHED and not is_served
            entry(["metrics", encode(type_)], PUBLISHED_BEFORE if is_before else field, str(number))
        if counted and not is_served:
            entry(["metrics", encode(type_)], f"forgotten in {METRICS_KEPT_S} s", True)


def _expect_keys(reference, state, entry, standing):
    ruled = [job for job in reference.jobs.values() if keys.keys_of(job)]
    waits_for, first = keys.keys_waited_for(reference), {}
    for job in sorted(ruled, key=lambda job: (job.order_us, job.id)):
        its_lane = f"{encode(job.type)} {lane(job)}"
        for rules in keys.keys_of(job):
            if job.state == "claimed" and not isinstance(rules.stated, StatedRate):
                entry(["held", rules.key], job.id, job.fence)
        for rules in keys.keys_of(job)[1:] if job.state == "pending" else ():
            if rules.stated is None:
                continue
            entry(["second_key_jobs", rules.key], job.id, job.order_us)
            entry(["key_state", rules.key], "coming", "1")
        its_keys = waits_for.get(job.id, [])
        for its_key in its_keys:
            entry(["key_queue", its_key, encode(job.type), lane(job)], job.id, job.order_us)
            most = reference.unbounded.get(keys.sublane_of(its_key, job))
            if most is not None:
                entry(["key_state", its_key], its_lane, "*" if most == sys.maxsize else f"*{most}")
                entry(["waiting_keys"], its_key, reference.waiting_keys[its_key])
                continue
            words = first.setdefault((its_key, its_lane), f"{job.order_us} {job.id}")
            stands = job.id in standing or its_key != its_keys[-1]
            is_first = stands and its_key in reference.first_keys
            words = f"{words} {job.id}" if stands else words
            first[its_key, its_lane] = words = f"{words} !" if is_first else words
            entry(["key_state", its_key], its_lane, words)
            entry(["waiting_keys"], its_key, reference.waiting_keys[its_key])
    _expect_stops(reference, entry)
    _expect_facts_of_keys(reference, entry)
    _expect_shares(reference, state, entry, standing)
    for (type_, merge_key, of_key, name), job_id in reference.merging.items():
        entry(["merging"], f"{encode(type_)} {merge_key} {of_key} {name}", job_id)


def _expect_stops(reference, entry):
    giving = Counter()
    for job in reference.jobs.values():
        if job.state == "claimed" and decode_rules(job.rules).is_preemptible:
            entry(["preemptible", preemption.tenant_of(job)], job.id, job.fence)
            giving[preemption.tenant_of(job)] += 1
    for its_key, number in giving.items():
        entry(["preemptible_tenants"], its_key, number)
    for stop in reference.stop_orders.values():
        words = [stop.fence, stop.worker, stop.key, encode(stop.type), stop.ordered_us, stop.grace_ms]
        entry(["stop_orders"], stop.job_id, " ".join(map(str, words)))


def _expect_shares(reference, state, entry, standing):
    half_life_us = reference.settings.half_life_us
    if half_life_us is None:
        return
    for (class_, type_), clock in reference.clocks.items():
        entry(["clocks"], f"{class_} {encode(type_)}", clock)
    for job in reference.jobs.values():
        if job.state == "pending" and job.id in standing and fair_share.tenant_of(job) == TENANT_PREFIX:
            entry(["untenanted", encode(job.type), lane(job)], job.id, job.order_us)
    kept_s = max(SHARES_KEPT_S, ceil(10 * half_life_us / SECOND_US))
    for (class_, its_key), share in reference.shares.items():
        lines = []
        for type_, start in share.starts.items():
            candidate = reference.jobs.get(reference.candidates.get((class_, its_key, type_)))
            line = f"{encode(type_)} {start:.17g}"
            if candidate:
                entry(["turns", encode(type_), class_], f"{candidate.order_us} {candidate.id}", start)
                line += f" {candidate.order_us} {candidate.id}"
            lines.append(line)
        first = f"{share.credit_us} {share.use:.17g} {share.running}"
        if lines or first != _NO_SHARE:
            name = key("share", class_, its_key, str(reference.shares_era))
            state[name] = "\n".join([first, *sorted(lines)]) + f" (forgotten in {kept_s} s)"


def _expect_facts_of_keys(reference, entry):
    for its_key, stated in reference.stated.items():
        for task, each in stated.items():
            text = str(each) if isinstance(each, int) else f"{each.tokens}/{each.period_us}"
            entry(["key_state", its_key], f"={encode(task)}", text)
    for its_key, retry in reference.kept_for.items():
        entry(["key_state", its_key], "retry", retry)
    for its_key, (type_, began_us, ends_us) in reference.turns.items():
        entry(["key_state", its_key], "turn", f"{encode(type_)} {began_us} {ends_us}")
    for its_key, had in reference.had_key.items():
        for type_, at_us in had.items():
            entry(["key_state", its_key], f"@{encode(type_)}", str(at_us))
    for name in ("rates", "due_keys"):
        for its_key, at_us in getattr(reference, name).items():
            entry([name], its_key, at_us)


def _expect_counted_claims(reference, state, entry):
    for type_, counted in reference.limited.items():
        for job_id, lane_number in counted.items():
            entry(["type_running", encode(type_)], job_id, lane_number)
    if reference.recounts:
        state[key("recount")] = "0"


def _expect_type_rules(reference, entry):
    rules = defaultdict(list)
    limits = reference.settings.values.get("limits", "")
    for name, limit in sorted(re.findall(r"(?<!\S)type%3A(\S+)=([0-9]+)", limits)):
        type_ = decode(name)
        rules[name].append(f"limit={limit}")
        if type_ in reference.counting:
            rules[name].append("counting")
        elif len(reference.limited.get(type_, ())) >= int(limit):
            rules[name].append("full")
    for what, words in reference.pauses.items():
        entry(["pauses"], what, words)
        if not what.startswith("key:"):
            rules[what.removeprefix("type:")].append("paused")
    for name, words in rules.items():
        entry(["type_rules"], name, " ".join(words))
        entry(["heads"], "!", "rules")
    preferred = matching.words(reference)
    if preferred:
        entry(["type_rules"], "!placing", preferred)
        entry(["heads"], "!", "rules" if rules else preferred)
    reserve = reference.settings.values.get("reserve", "")
    if reserve.strip():
        entry(["type_rules"], "!", reserve)
        entry(["heads"], "!", "reserves")
    for what, at_us in reference.pause_ends.items():
        entry(["pause_ends"], what, at_us)


def _expect_near(entry, jobs):
    heads = defaultdict(dict)
    for job in jobs:
        hint = locality.hint_of(job)
        if hint:
            entry(["hint_lane", hint, encode(job.type), lane(job)], job.id, job.order_us)
            its, mine = heads[f"{hint} {encode(job.type)}"], (job.order_us, job.id)
            its[lane(job)] = min(its.get(lane(job), mine), mine)
    for field, its in heads.items():
        entry(["hint_heads"], field, {(of, str(enqueued_us), job) for of, (enqueued_us, job) in its.items()})


def _expect_heads(reference, state, entry, standing):
    jobs = [job for job in reference.jobs.values() if job.state == "pending" and job.id in standing]
    first = [job for job in jobs if keys.goes_first(reference, job)]
    for name, some in (("heads", jobs), ("minimum_heads", first)):
        heads = defaultdict(dict)
        for job in some:
            head = heads[job.type].get(lane(job))
            heads[job.type][lane(job)] = min(head or (job.order_us, job.id), (job.order_us, job.id))
        for type_, its in heads.items():
            entry([name], encode(type_), {(of, str(enqueued_us), job) for of, (enqueued_us, job) in its.items()})
    _expect_near(entry, jobs)
    for job in first:
        entry(["minimum_lane", encode(job.type), lane(job)], job.id, job.order_us)
        entry(["type_rules"], "!first", "1")
        if state[key("heads")].get("!") != "reserves":
            entry(["heads"], "!", "rules")
    settings = due_times.settings_words(reference)
    flags = {
        "due": (settings, f"+due={settings}"),
        "shares": ("1" if reference.settings.half_life_us is not None else "", "+shares"),
    }
    for name, (value, word) in flags.items():
        if value:
            entry(["type_rules"], f"!{name}", value)
            entry(["heads"], "!", f"{state[key('heads')].get('!', '')}{word}")
