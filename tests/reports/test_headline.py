"""The headline: the health of a fleet in one line and a colour."""

from dataclasses import replace

import pytest
from click import unstyle

from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.status import Report, Status, TypeStatus, WorkerStatus
from celery_affinity.reports.stock_messages import StockQueue
from celery_affinity.reports.type_limits import PauseInForce
from celery_affinity.reports.type_metrics import Trend
from celery_affinity.schema.bounds import Bound

PDF = TypeStatus("pdf", pending=2, on_demand=0, claimed=1, oldest_wait_s=1.0, slots=2, free=0)
WORKER = WorkerStatus("a@host", "a", ["pdf"], 2, 0, draining=False, last_heartbeat_s=1.0, withdrawn=[])
HEALTHY = Status([PDF], [WORKER], scheduled=0, dead=3, counters={}, wait_p95_s=0.4)
ALONE = replace(PDF, type="drawing", slots=0)
PAUSED, ALL_PAUSED = PauseInForce("type", "pdf", 1.0, None, ""), PauseInForce("all", "", 1.0, None, "")
GROWS = Trend(600, before=1, now=90, published=99, ended=1, minute_ago=50)
HEALTHY_TEXT = "All types are served. p95 wait 0.4 s. No dead letters in the last hour."


def unserved(*names):
    return replace(HEALTHY, types=[replace(ALONE, type=name) for name in names])


CASES = {
    "healthy": (HEALTHY, "good", HEALTHY_TEXT),
    "dead": (replace(HEALTHY, dead_last_hour=2), "warning", HEALTHY_TEXT.replace("No dead", "2 dead")),
    "empty": (Status([], [], 0, 0, {}), "good", "No type has jobs or workers. No dead letters in the last hour."),
    "unserved": (unserved("a", "b", "c", "d"), "bad", "No worker serves a, b, c and 1 more. p95 wait 0.4 s."),
    "no worker": (replace(unserved("a"), workers=[]), "bad", "No worker is running."),
    "down": (replace(HEALTHY, down={"eu": "refused"}), "bad", "Cohort eu does not answer."),
    "list": (
        replace(HEALTHY, unserved_lists=[StockQueue("mail", ["mail"], 3)]),
        "bad",
        "No worker takes the messages of mail.",
    ),
    "paused": (replace(HEALTHY, pauses=[PAUSED]), "warning", "Paused: pdf. All types"),
    "all paused": (replace(HEALTHY, pauses=[ALL_PAUSED]), "warning", "All types are paused. p95 wait"),
    "full": (replace(HEALTHY, types=[replace(PDF, bound=Bound(2, "refuse"))]), "warning", "Nearly full: pdf."),
    "grows": (replace(HEALTHY, types=[replace(PDF, trend=GROWS)]), "warning", "Pending jobs grow: pdf."),
    "stalled": (replace(HEALTHY, workers=[replace(WORKER, stalled=True)]), "warning", "Blocked event loop: a@host."),
}


@pytest.mark.parametrize("case", CASES)
def test_headline_names_the_worst_findings_first(case):
    status, level, text = CASES[case]
    assert status.headline.level == level
    assert status.headline.text.startswith(text)


def test_status_begins_with_the_headline(fleet, reader):
    fleet.bury("buried", "mail")
    fleet.publish("alone", "drawing")
    status = Report(reader).status()
    assert status.dead_last_hour == 1
    expected = "No worker serves drawing. 1 dead letter in the last hour."
    assert unstyle(status_text(status)).splitlines()[0] == expected
    fleet.scheduler.advance(3601)
    assert Report(reader).status().dead_last_hour == 0
