"""A large queue and a fleet that calls every script, with the cost of each script and report."""

import random
import statistics
import time
from collections import Counter
from itertools import count
from typing import NamedTuple

from celery import Celery

from celery_affinity.admin.bulk import CANCELLABLE, cancel_jobs, choose_jobs
from celery_affinity.cli.explain_text import explanation_text
from celery_affinity.lua.library import FUNCTION_NAMES, server_function
from celery_affinity.options.recurring import RecurringCall
from celery_affinity.reports.explain import explain
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.job_lists import JobFilter, jobs_page
from celery_affinity.reports.json import as_json
from celery_affinity.reports.key_usage import find_keys, keys_text, show_key
from celery_affinity.reports.metrics import metrics_text, read_metrics
from celery_affinity.reports.queue_order import NEXT_JOBS, next_jobs
from celery_affinity.reports.scale import scale_of_types
from celery_affinity.reports.status import Report
from celery_affinity.scheduler import recordings
from celery_affinity.scheduler.messages import ClaimReport, EndArguments, JoinArguments, TypeMetricsDelta
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import LARGEST_BUCKET, MAX_HINTS, MAX_METRICS, MAX_RECORDED
from celery_affinity.schema.histograms import sum_field, wait_field
from celery_affinity.schema.job_record import NewJob, with_suffix
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

#: Thresholds of the slow log in µs. With 0, each command of a script would be logged, which slows the server.
NOTED_FROM_US, LONG_FROM_US = 100, 2_000

#: Bytes of a command that makes the server's allocator (glibc) merge the freed entries of the slow log. Otherwise the
#: next command that frees a large block does this, and appears to take up to 7 ms more.
SETTLING_BYTES = 1_000_000

#: A script that does nothing, and its number of calls per round, to measure delays caused by the machine.
NOTHING, NOTHING_CALLS = "return 0", 10

#: Number of commands per pipeline while the queue is filled.
BATCH = 1000

#: Number of times that a report of thousands of types is read.
REPETITIONS = 5

#: Number of jobs that each small worker ends, and so of its hints.
HINTS_OF_ONE = MAX_HINTS


class Times(NamedTuple):
    """Figures in ms for a script or a report."""

    calls: int
    median: float
    high: float
    longest: float


class Counting(Scheduler):
    """A scheduler that counts the calls of each script."""

    def __init__(self, client, keys):
        super().__init__(client, keys)
        self.calls = Counter()

    def _attempt(self, calls):
        self.calls.update(script.name for script, _ in calls)
        return super()._attempt(calls)


