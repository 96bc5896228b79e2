"""Keys that remain after all workers have left: each has a limit or an expiry."""

import random
from dataclasses import replace

import pytest

from celery_affinity.lab.scripts_engine import CLOCK
from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import KEYS, Keys
from celery_affinity.schema.values import withdrawn_mark
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

#: Key -> its bound.
STAY = {
    "schema": "one number",
    "fence": "one number",
    "claim_number": "one number",
    "clock": "two fields",
    "settings": "a field for each setting",
    "conf_last": "a field for each setting",
    "counters": "a field for each kind of event",
}

#: Maximum seconds that each key is retained.
END = {
    "job:%s": 60,
    "task:%s": 60,
    "revoked:%s": 10_800,
    "revoked_stamp:%s": 10_800,
    "lane:key:metrics:%s": 86_400,
    "run_times": 30 * 86_400,
    "trend": 3_600,
    "requeues": 86_400,
    "trend_written": 60,
    "history:%s": 7 * 86_400,
    "history:base:%s": 7 * 86_400,
    "history:names": 7 * 86_400,
    "history:written": 5,
    "conf_by_app:%s": 30 * 86_400,
}


def check_what_is_left(client):
    left = {}
    for name in client.scan_iter("*", count=1000):
        short = name.decode().removeprefix(Keys().base)
        if short in STAY:
            assert client.type(name) == b"string" or client.hlen(name) < 50, f"{short} grows"
        elif short != CLOCK:
            longest_s = max(
                (s for template, s in END.items() if short.startswith(template.removesuffix("%s"))), default=0
            )
            ttl_ms = client.pttl(name)
            if ttl_ms == -1 or ttl_ms > 1000 * longest_s:  # -2: it has just expired
                left[short] = ttl_ms
    assert not left, f"these stay: {left}"


def test_documented_keys_are_in_the_table():
    templates = {template for template, _, _ in KEYS.values()}
    assert templates >= {*STAY, *END}


def test_cancelled_consumers_with_running_jobs_leave_no_data(fleet, redis_client):
    for number in range(40):
        worker = f"w{number}"
        fleet.join(worker, f"old{number}", f"older{number}", slots=3)
        for job in range(5):
            fleet.publish(f"j{number}.{job}", f"old{number}")
        ran = fleet.inbox(worker)
        fleet.scheduler.advance(1)
        following = fleet.end(worker, ran[0], most_ahead=2)
        fleet.join(worker, f"new{number}", slots=1)  # more claims than the one slot
        fleet.end(worker, *following[:1], outcome="returned")
        fleet.end(worker, *ran[1:], *following[1:])
        fleet.scheduler.leave(worker)
        fleet.scheduler.purge(f"old{number}")
    check_what_is_left(redis_client)


def test_type_after_its_last_worker_withdrew_leaves_no_data(fleet, redis_client):
    fleet.join("worker", "mail", slots=2)
    fleet.publish("a", "mail")
    (claim,) = fleet.inbox("worker")
    fleet.join("worker", withdrawn_mark("mail"), slots=2)
    fleet.scheduler.advance(1)
    fleet.end("worker", claim)
    fleet.scheduler.leave("worker")
    check_what_is_left(redis_client)


def test_app_data_expires_a_month_after_the_last_heartbeat(fleet, redis_client):
    for number in range(50):
        joining = JoinArguments(f"w{number}", "name", ["pdf"], 1, app=f"app {number}")
        fleet.scheduler.join(joining, shared_settings(Settings()))
        redis_client.persist(Keys().key("conf_by_app", f"app%20{number}"))
        fleet.sync(f"w{number}")  # the last heartbeat
        fleet.scheduler.leave(f"w{number}")
    check_what_is_left(redis_client)


