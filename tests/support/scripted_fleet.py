"""A fleet without processes: its workers exist only in Redis, and the test calls their server functions."""

import time
from collections import defaultdict
from contextlib import suppress

from celery_affinity.leases.job_metrics import MetricDeltas
from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.scheduler.messages import Claim, EndArguments, JoinArguments
from celery_affinity.schema.histograms import RUNS
from celery_affinity.schema.job_record import NewJob
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings


class ScriptedFleet:
    """Jobs and workers by name: the test makes the calls of a real worker."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.sequence = 0
        self.on_demand = set()
        self.sums, self.came, self.ended = defaultdict(MetricDeltas), [], []

    @property
    def now_us(self):
        return getattr(self.scheduler, "now_us", None) or time.time_ns() // 1000

    def join(self, worker, *types, slots=1, settings=None, priority=0):
        given = shared_settings(Settings(**(settings or {})))
        return self.scheduler.join(JoinArguments(worker, f"{worker}@host", types, slots, priority=priority), given)

    def join_and_claim(self, worker, *types, **options):
        """Join a worker for one pending job. Return the claim of the job."""
        self.join(worker, *types, **options)
        (claim,) = self.inbox(worker)
        return claim

    def advance_and_tick(self, seconds):
        self.scheduler.advance(seconds)
        return self.scheduler.tick()

    def configure_and_tick(self, settings):
        self.scheduler.configure(settings)
        return self.scheduler.tick()

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
        rules="",
        task_name="tests.task",
        due="",
    ):
        if on_demand:
            self.on_demand.add(job)
        new = NewJob(
            job,
            type_,
            f"message of {job}" if message is None else message,
            on_demand=on_demand,
            priority=priority,
            delay_us=round(delay_s * 1e6),
            expires_us=None if expires_s is None else round(expires_s * 1e6),
            task_id=task_id or f"task-{job}",
            task_name=task_name,
            rules=rules,
            due=due,
        )
        (published,) = self.scheduler.publish(new)
        published.check(new)  # a test with a refused job would prove nothing
        return published.fresh

    def made(self, ids, type_, **fields):
        """Return jobs of *type_*, for one call of `publish`."""
        return [NewJob(each, type_, f"message of {each}", task_id=f"task-{each}", **fields) for each in ids]

    def inbox(self, worker):
        """Read a worker's inbox to its end like its event loop, which drops unreadable entries."""
        key = self.scheduler.keys.key("inbox", worker)
        payloads = []
        while payload := self.scheduler.client.rpop(key):
            if not payload.startswith(b"\n"):  # not a control message
                with suppress(ValueError):
                    payloads.append(Claim.parse(payload))
        return self._came(worker, payloads)

    def _came(self, worker, claims):
        self.came += [(worker, claim) for claim in claims]
        return claims

    def hand_over(self, *workers):
        """Send the metric deltas of the workers, or of all workers, like the heartbeats of real workers."""
        for worker, claim in self.came:
            waited_us = self._claimed_us(claim) - claim.enqueued_us
            late_us = None if claim.due_us is None else claim.enqueued_us + waited_us - claim.due_us
            self.sums[worker].waited(claim.type, claim.job_id in self.on_demand, waited_us, late_us)
        for worker, claim, kind, at_us in self.ended:
            self.sums[worker].ran(claim.type, kind, at_us - self._claimed_us(claim))
        self.came, self.ended = [], []
        for worker in workers or self.sums:
            for page in self.sums[worker].pages():
                self.sums[worker].answered(page, is_known=self.scheduler.add_metrics(worker, page.number, page.sums))

    def _claimed_us(self, claim):
        return int(self.scheduler.client.hget(self.scheduler.keys.key("job", claim.job_id), "claimed"))

    def signs(self, worker):
        """Return the fields of the unread control messages in a worker's inbox."""
        payloads = self.scheduler.client.lrange(self.scheduler.keys.key("inbox", worker), 0, -1)
        return [payload.decode().split() for payload in reversed(payloads) if payload.startswith(b"\n")]

    def jobs(self, worker):
        return [claim.job_id for claim in self.inbox(worker)]

    def end(self, worker, *claims, outcome="acked", inline=True, most_ahead=0, may_hold=None, again=False):
        """End claims; return the next claims. *again*: repeat the previous call, whose reply was lost."""
        self.sequence += not again
        ends = [EndArguments(claim.job_id, claim.fence, outcome) for claim in claims]
        following = self.scheduler.release_and_claim(
            worker,
            acks=[],
            ends=ends,
            sequence=-self.sequence if again else self.sequence,
            inline=inline,
            may_hold=may_hold or PrefetchLimit(most_ahead),
        )
        kind = "done" if outcome == "acked" else outcome.partition(" ")[0]
        if kind in RUNS:
            self.ended += [(worker, claim, kind, self.now_us) for claim in claims]
        return self._came(worker, following)

    def order(self, count, *types):
        """Run *count* jobs of *types* one after the other on one slot; return the jobs in order."""
        self.join("worker", *types)
        order, (claim,) = [], self.inbox("worker")
        while True:
            order.append(claim.job_id)
            following = self.end("worker", claim)
            if not following:
                assert len(order) == count
                return order
            (claim,) = following

    def claims(self, worker):
        key = self.scheduler.keys.key("claims", worker)
        return {job.decode(): fence.decode() for job, fence in self.scheduler.client.hgetall(key).items()}

    def sync(self, worker, claims=None, *, slots=1, other=0, draining=False):
        held = [(*each, -1) for each in (self.claims(worker) if claims is None else claims).items()]
        return self.scheduler.sync(worker, held, slots=slots, other=other, draining=draining)

    def state(self, job):
        state = self.scheduler.client.hget(self.scheduler.keys.key("job", job), "state")
        return state and state.decode()

    def ack(self, worker, claim):
        self.sequence += 1
        self.scheduler.release_and_claim(worker, acks=[claim[:2]], ends=[], sequence=self.sequence, inline=False)

    def bury(self, job, type_="pdf", *, outcome="rejected", acked=False):
        """Make a dead letter of a new job: it ends with *outcome*, or it was *acked* before its worker left."""
        self.join("worker", type_)
        self.publish(job, type_)
        (claim,) = self.inbox("worker")
        if acked:
            self.ack("worker", claim)
            self.scheduler.leave("worker")
        else:
            self.end("worker", claim, outcome=outcome)