class LargeFleet:
    """Many pending jobs with 11 priorities and both modes, and workers that serve 1 to 20 types.

    The jobs rotate through *keys* exclusive keys and *tenants* tenants, and have random hints out of *hints*. The
    largest workers serve *served* types.
    """

    def __init__(self, client, types, priorities=11, seed=1, keys=0, tenants=0, minimum=0, hints=0, served=20):
        self.client = client
        self.scheduler = Counting(client, Keys())
        self.reader = Reader(client, Keys())
        self.types = [f"type{number}" for number in range(types)]
        self.served = self.types[:served]
        self.priorities, self.keys, self.tenants, self.hints = priorities, keys, tenants, hints
        self.forget_times(seed)
        if tenants:
            quotas = {"tenants": f"*=max:none,min:{minimum}"} if minimum else {"tenant_turns": "share"}
            self.scheduler.configure(quotas)
        if hints:
            self.scheduler.configure({"locality_bonus": "80", "placement": "weighted"})

    def fill(self, jobs, since=0, due_us=None):
        """Publish jobs from number *since* on, with an ETA of *due_us* on the server's clock if it is given."""
        self.scheduler.load()
        for first in range(since, jobs, BATCH):
            delay_us = 0 if due_us is None else due_us - self.reader.now_us()
            with self.client.pipeline(transaction=False) as pipe:
                for number in range(first, min(first + BATCH, jobs)):
                    job = self._job(number, delay_us)
                    pipe.execute_command(*self.scheduler.command((server_function("publish"), job)))
                pipe.execute()

    def _job(self, number, delay_us=0):
        type_ = self.random.choice(self.types)
        rules, priority, on_demand = self.shape(type_)
        return NewJob(
            with_suffix(f"job{number}", rules),
            type_,
            "x" * 700,  # size of a Celery message with a small task
            on_demand=on_demand,
            priority=priority,
            delay_us=delay_us,
            task_id=f"task-{number}",
            task_name="proj.tasks.render",
            rules=rules,
        ).arguments

    def shape(self, type_):
        """Return rules, priority and mode of the next job with *type_*."""
        if self.tenants:
            return f"key=tenant%3At{next(self._numbers) % self.tenants} quota=settings", 0, False
        if not self.keys:
            hint = f"near=h{self.random.randrange(self.hints)}" if self.hints else ""
            return hint, self.random.randrange(self.priorities), self.random.choice([False, False, False, True])
        number = next(self._numbers)
        of_type = self.keys // len(self.types)
        name = f"{type_}-{number % of_type}" if of_type else f"shared-{number % self.keys}"
        return f"key={name} limit=1", number % self.priorities, number % 4 == 0

    def limit_types(self, limit):
        """Limit the simultaneous jobs of each type, unless *limit* is 0."""
        if limit:
            self.scheduler.configure({"limits": " ".join(f"type%3A{type_}={limit}" for type_ in self.types)})

    def join(self, worker, types, slots):
        self.scheduler.join(JoinArguments(worker, f"{worker}@host", types, slots), shared_settings(Settings()))

    def crowd(self, workers):
        """Add small workers that send one heartbeat each; with hints, each ends some jobs."""
        for number in range(workers):
            self.join(f"small{number}", self.random.sample(self.types, self.random.randint(1, 3)), 1)
            if number % 100 == 0:
                self.note_times()
        for number in range(workers):
            held = [ClaimReport(*each, 1000) for each in self.claims(f"small{number}")]
            self.scheduler.sync(f"small{number}", held, slots=1, other=0, draining=False)
            for _ in range(HINTS_OF_ONE if self.hints else 0):
                self.release(f"small{number}")
            if number % 100 == 0:
                self.note_times()

    def run_rounds(self, rounds):
        """Call all scripts, with enough slots for calls to stop at their limits and return `unfilled`."""
        self.join("specialist", self.types[:1], 8)
        self.join("versatile", self.served, 100)
        for round_ in range(rounds):
            self.release("specialist")
            self.release("versatile")
            self.sync("versatile")
            self.count("versatile")
            self.record("versatile")
            self.do_nothing()
            self.note_times()
            if round_ % 20 == 0:
                self.join("short", self.served, 120)
                self.scheduler.leave("short")
                self.publish_later(60)
                self.scheduler.tick()
        for loop_runs in (False, True):
            self.scheduler.heartbeat("versatile", loop_runs=loop_runs)
        self.join("killed", self.served, 60)
        self.scheduler.recover("killed")
        found = [job_id for job_id, _ in self.claims("versatile")[:20]]
        self.bury(found)
        self.scheduler.replay(found[:10])
        self.scheduler.drop(found[10:])
        self.scheduler.requeue("versatile", self.claims("versatile")[:50], counted=False)
        waiting = [lane.job_id for lane in self.reader.lanes(self.types[:50])]
        self.scheduler.move(waiting, type_=self.types[0], on_demand=True, priority=9)
        self.merge(300)
        self.recur(2_000)
        self.scheduler.revoke([f"task-{number}" for number in range(100)], [], keep_s=60)
        while ending := self.scheduler.next_report("large", again_s=60):
            self.scheduler.ack_report([ending.job_id])
        self.scheduler.configure({"age_weight": "16"})
        self.scheduler.pause("type:nothing")
        self.scheduler.resume("type:nothing")
        self.scheduler.repair()
        self.ingest(60)
        self.die("versatile")
        self.note_times()

    def purge(self):
        """Purge a type. With one type, no job is pending afterwards."""
        self.scheduler.purge(self.types[-1])
        self.note_times()

    def count(self, worker):
        """Send the maximum number of sums per call."""
        grown = {wait_field("done", bucket): 1 for bucket in range(LARGEST_BUCKET)} | {sum_field("done"): 1_000}
        types = self.served[: MAX_METRICS // len(grown) + 1]
        self.scheduler.add_metrics(
            worker, next(self._pages), [TypeMetricsDelta(each, grown, 1, 1_000, "11968 0 1") for each in types]
        )

    def record(self, worker):
        """Record the maximum number of claims per call."""
        recordings.begin_recording(self.scheduler, "large", for_s=60, kept_s=0)
        claims = [
            (job_id, fence, ("type", "", "done"), 1, 1, 1, 1, 1, 0, 0, None)
            for job_id, fence in self.claims(worker)[:MAX_RECORDED]
        ]
        assert self.scheduler.record("large", [("{}", claims)])

    def merge(self, calls):
        """Merge *calls* calls into one run, and report its end to all callers."""
        self.scheduler.pause("type:merging")
        self.join("merger", ["merging"], 1)
        rules = "merge=k most=1000 bytes=1000000"
        for number in range(calls):
            job_id = with_suffix(f"call{number}", rules)
            self.scheduler.publish(NewJob(job_id, "merging", "x" * 700, task_id=f"call-{number}", rules=rules))
        self.scheduler.resume("type:merging")
        ((batch, fence),) = self.claims("merger")
        after = 0
        while after is not None:
            page = self.scheduler.batch_calls(batch, fence=fence, after=after)
            self.scheduler.ack_batch_reports(batch, [each.job_id for each in page.callers], fence=fence)
            after = page.after
        self.release("merger")
        self.split(calls)
        self.scheduler.leave("merger")

    def recur(self, calls):
        """Declare *calls* recurring calls; most are postponed, and some published."""
        entries = [
            RecurringCall(f"recurring{number}", "task", "recurring", f"k{number // 10}", 1_000_000, signature="x" * 700)
            for number in range(calls)
        ]
        self.scheduler.declare_recurring(entries, app="large")
        for number in range(0, calls // 10, 2):
            rules = f"merge=k{number} most=1000 bytes=1000000"
            self.scheduler.publish(
                NewJob(with_suffix(f"r{number}", rules), "recurring", "x", task_name="task", rules=rules)
            )
        time.sleep(1)  # until they are due by the server's clock
        made = 0
        while due := self.scheduler.due_recurring("large", again_s=60):
            if made < 100:
                self.scheduler.fire_recurring(due.name, due.due, NewJob(f"made{made}", "recurring", "x"))
            else:
                self.scheduler.decline_recurring("another", due.name)
                break
            made += 1
        for name in ("recurring0", "recurring1"):
            self.scheduler.pause_recurring(name, True)
        self.scheduler.tick()
        self.scheduler.declare_recurring([], app="large")
        self.scheduler.purge("recurring")

    def split(self, calls):
        """Split *calls* merged calls into two runs."""
        self.scheduler.pause("type:merging")
        rules = "merge=k most=1000 bytes=1000000"
        ids = [with_suffix(f"split{number}", rules) for number in range(calls)]
        for job_id in ids:
            self.scheduler.publish(NewJob(job_id, "merging", "x" * 700, task_id=job_id, rules=rules))
        self.scheduler.resume("type:merging")
        ((batch, fence),) = self.claims("merger")
        self.scheduler.split_batch(batch, ids[1:], fence=fence)
        for _ in range(2):
            ((batch, fence),) = self.claims("merger")
            self.scheduler.ack_batch_reports(batch, ids, fence=fence)
            self.release("merger")

    def claims(self, worker):
        found = self.client.hgetall(Keys().key("claims", worker))
        return [(job.decode(), fence.decode()) for job, fence in found.items()]

    def release(self, worker):
        self.sequence += 1
        ended = self.claims(worker)[:8]
        self.scheduler.release_and_claim(
            worker,
            acks=ended,
            ends=[EndArguments(*each, "acked") for each in ended],
            sequence=self.sequence,
            inline=True,
        )

    def bury(self, ids):
        self.sequence += 1
        ends = [EndArguments(*each, "rejected") for each in self.claims("versatile") if each[0] in ids]
        self.scheduler.release_and_claim("versatile", acks=[], ends=ends, sequence=self.sequence, inline=True)

    def sync(self, worker):
        held = [ClaimReport(*each, 1000) for each in self.claims(worker)]
        self.scheduler.sync(worker, held, slots=100, other=0, draining=False)

    def publish_later(self, number):
        for _ in range(number):
            self.sequence += 1
            self.scheduler._run("publish", self._job(f"-later{self.sequence}", delay_us=1))

    def ingest(self, number):
        """Ingest messages of stock Celery with the size of a small task."""
        name, messages = f"list of {self.types[0]}", [str(each).zfill(700).encode() for each in range(number)]
        self.client.lpush(name, *messages)
        assert self.scheduler.tick([f"empty {each}" for each in range(399)] + [name]).lists == [name]
        for each, message in enumerate(messages):
            self.scheduler.ingest(name, [NewJob(f"stock{each}", self.types[0], message)])

    def die(self, worker):
        """Let a worker's timeout elapse, and tick."""
        now_us = self.reader.now_us()
        self.client.zadd(Keys().key("heartbeats"), {worker: now_us - 60_000_000})
        self.client.hset(Keys().key("clock"), mapping={"ticked": now_us, "grace": now_us - 60_000_000})
        self.scheduler.tick()

    def do_nothing(self):
        for _ in range(NOTHING_CALLS):
            self.client.evalsha(self._nothing, 0)
        self._nothing_calls += NOTHING_CALLS

    def run_due(self, due_us):
        """Tick from *due_us*, the ETA of many jobs, until none of them is scheduled."""
        time.sleep(max(0, due_us - self.reader.now_us()) / 1_000_000)
        while self.client.zcard(Keys().key("scheduled")):
            self.scheduler._run_together([(server_function("tick"), ())])
            self.note_times()

    def cancel(self):
        """Cancel all waiting jobs of a key. Return the time."""
        app = Celery("large", broker="memory://")
        self.client.config_set("slowlog-log-slower-than", LONG_FROM_US)  # the log of all calls would be too long
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        choice = choose_jobs(self.reader, JobFilter(key=self._key()), CANCELLABLE[:-1])
        chosen_s = time.monotonic() - began_s
        done = cancel_jobs(app, self.scheduler, choice.chosen).done
        took_s = time.monotonic() - began_s
        cpu_s = time.process_time() - began_cpu_s
        self.note_times()
        self.client.config_set("slowlog-log-slower-than", NOTED_FROM_US)
        print(
            f"{done:,} jobs cancelled in {took_s:.1f} s; chosen in {chosen_s:.1f} s; {cpu_s:.1f} s of CPU", flush=True
        )
        return _times([1000 * took_s])

    # -- costs

    def forget_times(self, seed=1):
        """Begin to measure. The same calls on the same data follow, in each repetition."""
        self.random = random.Random(seed)
        self.sequence = 0
        self._numbers, self._pages = count(), count(1)
        self.took_ms, self._occurrences = {name: {} for name in FUNCTION_NAMES}, Counter()
        self.scheduler.calls.clear()
        self._nothing = self.client.script_load(NOTHING)
        self._nothing_calls, self._nothing_ms = 0, {}
        self.client.config_set("slowlog-max-len", 10_000)
        self.client.config_set("slowlog-log-slower-than", NOTED_FROM_US)
        self.client.slowlog_reset()

    def note_times(self):
        """Read and reset the slow log, whose length is limited."""
        way = self.scheduler.way
        took_ms = {way.command(name, "", ())[1]: times for name, times in self.took_ms.items()}
        took_ms[self._nothing] = self._nothing_ms
        for entry in reversed(self.client.slowlog_get(10_000)):
            words = entry["command"].split()
            if words[0] in (b"EVALSHA", b"FCALL"):
                call = tuple(words[1:6])
                self._occurrences[call] += 1
                took_ms[words[1].decode()][call, self._occurrences[call]] = entry["duration"] / 1000
        self.client.slowlog_reset()
        self.client.echo(b"x" * SETTLING_BYTES)

    def script_times(self):
        """Return the times of each script."""
        return best_script_times([self.noted()])

    def noted(self):
        """Return the number of calls of each script, and the calls that were noted, with their times in ms."""
        return {name: (self.scheduler.calls[name], dict(noted)) for name, noted in self.took_ms.items()}

    def nothing_times(self):
        return _with_short(list(self._nothing_ms.values()), self._nothing_calls)

    def report_times(self):
        """Return the times of each report as text, and its CPU time in this process."""
        tasks = [key.decode().rpartition(":")[2] for key in self.pending_tasks(200)]
        reader = self.reader
        reports = {
            "pending": lambda: NEXT_JOBS.text(next_jobs(reader, None, 20)),
            "status": lambda: status_text(Report(reader).status()),
            "metrics": lambda: metrics_text(read_metrics(reader)),
            "scale": lambda: as_json(scale_of_types(Report(reader).status())),
            "jobs": lambda: as_json(jobs_page(reader, JobFilter(), 100)),
        }
        if self.keys:
            reports["keys"] = lambda: keys_text(find_keys(reader, "*", 100))
            reports["a key"] = lambda: as_json(show_key(reader, self._key()))
            reports["jobs of a key"] = lambda: as_json(jobs_page(reader, JobFilter(key=self._key()), 100))
        repetitions = 20 if len(self.types) <= 1000 else REPETITIONS if len(self.types) <= 10_000 else 1
        calls = {name: [report] * repetitions for name, report in reports.items()}
        calls["explain"] = [lambda task=task: explanation_text(explain(reader, task)) for task in tasks]
        times = {}
        for name, repeated in calls.items():
            took, used = zip(*map(_ms, repeated), strict=True)
            times[name], times[f"{name}, CPU"] = _times(took), _times(used)
        return times

    def _key(self):
        """Return a key for which jobs wait."""
        (key,) = self.client.zrange(Keys().key("waiting_keys"), 0, 0)
        return key.decode()

    def pending_tasks(self, number):
        found, prefix = set(), Keys().key("task", "").encode()
        for _ in range(1_000 * number):
            key = self.client.randomkey()
            if key.startswith(prefix):
                found.add(key)
            if len(found) == number:
                return found
        raise LookupError(f"only {len(found)} of {number} tasks found among {self.client.dbsize():,} keys")


def best_script_times(runs):
    """Return the times of each script: for each call, its shortest time in *runs*, the results of `noted`."""
    times = {}
    for name in runs[0]:
        calls = min(run[name][0] for run in runs)
        noted = [run[name][1] for run in runs]
        in_all = set(noted[0]).intersection(*noted[1:])
        if calls:
            times[name] = _with_short([min(run[call] for run in noted) for call in in_all][:calls], calls)
    return times


def _with_short(noted, calls):
    """Return the times of *calls* calls; a call that was not noted took less than `NOTED_FROM_US`."""
    return _times([NOTED_FROM_US / 1000] * (calls - len(noted)) + noted)


def _times(values):
    values = sorted(values)
    high = values[min(len(values) - 1, int(len(values) * 0.999))]
    return Times(len(values), statistics.median(values), high, values[-1])


def _ms(call):
    """Return the duration of a call and its CPU time in this process, in ms."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    call()
    return (time.perf_counter() - began_s) * 1000, (time.process_time() - began_cpu_s) * 1000
