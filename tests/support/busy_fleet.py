"""A process-free fleet with jobs in every state and every kind of Redis key, for repair and upgrade tests."""

import re

import redis

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.options.recurring import RecurringCall
from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.publishing.message import encode_stamp
from celery_affinity.scheduler.messages import EndArguments, JoinArguments, TaskRuns, TypeMetricsDelta
from celery_affinity.schema.histograms import sum_field, wait_field
from celery_affinity.schema.job_record import NewJob, is_batch, with_suffix
from celery_affinity.schema.keys import KEYS, Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

from .scripted_fleet import ScriptedFleet

SETTINGS = shared_settings(Settings(heartbeat_interval=1, worker_timeout=4, dead_max=5, keep=120))
STAMP = encode_stamp("tenant", "a")

#: Ids of the jobs published by a scene, and of their batches.
PUBLISHED = re.compile(r"(j\d+|again\d|many[\d.]+|retry)\W{0,3}")

#: Rules of jobs that run one at a time; with order=1, a retry runs before later jobs of its key.
KEYED = "key=city%3AHH limit=1"
OF_TENANT = "key=tenant%3Aacme quota=settings"
IN_ORDER = "key=in-order limit=1 order=1"

OF_ANOTHER = "key=tenant%3Aother quota=settings preemptible=1"
HINTED = "near=m"

#: Number of calls in which a worker ends all existing jobs several times over.
MAX_SETTLED = 500

#: Rules of calls that merge.
MERGING = "merge=city most=100 bytes=10000"


class Worker:
    """A simulated worker that sends the same commands as a real one."""

    def __init__(self, scheduler, name, *types, slots=2):
        self.scheduler, self.name, self.types, self.slots = scheduler, name, types, slots
        self.held, self.sequence, self.pages = {}, 0, 0
        self.ran = []
        self.join()

    def join(self):
        joining = JoinArguments(self.name, f"{self.name}@host", self.types, self.slots, app="shop", stops="force")
        self.scheduler.join(joining, SETTINGS)

    def sync(self):
        running = [(*claim, 0) for claim in self.held.items()]
        synced = self.scheduler.sync(self.name, running, slots=self.slots, other=0, draining=False)
        if not synced.is_registered:
            self.held.clear()
            self.join()
            return
        for job_id in synced.void:
            self.held.pop(job_id, None)
        self.scheduler.requeue(self.name, synced.unnamed, counted=False)

    def read(self):
        """Read the inbox like the transport. If another client overwrote the inbox, repair it first."""
        try:
            claims = ScriptedFleet(self.scheduler).inbox(self.name)
        except redis.ResponseError as exc:
            if not str(exc).startswith("WRONGTYPE"):
                raise
            self.scheduler.repair([self.name])
            claims = ScriptedFleet(self.scheduler).inbox(self.name)
        for claim in claims:
            self.held[claim.job_id] = claim.fence

    def work(self):
        """Send a heartbeat, and run all claims."""
        self.scheduler.heartbeat(self.name, loop_runs=True)
        self.sync()
        self.read()
        for _ in range(MAX_SETTLED):
            if not self.held:
                return
            self.settle()
        raise AssertionError(f"{self.name} gets jobs endlessly, the last ones are {[*self.held]}")

    def settle(self):
        if self.held:
            some = dict([*self.held.items()][:10])
            self.held = {job_id: fence for job_id, fence in self.held.items() if job_id not in some}
            ends = [EndArguments(job_id, fence, "acked") for job_id, fence in some.items()]
            self.ran += some
            for batch in filter(is_batch, some):
                self.share(batch, some[batch])
            self.sequence += 1
            acks = [end[:2] for end in ends[:1]]
            following = self.scheduler.release_and_claim(
                self.name, acks=acks, ends=ends, sequence=self.sequence, inline=True, may_hold=PrefetchLimit(1)
            )
            self.held |= {claim.job_id: claim.fence for claim in following}
            self.count(len(ends))

    def count(self, ended):
        """Report that *ended* jobs of each type ended, of 1 ms each."""
        self.pages += 1
        grown = {wait_field("done", 0): ended, sum_field("done"): ended * 1000}
        sums = [TypeMetricsDelta(type_, grown, ended, ended * 1000, "11968 0 1") for type_ in self.types]
        runs = [TaskRuns("a task", ended, [(None, 1000)] * ended)]
        self.scheduler.add_metrics(self.name, self.pages, sums, runs)

    def share(self, batch, fence):
        """Run a batch, and ack the reports to all callers but the primary, whose result the batch's end reports."""
        first = self.scheduler.client.hget(self.scheduler.keys.key("job", batch), "primary")
        page = self.scheduler.batch_calls(batch, fence=fence)
        others = [call.job_id for call in page.callers] if page else []
        self.ran += [*others, first and first.decode()]
        self.scheduler.ack_batch_reports(batch, others, fence=fence)


