"""Whether a queue grows: notes of some minutes ago, beside what waits now."""

import pytest
from click import unstyle

from celery_affinity.dispatcher.dispatcher import TrendNotes
from celery_affinity.reports import type_metrics
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.status import Report
from celery_affinity.schema.keys import Keys

NOTES = Keys().key("trend")


def note(fleet, reader):
    fleet.scheduler.client.lpush(NOTES, type_metrics.note_trends(reader))


def types(reader):
    return {each.type: each for each in Report(reader).status().types}


def test_status_says_which_queue_grows_and_by_how_much(fleet, reader):
    fleet.join("worker", "pdf", "excel", slots=2)
    note(fleet, reader)
    for number in range(20):
        fleet.publish(f"a{number}", "pdf")
    fleet.publish("b", "excel")
    fleet.scheduler.advance(120)
    fleet.end("worker", *fleet.inbox("worker")[:1])
    fleet.hand_over("worker")
    found = types(reader)["pdf"].trend
    assert (found.seconds, found.before, found.published, found.ended) == (120, 0, 20, 1)
    assert found.grows
    assert "grows by 17 in 2 min 0 s: 20 published, 1 ended" in unstyle(status_text(Report(reader).status()))
    assert not types(reader)["excel"].trend.grows


def test_a_type_without_workers_grows_and_no_numbers_are_said_that_nobody_counts(fleet, reader):
    fleet.publish("first", "drawing")
    note(fleet, reader)
    for number in range(20):
        fleet.publish(f"a{number}", "drawing")
    fleet.scheduler.advance(120)
    assert "grows by 20 in 2 min 0 s; no live worker serves it" in unstyle(status_text(Report(reader).status()))


def test_the_oldest_note_within_ten_minutes_is_compared(fleet, reader):
    for seconds in (400, 400, 500):
        fleet.publish(f"a{seconds}{reader.now_us()}", "pdf")
        note(fleet, reader)
        fleet.scheduler.advance(seconds)
    assert types(reader)["pdf"].trend.before == 3


@pytest.mark.parametrize(("last_minute", "grows"), [(5, True), (0, False)])
def test_a_queue_grows_only_if_it_grew_in_the_last_minute(fleet, reader, last_minute, grows):
    fleet.publish("first", "pdf")
    note(fleet, reader)
    for number in range(30):
        fleet.publish(f"a{number}", "pdf")
    fleet.scheduler.advance(240)
    note(fleet, reader)
    fleet.scheduler.advance(50)
    note(fleet, reader)
    for number in range(last_minute):
        fleet.publish(f"b{number}", "pdf")
    fleet.scheduler.advance(10)
    trend = types(reader)["pdf"].trend
    assert (trend.seconds, trend.before, trend.minute_ago, trend.grows) == (300, 1, 31, grows)


@pytest.mark.parametrize(
    "written", ["ghost", "[]", '{"at_us": 1}', '{"at_us": "x", "types": {"pdf": [1]}}', '{"at_us": 1, "types": 3}']
)
def test_notes_that_somebody_else_wrote_are_none(fleet, reader, written):
    fleet.publish("a", "pdf")
    fleet.scheduler.client.lpush(NOTES, written)
    assert types(reader)["pdf"].trend is None
    fleet.scheduler.client.set(NOTES, written)
    assert types(reader)["pdf"].trend is None


def test_one_process_notes_in_a_minute_and_the_notes_are_few(fleet, reader, monkeypatch):
    client = fleet.scheduler.client
    for _ in range(3):
        TrendNotes().write(fleet.scheduler)
    assert client.llen(NOTES) == 1
    for _ in range(20):
        client.delete(Keys().key("trend_written"))
        TrendNotes().write(fleet.scheduler)
    assert client.llen(NOTES) == type_metrics.KEPT
    assert 0 < client.ttl(NOTES) <= 3_600
    client.set(NOTES, "ghost")
    client.delete(Keys().key("trend_written"))
    TrendNotes().write(fleet.scheduler)  # raises nothing: a tick goes on
