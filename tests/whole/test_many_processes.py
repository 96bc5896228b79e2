"""Many processes at once: each job runs exactly once."""

import sys
from collections import Counter

from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.apps.publisher import TYPES
from ..support.ledger import Ledger
from ..support.processes import Process, start_worker, wait_until

JOBS, PUBLISHERS, WORKERS = 8_000, 8, 8


def test_eight_workers_run_8000_jobs_exactly_once(valkey, redis_client, tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    env = {"LEDGER": str(ledger.path)}
    report = Report(Reader(redis_client, Keys()))
    for number in range(WORKERS):
        queues = [TYPES[(number + step) % 5] for step in range(1 + number % 3)]
        pool = ("threads", "prefork", "solo")[number % 3]
        start_worker(APP, valkey.url, queues, concurrency=2, pool=pool, extra=["-l", "WARNING"], env=env)
    wait_until(lambda: len(report.status().workers) == WORKERS, 60, "all workers join")
    publishers = []
    for number in range(PUBLISHERS):
        command = [sys.executable, "-m", "tests.support.apps.publisher", str(number), str(PUBLISHERS), str(JOBS)]
        publishers.append(Process(f"publisher-{number}", command, {"BROKER_URL": valkey.url, **env}))

    def all_ran():
        status = report.status()
        published = all("published" in publisher.log() for publisher in publishers)
        busy = sum(worker.slots - worker.free for worker in status.workers)
        return published and not busy and not any(each.pending for each in status.types)

    wait_until(all_ran, 240, "all jobs ran")
    starts = ledger.starts()
    assert Counter(starts.values()) == {1: JOBS}
    assert starts.keys() == {str(job) for job in range(JOBS)}
    assert report.status().dead == 0
