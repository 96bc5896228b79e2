"""A worker keeps running and logs no more than ten lines a second about bad messages, including Celery's own lines."""

import re
from collections import Counter

from celery_affinity.log_limit import LINES
from celery_affinity.worker.install import _MESSAGE_LOGGERS

from ..support.processes import wait_until

CALLS = 300

_RECORD = re.compile(r"^\[[\d-]+ ([\d:]+),\d+: (?:ERROR|WARNING|CRITICAL)/\w+\] (.*)", re.MULTILINE)


def test_flood_of_unknown_tasks_writes_ten_lines_a_second(fleet):
    worker = fleet.start("one", "pdf", pool="solo")
    for number in range(CALLS):
        fleet.app.send_task(f"no.such.task.{number % 3}", affinity="pdf")
    fleet.tasks["late"].apply_async(("good", 0), affinity="pdf").get(timeout=30)
    counts = re.compile(r"celery_affinity: (\d+) log lines were suppressed")
    wait_until(lambda: counts.search(worker.log()), 10, "the suppressed lines are counted")
    worker.term()
    assert worker.wait(30) == 0
    records = _RECORD.findall(worker.log())
    unknown = [text for _, text in records if text.startswith("Received unregistered task")]
    suppressed = sum(map(int, counts.findall(worker.log())))
    assert 0 < len(unknown) < CALLS
    assert len(unknown) + suppressed >= CALLS
    per_second = Counter(second for second, text in records if not counts.match(text))
    assert max(per_second.values()) <= 2 * LINES  # a calendar second overlaps two seconds of the limit
    assert len(worker.log().splitlines()) < 200
    assert "celery.worker.consumer.consumer" in _MESSAGE_LOGGERS
