"""Workers report successful runs with their sizes, and the fleet learns the run times."""

import json

from celery_affinity.reports.run_times import run_time_rows
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.processes import wait_until

CONF = json.dumps({"affinity_task_rules": {f"{APP}.pdf": {"size": "{seconds}"}}})


def test_worker_reports_successful_runs_with_their_sizes(fleet):
    fleet.start("worker", "pdf", "excel", pool="threads", concurrency=4, heartbeat_s=1.0, CONF=CONF)
    runs = [fleet.tasks["pdf"].delay(f"job-{number}", number % 4 * 0.1) for number in range(24)]
    runs.append(fleet.tasks["excel"].delay("without-size", 0.2))
    failed = fleet.tasks["fail"].apply_async(("fails",), affinity="pdf")
    for result in runs:
        result.get(timeout=30)
    failed.get(timeout=30, propagate=False)

    def learned():
        return {row.task.rpartition(".")[2]: row for row in run_time_rows(Reader(fleet.redis, Keys()))}

    wait_until(lambda: sum(row.runs for row in learned().values()) == 25, 30, "all runs are reported")
    assert {*learned()} == {"pdf", "excel"}, "failed runs do not count"
    pdf, excel = learned()["pdf"], learned()["excel"]
    assert (pdf.runs, excel.runs) == (24, 1)
    assert 0.1 < pdf.mean_size < 0.2
    assert 0.5 < pdf.per_size_s < 2, "a second more per second of size"
    assert excel.expected_s > 0.2
    assert (excel.mean_size, excel.per_size_s, excel.typical_error) == (1, 0, 1)
