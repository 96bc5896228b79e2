"""The keys that job hashes, worker hashes and claims imply: one description, read from Redis.

Server functions write these keys step by step, and a repair rebuilds them. Both must agree with `violations`.
"""

import re
from collections import Counter, defaultdict
from hashlib import sha1
from itertools import pairwise

from celery_affinity.schema.constants import MAX_NUMBER_LENGTH, RATE_PREFIX
from celery_affinity.schema.keys import Keys
from celery_affinity.schema.rules_codec import HINTED, SUFFIX
from celery_affinity.schema.values import NAMES

#: Separates the limit or rate of a key from its name in the rules of a job.
_RATE = "/"


class Projections:
    """The keys of one cohort at one moment."""

    def __init__(self, client, keys=None):
        self.client, self.keys = client, keys or Keys()
        self.jobs = {job_id: fields for job_id, fields in self._hashes("job") if fields.get("state")}
        self.workers = dict(self._hashes("worker"))
        self.claims = dict(self._hashes("claims"))

    def _names(self, name):
        begin = self.keys.key(name, "")
        for found in self.client.scan_iter(match=begin.replace("[", "\\[") + "*", count=1000):
            yield found.decode(errors="surrogateescape")[len(begin) :]

    def _hashes(self, name):
        for found in self._names(name):
            key = self.keys.key(name, found)
            if self.client.type(key) == b"hash":
                yield found, self._hash(key)

    def _hash(self, key):
        fields = self.client.hgetall(key) if self.client.type(key) == b"hash" else {}
        return {field.decode(errors="replace"): value.decode(errors="replace") for field, value in fields.items()}

    def _scores(self, *key):
        name = self.keys.key(*key)
        entries = self.client.zrange(name, 0, -1, withscores=True) if self.client.type(name) == b"zset" else []
        return {member.decode(errors="replace"): score for member, score in entries}

    def violations(self, without=()):
        """Return a line for each entry that differs from the entry that the hashes and claims imply.

        *without*: ids of jobs that another client has damaged.
        """
        without = set(without)
        of_jobs = [*self._of_jobs(without), *self._of_due_times(without)]
        return [*of_jobs, *self._of_lanes(), *self._of_claims(without), *self._of_workers()]

    def _of_jobs(self, without):
        for job_id, job in self.jobs.items():
            if job["state"] != "pending" or job_id in without or job.get("lane") not in NAMES:
                continue
            type_, lane = job.get("type", ""), job["lane"]
            is_in_lane = job_id in self._scores("lane", type_, lane)
            is_blocked = job_id in self._scores("kept_back", type_, lane)
            if is_in_lane == is_blocked:
                yield f"pending job {job_id}: in its lane {is_in_lane}, blocked {is_blocked}"
            key_names = _keys_of(job)
            if key_names and job_id not in self._scores("key_queue", key_names[0], type_, lane):
                yield f"pending job {job_id} is not in the sub-lane of {key_names[0]}"
            hint = _hint_of(job_id, job)
            if hint and (job_id in self._scores("hint_lane", hint, type_, lane)) != is_in_lane:
                yield f"pending job {job_id} with hint {hint}: in its lane {is_in_lane}, in its hint lane otherwise"
            if is_blocked and not self.client.hexists(self.keys.key("kept_lanes"), f"{type_} {lane}"):
                yield f"blocked job {job_id}: its lane is not listed"

    def _of_due_times(self, without):
        for job_id, due in self._scores("due_times").items():
            job = self.jobs.get(job_id, {})
            waits = job.get("state") in ("pending", "scheduled")
            if job_id not in without and not (waits and job.get("due", "").startswith(f"{due:.0f} ")):
                yield f"{job_id} is due at {due:.0f}: its hash has {job}"

    def _of_lanes(self):
        heads = self._hash(self.keys.key("heads"))
        types = {*heads, *self._hash(self.keys.key("capacity"))} - {
            "!"
        }  # others are repaired once a worker serves them
        for type_ in types:
            expected = set()
            for lane in NAMES:
                first = self.client.zrange(self.keys.key("lane", type_, lane), 0, 0, withscores=True)
                expected |= {f"{lane} {score:.0f} {job_id.decode()}" for job_id, score in first}
            words = heads.get(type_, "").split(" ")
            if {" ".join(words[nth : nth + 3]) for nth in range(0, len(words), 3)} - {""} != expected:
                yield f"heads of {type_}: {heads.get(type_)} instead of {expected}"

    def _of_claims(self, without):
        holders = defaultdict(dict)
        for worker, claims in self.claims.items():
            for job_id, fence in claims.items():
                job = self.jobs.get(job_id)
                if job is None or job_id in without:
                    continue
                if (job["state"], job.get("worker"), job.get("fence")) != ("claimed", worker, fence):
                    yield f"claim of {job_id} by {worker}: its hash has {job}"
                is_fence = fence.isdecimal() and len(fence) <= MAX_NUMBER_LENGTH
                for name in _keys_of(job, holds=True) if is_fence else ():
                    holders[name][job_id] = float(fence)
        for name in self._scores("waiting_keys"):  # other holders block no job, and are repaired once one waits
            if name.startswith(RATE_PREFIX):
                continue
            held = {job_id: fence for job_id, fence in self._scores("held", name).items() if job_id not in without}
            if held != holders[name]:
                yield f"holders of {name}: {held} instead of {dict(holders[name])}"

    def _of_workers(self):
        members, slots, free_slots, capacity = Counter(), Counter(), Counter(), Counter()
        for worker, fields in self.workers.items():
            profile, types = fields.get("profile"), fields.get("types", "").split()
            if profile != sha1(fields.get("types", "").encode(), usedforsecurity=False).hexdigest()[:16]:
                continue  # its hash was damaged while its jobs were recovered
            number, other = int(fields.get("slots", 0)), int(fields.get("other", 0))
            takes_jobs = fields.get("accepting") == "1" and "stalled" not in fields and number > 0
            free = max(0, number - other - len(self.claims.get(worker, ()))) if takes_jobs else 0
            if fields.get("free") != str(free):
                yield f"free slots of {worker}: {fields.get('free')} instead of {free}"
            if (worker in self._scores("free", profile)) != (free > 0):
                yield f"{worker} has {free} free slots, and is listed otherwise"
            members[profile] += 1
            slots[profile] += number
            free_slots[profile] += free
            for type_ in types:
                capacity[type_] += number
                if self._scores("serving", type_).get(profile) != len(types):
                    yield f"profile {profile} does not serve {type_}"
        sums = {"members": members, "slots": slots, "free_slots": free_slots, "capacity": capacity}
        for name, counted in sums.items():
            stored = {field: number for field, number in self._hash(self.keys.key(name)).items() if number != "0"}
            if stored != {field: str(number) for field, number in counted.items() if number}:
                yield f"{name}: {stored} instead of {dict(counted)}"


def _keys_of(job, *, holds=False):
    """Return the names of the keys of *job* in order. *holds*: only the keys that a claim holds, so no rates."""
    words = job.get("rules", "").split(" ")
    pairs = [(word[len("key=") :], limit) for word, limit in pairwise(words) if word[:4] == "key="]
    return [name for name, limit in pairs if not (holds and _RATE in limit)]


def _hint_of(job_id, job):
    """Return the hint of a job, or None."""
    hints = [word[len("near=") :] for word in job.get("rules", "").split(" ") if word.startswith("near=")]
    return hints[0] if hints and HINTED in re.search(f"{SUFFIX}$", job_id)[0] else None
