"""A scheduler whose scripts take the time from a key instead of the server's clock: for tests of what time does."""

from dataclasses import replace
from functools import cache

from celery_affinity.rules.settings import Settings
from celery_affinity.server.replies import End, Job, Joining
from celery_affinity.server.scheduler import Scheduler, parsed_claims
from celery_affinity.server.scripts.assembling import Script

#: The key that the time is passed in by.
CLOCK = "the-time-passed-in"
START_US = 1_800_000_000_000_000


class ClockedScheduler(Scheduler):
    """The same arrows, at a time that the test passes in."""

    def __init__(self, client, keys):
        super().__init__(client, keys)
        self.now_us = START_US
        self.advance(0)

    def advance(self, seconds):
        self.now_us += round(seconds * 1e6)
        self.client.hset(CLOCK, mapping={"s": self.now_us // 1_000_000, "us": self.now_us % 1_000_000})

    def _run_together(self, calls):
        return super()._run_together([(clocked(script), arguments) for script, arguments in calls])


@cache
def clocked(script: Script) -> Script:
    source = script.source.replace('redis.call("TIME")', f'redis.call("HMGET", "{CLOCK}", "s", "us")')
    assert source != script.source or "clock.now_us" not in script.source
    return replace(script, source=source)


class Fleet:
    """Short words for tests: jobs and workers by name."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.sequence = 0

    def join(self, worker, *types, slots=1, settings=None):
        given = Settings(**(settings or {})).shared()
        return self.scheduler.join(Joining(worker, f"{worker}@host", types, slots), given)

    def publish(
        self,
        job,
        type_,
        *,
        priority=0,
        on_demand=False,
        delay_s=0.0,
        expires_s=None,
        task_id=None,
        message=None,
    ):
        (published,) = self.scheduler.publish(
            Job(
                job,
                type_,
                f"message of {job}" if message is None else message,
                on_demand=on_demand,
                priority=priority,
                delay_us=round(delay_s * 1e6),
                expires_us=None if expires_s is None else round(expires_s * 1e6),
                task_id=task_id or f"task-{job}",
                task_name="tests.task",
            )
        )
        return published.fresh

    def inbox(self, worker):
        """Read a worker's inbox to its end, as its loop would."""
        key = self.scheduler.keys.key("inbox", worker)
        payloads = []
        while payload := self.scheduler.client.rpop(key):
            if not payload.startswith(b"\n"):  # a sign
                payloads += parsed_claims([payload])
        return payloads

    def signs(self, worker):
        """Return the words of the signs in a worker's inbox, unread."""
        payloads = self.scheduler.client.lrange(self.scheduler.keys.key("inbox", worker), 0, -1)
        return [payload.decode().split() for payload in reversed(payloads) if payload.startswith(b"\n")]

    def jobs(self, worker):
        return [claim.job_id for claim in self.inbox(worker)]

    def end(self, worker, *claims, outcome="acked", inline=True, most_ahead=0):
        self.sequence += 1
        ends = [End(claim.job_id, claim.fence, outcome) for claim in claims]
        return self.scheduler.tell_ends(
            worker, acks=[], ends=ends, sequence=self.sequence, inline=inline, most_ahead=most_ahead
        )

    def claims(self, worker):
        key = self.scheduler.keys.key("claims", worker)
        return {job.decode(): fence.decode() for job, fence in self.scheduler.client.hgetall(key).items()}

    def sync(self, worker, claims=None, *, slots=1, other=0, draining=False):
        held = [(*each, -1) for each in (self.claims(worker) if claims is None else claims).items()]
        return self.scheduler.sync(worker, held, slots=slots, other=other, draining=draining)

    def state(self, job):
        state = self.scheduler.client.hget(self.scheduler.keys.key("job", job), "state")
        return state and state.decode()


__all__ = ["CLOCK", "START_US", "ClockedScheduler", "Fleet", "clocked"]