class Life:
    """Random events of a fleet, and then the fleet's end."""

    def __init__(self, fleet, seed):
        self.fleet, self.scheduler = fleet, fleet.scheduler
        self.random = random.Random(seed)
        self.workers, self.jobs, self.number = [], [], 0

    def live(self, steps):
        moves = [self.enter, self.publish, self.publish, self.publish, self.work, self.work, self.work, self.change]
        moves += [self.go, self.revoke, self.pass_time, self.replay, self.stand_still]
        for _ in range(steps):
            self.random.choice(moves)()

    def enter(self):
        self.number += 1
        worker = f"w{self.number}"
        self.workers.append(worker)
        name, slots = self.name(worker), self.random.randint(0, 4)
        joining = JoinArguments(worker, name, self.types(), slots, app=f"a{self.number}")
        self.scheduler.join(joining, shared_settings(Settings(max_deliveries=2)))

    def name(self, worker):
        """Return a node name, shared by several workers."""
        return f"n{int(worker[1:]) % 3}"

    def types(self):
        """Return types, some of them new."""
        found = [f"t{self.number - self.random.randint(0, 4)}" for _ in range(self.random.randint(1, 3))]
        return sorted({each if self.random.random() < 0.8 else withdrawn_mark(each) for each in found})

    def publish(self):
        self.number += 1
        jobs = [
            NewJob(
                f"j{self.number}.{each}",
                f"t{self.number - self.random.randint(0, 4)}",
                "message",
                on_demand=self.random.random() < 0.5,
                priority=self.random.randint(0, 10),
                delay_us=self.random.choice([0, 0, 0, 3_000_000]),
                task_id=self.random.choice([f"task{self.number}", "the same", ""]),
                expires_us=self.random.choice([None, None, 2_000_000, 0]),
                stamps=self.random.choice([(), (), ("of:a",), ("of:a", f"of:{self.number}")]),
            )
            for each in range(3)
        ]
        jobs += [
            replace(job, id=f"{job.id}!", rules=f"key=k{self.number - self.random.randint(0, 6)} {rule}")
            for job, rule in zip(jobs, ("limit=1", "limit=2", "limit=1 order=1"), strict=True)
        ]
        jobs.append(replace(jobs[0], id=f"j{self.number}.r!", rules=f"key=rate%3A{self.number % 5} rate=2/1000000"))
        self.jobs += [job.id for job in jobs]
        self.scheduler.publish(*jobs)

    def worker(self):
        return self.random.choice(self.workers) if self.workers else "nobody"

    def work(self):
        worker = self.worker()
        for claim in self.fleet.inbox(worker):
            if self.random.random() < 0.3:
                self.scheduler.release_and_claim(
                    worker, acks=[(claim.job_id, claim.fence)], ends=[], sequence=0, inline=False
                )
            if self.random.random() < 0.7:
                outcome = self.random.choice(["acked", "acked", "rejected", "unsettled", "returned"])
                self.fleet.end(worker, claim, outcome=outcome, most_ahead=self.random.choice([0, 3]))

    def change(self):
        worker = self.worker()
        if worker in self.workers:
            joining = JoinArguments(worker, self.name(worker), self.types(), self.random.randint(0, 4), app="a0")
            self.scheduler.join(joining, shared_settings(Settings()))

    def stand_still(self):
        self.scheduler.heartbeat(self.worker(), loop_runs=self.random.random() < 0.5)

    def revoke(self):
        self.scheduler.revoke(self.random.choice([[f"task{self.number}"], ["the same"]]), ["of:a"], keep_s=10)

    def replay(self):
        self.scheduler.replay(self.random.sample(self.jobs, min(5, len(self.jobs))))

    def pass_time(self):
        self.scheduler.advance(self.random.choice([0.01, 1, 3]))
        self.scheduler.tick()

    def go(self):
        """Leave, be reported dead, or stop sending heartbeats."""
        if self.workers:
            worker = self.workers.pop(self.random.randrange(len(self.workers)))
            if self.random.random() < 0.7:
                self.random.choice([self.scheduler.leave, self.scheduler.recover])(worker)

    def end(self):
        """Let all workers leave and all jobs end. Silent workers are removed by timeout."""
        for _ in range(40):
            self.scheduler.advance(1)
            self.scheduler.tick()
        for first in range(0, len(self.jobs), 10):
            ids = self.jobs[first : first + 10]
            self.scheduler.replay(ids)
        for type_ in {f"t{number}" for number in range(-5, self.number + 1)}:
            self.scheduler.purge(type_)
        while ending := self.scheduler.next_report("shop", again_s=60):
            self.scheduler.ack_report([ending.job_id])
        self.scheduler.drop(self.jobs)


@pytest.mark.parametrize("seed", range(8))
def test_fleet_that_left_leaves_only_limited_or_expiring_keys(fleet, redis_client, seed):
    life = Life(fleet, seed)
    life.live(250)
    life.end()
    check_what_is_left(redis_client)
