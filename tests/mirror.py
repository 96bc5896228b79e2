"""The whole state of a cohort, as a server holds it and as it would hold what a `Reference` says.

Both are a dictionary by key, in the same spelling, so that two states are equal if they are `==`.
"""

import json
from collections import defaultdict
from functools import cache

from celery_affinity import keys
from celery_affinity.keys import Keys
from celery_affinity.scheduler import Joining

from .clocked import CLOCK

KEYS = Keys()

# Each is asked for the same few names after every step.
key = cache(KEYS.key)
encode = cache(keys.encode)

#: Reads every key in one call, times to live included.
_READ_ALL = """
local read = {
    hash = function(key) return redis.call("HGETALL", key) end,
    zset = function(key) return redis.call("ZRANGE", key, 0, -1, "WITHSCORES") end,
    list = function(key) return redis.call("LRANGE", key, 0, -1) end,
    string = function(key) return redis.call("GET", key) end,
}
local found = {}
for _, key in ipairs(redis.call("KEYS", "*")) do
    local type = redis.call("TYPE", key).ok
    found[#found + 1] = { key, type, redis.call("TTL", key), read[type](key) }
end
return cjson.encode(found)
"""


class Server:
    """Reads what a server holds."""

    def __init__(self, client):
        self._read_all = client.register_script(_READ_ALL)

    def state(self):
        state = {}
        for name, type_, ttl_s, value in json.loads(self._read_all()):
            assert (ttl_s == -1) or 30 < ttl_s <= 60, f"{name} is to be forgotten in {ttl_s} s"
            state[name] = _PARSED[type_](value)
            if ttl_s != -1:
                state[name]["forgotten in 60 s"] = True
        del state[CLOCK]
        return _normal(state)


def _pairs(flat):
    return dict(zip(flat[::2], flat[1::2], strict=True))


_PARSED = {
    "hash": _pairs,
    "zset": lambda flat: {member: int(score) for member, score in _pairs(flat).items()},
    "list": list,
    "string": str,
}


def _normal(state):
    """Take out what says nothing: the order of the lanes in `heads`, and profiles with no free slot."""
    for type_, packed in state.get(key("heads"), {}).items():
        words = packed.split(" ")
        state[key("heads")][type_] = set(zip(words[::3], words[1::3], words[2::3], strict=True))
    members, free = state.get(key("members"), {}), state.pop(key("free_slots"), {})
    free = {profile: slots for profile, slots in free.items() if slots != "0" or profile not in members}
    return state | ({key("free_slots"): free} if free else {})


# -- what a reference says


@cache
def profile(types):
    return Joining("", "", types, 1).profile


def lane(job):
    return f"{'demand' if job.on_demand else 'queued'}.{job.priority}"


def payload(delivery):
    job_id, fence, type_, deliveries, enqueued_us, message = delivery
    return f"{job_id} {fence} {encode(type_)} {deliveries} {enqueued_us}\n{message}"


def expected(reference):
    """Return the state of a server that did what the reference did."""
    state = defaultdict(dict)

    def entry(names, field, value):
        state[key(*names)][field] = value

    for job in reference.jobs.values():
        _expect_job(job, entry)
        state[key("job", job.id)] = _job_hash(job)
        if job.message is not None:
            state[key("message", job.id)] = job.message
    for worker in reference.workers.values():
        _expect_worker(worker, entry)
        if worker.inbox:
            state[key("inbox", worker.id)] = [payload(delivery) for delivery in reversed(worker.inbox)]
    _expect_counts(reference, entry)
    _expect_heads(reference, entry)
    for name, worker in reference.names.items():
        entry(["names"], encode(name), worker)
    for name, value in reference.settings.items():
        entry(["settings"], name, value)
    if reference.ticked_us is not None:
        state[key("clock")] = {"ticked": str(reference.ticked_us), "grace": str(reference.grace_us)}
    if reference.fence:
        state[key("fence")] = str(reference.fence)
    return dict(state)


def _expect_job(job, entry):
    if job.state == "pending":
        entry(["lane", encode(job.type), lane(job)], job.id, job.enqueued_us)
    elif job.state == "scheduled":
        entry(["scheduled"], job.id, job.enqueued_us)
    elif job.state == "dead":
        entry(["dead"], job.id, job.ended_us)


def _job_hash(job):
    found = {
        "type": encode(job.type),
        "lane": lane(job),
        "enqueued": str(job.enqueued_us),
        "deliveries": str(job.deliveries),
        "task": job.task_id,
        "name": job.task_name,
        "state": job.state,
    }
    if job.acked:
        found["acked"] = "1"
    if job.state == "claimed":
        found |= {"worker": job.worker, "fence": str(job.fence), "claimed": str(job.claimed_us)}
    if job.state in ("done", "dead"):
        found["ended"] = str(job.ended_us)
    if job.state == "dead":
        found["reason"] = job.reason
    if job.state == "done":
        found["forgotten in 60 s"] = True
    return found


def _expect_worker(worker, entry):
    fields = {
        "name": encode(worker.name),
        "profile": profile(worker.types),
        "slots": str(worker.slots),
        "other": str(worker.other),
        "accepting": str(int(worker.accepting)),
        "free": str(worker.free),
    }
    if worker.stalled:
        fields["stalled"] = "1"
    if worker.sequence is not None:
        granted = " ".join(f"{job} {fence}" for job, fence in worker.granted)
        fields |= {"sequence": worker.sequence, "granted": granted}
    for name, value in fields.items():
        entry(["worker", worker.id], name, value)
    for job, fence in worker.claims.items():
        entry(["claims", worker.id], job, str(fence))
    entry(["beats"], worker.id, worker.seen_us)
    entry(["joined"], worker.id, worker.joined_us)
    if worker.free:
        entry(["free", profile(worker.types)], worker.id, worker.free_since_us)


def _expect_counts(reference, entry):
    members, free, capacity = defaultdict(int), defaultdict(int), defaultdict(int)
    for worker in reference.workers.values():
        members[worker.types] += 1
        free[worker.types] += worker.free
        for type_ in worker.types:
            capacity[type_] += worker.slots
    for types, number in members.items():
        entry(["members"], profile(types), str(number))
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


def _expect_heads(reference, entry):
    heads = defaultdict(dict)
    for job in reference.jobs.values():
        if job.state == "pending":
            first = heads[job.type].get(lane(job))
            heads[job.type][lane(job)] = min(first or (job.enqueued_us, job.id), (job.enqueued_us, job.id))
    for type_, lanes in heads.items():
        entry(["heads"], encode(type_), {(name, str(enqueued_us), job) for name, (enqueued_us, job) in lanes.items()})