class Scene:
    """A fleet with jobs in every state and every kind of Redis key."""

    def __init__(self, client):
        self.client = client
        self.scheduler = scheduler = FakeClockScheduler(client, Keys())
        self.workers = [
            Worker(scheduler, "w1", "pdf"),
            Worker(scheduler, "w2", "pdf", "excel"),
            Worker(scheduler, "w3", "web", slots=8),
        ]
        self.fresh = []
        self.number = 0
        self.jobs = []
        self._fill()

    def publish(self, type_, number=1, **options):
        jobs = []
        for nth in range(self.number, self.number + number):
            job_id = with_suffix(f"j{nth}", options["rules"]) if "rules" in options else f"j{nth}"
            message = f"message {nth - self.number}"
            jobs.append(NewJob(job_id, type_, message, task_id=f"t{nth}", task_name="n", **options))
        self.number += number
        published = self.scheduler.publish(*jobs)
        assert all(each.refused is None for each in published)
        return [job.id for job in jobs]

    def _fill(self):
        one, two, three = self.workers
        scheduler = self.scheduler
        # Four claims are held, one of them acked; one job has ended.
        self.publish("pdf", 5)
        one.read()
        two.read()
        scheduler.advance(1)
        one.work()
        one.read()
        held = next(iter(two.held.items()))
        scheduler.release_and_claim(two.name, acks=[held], ends=[], sequence=99, inline=False)
        # Jobs that ended without a worker, and dead letters.
        self.publish("excel", 2, delay_us=60_000_000, stamps=(STAMP,))
        scheduler.revoke([f"t{self.number - 1}"], [STAMP], keep_s=3600)
        self.publish("gone", expires_us=0)
        (dead,) = self.publish("web")
        three.read()
        end = EndArguments(dead, three.held.pop(dead), "rejected")
        scheduler.release_and_claim(three.name, acks=[], ends=[end], sequence=98, inline=False)
        # Waiting jobs.
        for priority in range(8):
            for on_demand in (False, True):
                self.jobs += self.publish("pdf", 2, priority=priority, on_demand=on_demand)
        for type_ in ("excel", "web", "pdf"):
            self.jobs += self.publish(type_, 4)
            self.jobs += self.publish(type_, delay_us=3_000_000)
        self.jobs += self.publish("excel", stamps=("tenant:b",), expires_us=600_000_000)
        self.jobs += self.publish("excel", 2, due="w10000000") + self.publish(
            "web", due="d60000000", delay_us=2_000_000
        )
        self._fill_keys()
        self._fill_hints()
        self._fill_batches()
        self._fill_recurring()
        # Several jobs of one task, and more jobs than one call reads.
        several = [NewJob(f"again{nth}", "excel", "message", task_id="again", task_name="n") for nth in range(3)]
        self.jobs += [job.id for job in several]
        scheduler.publish(*several, *(NewJob(f"many{nth}", "none", "message", task_id="many") for nth in range(12)))
        scheduler.advance(1)
        scheduler.tick()
        one.read()
        one.settle()
        scheduler.configure({"priority_percentage": "50", "limits": "type%3Aweb=6", "tenants": "acme=max:none,min:9"})
        scheduler.tick()
        scheduler.configure({"limits": "type%3Anone=50 type%3Aweb=8"})
        scheduler.pause("type:paused", for_s=3_600, why="a reason")
        for key in self.scheduler.keys.key("nudges", "w1"), self.scheduler.keys.key("nudges", "w3"):
            self.client.lpush(key, "")
        self.client.hset(self.scheduler.keys.key("prefetch_turn"), "pdf", "w1")
        self.client.hset(self.scheduler.keys.key("batched"), "web", 5)  # written by runs of merged calls
        self.client.zadd(self.scheduler.keys.key("clocks"), {"queued.0 pdf": 5})  # written by jobs of tenants
        self.client.set(self.scheduler.keys.key("share", "queued.0", "tenant%3Aacme", "1"), "2 0 0\npdf 7", ex=3_600)
        self.client.hset(self.scheduler.keys.key("unlisted"), "pdf queued.0", "0 0")
        self.client.zadd(self.scheduler.keys.key("pause_signs"), {"type:paused": 0})  # exists with thousands of workers
        self.client.set(self.scheduler.keys.key("claim_number"), 3)
        self._fill_keys_of_other_writers()

    def _fill_keys(self):
        """Publish jobs of a held key, of a free key, of a rate, and of a key that waits for a retry."""
        three = self.workers[2]
        self.scheduler.configure({"tenant_turns": "share"})
        self.jobs += self.publish("web", 3, rules=KEYED)
        self.jobs += self.publish("pdf", 2, rules="key=city%3AB limit=2")
        self.jobs += self.publish("web", 3, rules="key=rate%3Aa rate=1/2000000")
        self.jobs += self.publish("web", rules=f"{KEYED} key=rate%3Ab rate=9/2000000 {OF_TENANT}")
        self.jobs += self.publish("pdf", 2, rules=OF_TENANT)
        (first,) = self.publish("web", rules=IN_ORDER)
        three.read()
        retry = NewJob("retry!", "web", "message", task_id=f"t{self.number - 1}", delay_us=3_000_000, rules=IN_ORDER)
        self.scheduler.publish(retry)
        self.jobs += [retry.id, *self.publish("web", rules=IN_ORDER)]
        end = EndArguments(first, three.held.pop(first), "acked")
        self.scheduler.release_and_claim(three.name, acks=[], ends=[end], sequence=97, inline=False)
        self.jobs += self.publish("web")  # unread

    def _fill_hints(self):
        """Publish jobs with a hint that a worker holds, with another hint, and a preemptible job."""
        three = self.workers[2]
        three.slots = 20
        three.sync()
        (first,) = self.publish("web", rules=HINTED)
        (stopped,) = self.publish("web", rules=OF_ANOTHER)
        three.read()
        end = EndArguments(first, three.held.pop(first), "acked")
        self.scheduler.release_and_claim(three.name, acks=[], ends=[end], sequence=95, inline=False)
        self.jobs += self.publish("pdf", 3, rules=HINTED) + self.publish("excel", 2, rules="near=other")
        order = f"{three.held[stopped]} {three.name} tenant%3Aacme web {self.scheduler.now_us} 1000"
        self.client.hset(self.scheduler.keys.key("stop_orders"), stopped, order)  # written by a tick

    def _fill_keys_of_other_writers(self):
        """Write the keys of observers and of the HTTP interface, and a requeue from before the scene."""
        key = self.scheduler.keys.key
        for name in ("idempotency", "remote_worker", "remote_end"):
            self.client.set(key(name, "1"), "{}")
        self.client.set(key("trend_written"), "1")
        self.client.set(key("recording"), "r 1 2 3")
        self.client.lpush(key("trend"), "{}")
        for name in ("history", "history_base"):
            self.client.lpush(key(name, "10"), "")
        self.client.hset(key("history_names"), "1", "pdf")
        self.client.set(key("history_written"), "1")
        self.client.lpush(key("requeues"), "1 died unsettled pending w0 web j0 t0")
        self.client.hset(key("left_to_celery", "1"), "j1", "pdf a reason")
        self.client.xadd(key("recorded", "r"), {"worker": "{}", "claims": "", "told": ""})

    def _fill_batches(self):
        """Publish calls that merge: into a dead batch with one reported call, and into a waiting batch."""
        dead = self.publish("batches", 3, rules=MERGING)
        four = Worker(self.scheduler, "w4", "batches", slots=1)
        four.read()
        (batch,) = four.held
        ends = [EndArguments(batch, four.held.pop(batch), "rejected")]
        self.scheduler.release_and_claim(four.name, acks=[], ends=ends, sequence=96, inline=False)
        self.scheduler.ack_batch_reports(batch, dead[1:2])
        self.scheduler.leave(four.name)
        self.jobs += self.publish("excel", 3, rules=MERGING)

    def _fill_recurring(self):
        """Declare recurring calls: one due soon, one declined by other apps, and a suspended one."""
        for name, since in (("due", "enqueue"), ("put off", "enqueue"), ("from the end", "end"), ("suspended", "end")):
            app = "" if name == "due" else f"shop of {name}"
            self.scheduler.declare_recurring([self.recurring(name, since)], app=app)
        self.scheduler.pause_recurring("suspended", True)

    def recurring(self, name, since="enqueue"):
        type_ = "excel" if name == "put off" else "web"
        return RecurringCall(name, "n", type_, "city", 2_000_000, since, "a signature")

    def make_what_is_due(self):
        """Publish the due recurring calls like a dispatcher."""
        scheduler = self.scheduler
        for _ in range(20):
            if not (due := scheduler.due_recurring("shop", again_s=5)):
                break
            self.number += 1
            job = NewJob(f"j{self.number}+", "web", "message", task_id=f"t{self.number}", task_name="n", rules=MERGING)
            scheduler.fire_recurring(due.name, due.due, job)

    def keys_of(self, name):
        """Return the existing keys of one kind."""
        base, begins = self.scheduler.keys.base, {kind: row[0].partition("%s")[0] for kind, row in KEYS.items()}
        pattern = base + KEYS[name][0].replace("%s", "*")
        longer = [base + begin for begin in begins.values() if len(begin) > len(begins[name])]
        others = tuple(begin.encode() for begin in longer if begin.startswith(pattern.partition("*")[0]))
        return sorted(key for key in self.client.scan_iter(match=pattern, count=1000) if not key.startswith(others))

    def dead(self):
        """Return the ids of dead letters."""
        key = self.scheduler.keys.key("dead")
        return self.client.zrange(key, 0, -1) if self.client.type(key) == b"zset" else []

    def run_periodic_work(self):
        """Run all periodic work of a fleet, for longer than the worker timeout."""
        scheduler = self.scheduler
        for _ in range(3):
            scheduler.advance(3)
            scheduler.tick()
            self.make_what_is_due()
            while ending := scheduler.next_report("shop", again_s=5):
                if ending.how and is_batch(ending.job_id):
                    page = scheduler.batch_calls(ending.job_id)
                    calls = [call.job_id for call in page.callers]
                    if not calls or scheduler.ack_batch_reports(ending.job_id, calls) != 0:
                        scheduler.ack_report([ending.job_id])
                elif ending.how:
                    scheduler.ack_report([ending.job_id])
                else:
                    scheduler.set_aside([ending.job_id])
            for worker in self.workers:
                worker.work()

    def do_everything(self):
        """Call every server function on old and fresh jobs and workers, and on unknown names."""
        scheduler = self.scheduler
        self.run_periodic_work()
        fresh = Worker(scheduler, f"fresh{self.number}", "web", "fresh")
        self.fresh.append(fresh)
        fresh_jobs = self.publish("fresh", 3) + self.publish("fresh", delay_us=1_000_000)
        scheduler.advance(2)
        scheduler.tick()
        fresh.work()
        assert set(fresh_jobs) <= set(fresh.ran), "jobs of another type and worker run"
        old = [job for type_ in ("pdf", "excel", "web") for job in self.publish(type_, 2)]
        old += self.publish("web", 2, rules=KEYED)
        old += self.publish("web", 3, rules=MERGING)
        old += self.publish("web", 2, due="w5000000")
        self.run_periodic_work()
        scheduler.requeue("w1", [("j1", "1")], counted=True)
        scheduler.publish(*(NewJob(f"many{self.number}.{nth}", "none", "message", task_id="many") for nth in range(3)))
        scheduler.revoke(["t1", "many", old[0]], [STAMP], keep_s=60)
        scheduler.replay(["j1", "j2", old[1]])
        scheduler.drop(self.dead())
        scheduler.configure({"priority_percentage": "100"})
        scheduler.purge("nobody's")
        scheduler.declare_recurring([self.recurring("put off")], app="shop of put off")
        scheduler.decline_recurring("shop", "due")
        scheduler.pause_recurring("suspended", False)
        scheduler.remove_recurring("nobody's")
        self.publish("web", 3)
        fresh.read()
        scheduler.recover(fresh.name)
        self.run_periodic_work()
        gone = Worker(scheduler, f"gone{self.number}", "pdf")
        scheduler.leave(gone.name)
        self.run_periodic_work()
        return [job for job in old if job not in self.ran]

    @property
    def ran(self):
        return {job for worker in self.workers + self.fresh for job in worker.ran}
