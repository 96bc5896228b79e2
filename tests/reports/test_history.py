"""The history of a fleet: points that a dispatcher writes, and the report that reads them."""

import random
import zlib

import pytest

from celery_affinity.dispatcher.dispatcher import HistoryWriter
from celery_affinity.reports import history
from celery_affinity.reports.history import LONG_S, SHORT_S, Base, Point, TypePoint, read_bases, read_history
from celery_affinity.reports.status import Report
from celery_affinity.schema.keys import Keys

KEY = Keys().key
SHORT, LONG = KEY("history", str(SHORT_S)), KEY("history", str(LONG_S))


@pytest.fixture
def write(fleet):
    """Write the point of a new interval, as the tick of another process would."""

    def write(seconds=SHORT_S):
        fleet.scheduler.advance(seconds)
        fleet.scheduler.client.delete(KEY("history_written"))
        HistoryWriter().write(fleet.scheduler, fleet.now_us)

    return write


def run(fleet, *jobs, waited_s=0, outcome="acked"):
    for job in jobs:
        fleet.publish(job, "pdf")
    fleet.scheduler.advance(waited_s)
    fleet.end("worker", *fleet.inbox("worker"), outcome=outcome)
    fleet.hand_over("worker")


def test_points_show_throughput_failures_waits_and_slots(fleet, reader, write):
    fleet.join("worker", "pdf", slots=5)
    write()
    run(fleet, "a", "b", "c", waited_s=2)
    run(fleet, "d", outcome="failed")
    for number in range(7):
        fleet.publish(f"e{number}", "pdf")
    fleet.publish("alone", "drawing")
    write(SHORT_S - 2)
    found = read_history(reader, "15m")
    types = {row.type: row for row in found.types}
    assert (found.step_s, len(found.at_s), found.at_s[-1]) == (10, 90, fleet.now_us // 10_000_000 * 10)
    pdf = types["pdf"]
    assert (pdf.ended_per_s[-1], pdf.failed_per_s[-1], pdf.waiting[-1]) == (0.4, 0.1, 2)
    assert pdf.p95_s[-1] == pytest.approx(0.0037, rel=0.05), "of the first bucket, which ends at 3.9 ms"
    assert types["drawing"].waiting[-1] == 1
    assert (pdf.ended_per_s[-2], pdf.ended_per_s[-3]) == (0, None), "before the first point nothing is known"
    (slots,) = found.cohorts
    assert (slots.slots[-1], slots.busy[-1]) == (5, 5)
    assert slots.memory_bytes[-1] > 100_000


def test_long_periods_combine_points_and_leave_gaps(fleet, reader, write):
    fleet.join("worker", "pdf", slots=5)
    groups = set()
    for seconds in (300, 300, 300, 3600, 300):
        write(seconds)
        groups.add(fleet.now_us // 1_800_000_000)
        run(fleet, f"a{seconds}{fleet.now_us}")
    write(300)
    groups.add(fleet.now_us // 1_800_000_000)
    day = read_history(reader, "1d").types[0]
    known = [place for place, value in enumerate(day.ended_per_s) if value is not None]
    assert known == [288 - 17, 288 - 16, 288 - 15, 288 - 3, 288 - 2, 288 - 1]
    assert day.ended_per_s[-1] == round(1 / 300, 4)
    week = read_history(reader, "1w")
    assert (week.step_s, len(week.at_s)) == (1800, 336)
    assert [value for value in week.types[0].waiting if value is not None] == [0] * len(groups)
    assert len(read_bases(reader, LONG_S)) == 4
    assert len(read_bases(reader, SHORT_S)) == 1


def test_one_process_writes_each_point(fleet, write):
    client = fleet.scheduler.client
    write()
    HistoryWriter().write(fleet.scheduler, fleet.now_us)
    assert client.llen(SHORT) == client.llen(LONG) == 1
    writer = HistoryWriter()
    for _ in range(3):
        client.delete(KEY("history_written"))
        writer.write(fleet.scheduler, fleet.now_us)
    assert client.llen(SHORT) == 2, "a process writes once per interval"
    for _ in range(3):
        write()
    assert (client.llen(SHORT), client.llen(LONG)) == (5, 1)


def test_series_of_fifty_types_take_two_megabytes(fleet, reader):
    chance, client = random.Random(5), fleet.scheduler.client
    names = {history.checksum_of(f"type-{number}"): f"type-{number}" for number in range(50)}
    client.hset(KEY("history_names"), mapping=names)

    def point(number):
        def row():
            return TypePoint(
                chance.randrange(5000), chance.randrange(100), chance.randrange(9999), 0.3, chance.random()
            )

        return Point(number, 400, chance.randrange(400), 10**9, 0.5, 9.0, {checksum: row() for checksum in names})

    for key, step_s in ((SHORT, SHORT_S), (LONG, LONG_S)):
        last, length = fleet.now_us // (step_s * 1_000_000), history.KEPT[step_s][0]
        client.rpush(key, *(point(last - number).packed() for number in range(length)))
    assert sum(client.memory_usage(key, samples=0) for key in (SHORT, LONG)) < 2_000_000
    found = read_history(reader, "1w")
    assert len(found.types) == 50
    assert all(value is not None for value in found.types[0].ended_per_s[1:])


@pytest.mark.parametrize(
    "written", [b"ghost", b"", zlib.compress(b"x" * 10_000_000), zlib.compress(b"[1, {}"), b"\x78"]
)
def test_foreign_data_in_the_series_is_ignored(fleet, reader, write, written):
    client = fleet.scheduler.client
    fleet.join("worker", "pdf")
    for key in (SHORT, LONG, KEY("history_base", "10"), KEY("history_base", "300")):
        client.lpush(key, written)
    write()
    assert read_history(reader, "15m").types[0].waiting[-1] == 0
    assert (Point.unpacked(written), Base.unpacked(written)) == (None, None)
    client.delete(SHORT)
    client.set(SHORT, written)
    write()  # raises nothing: a tick continues
    assert read_history(reader, "15m").types == []


def test_foreign_values_in_a_base_are_left_out(fleet, reader, write):
    fleet.join("worker", "pdf", slots=5)
    run(fleet, "first")
    base = zlib.compress(b'[1, {"pdf": {"queued 03": [], "done 01": 7, "failed 00": "1e9"}, "excel": {}}]')
    for step_s in (SHORT_S, LONG_S):
        fleet.scheduler.client.lpush(KEY("history_base", str(step_s)), base)
    write()
    assert read_history(reader, "15m").types[0].ended_per_s[-1] == 0.1
    assert Base.unpacked(zlib.compress(b'[1, {"pdf": 3}]')) is None


def test_type_beyond_a_full_base_has_no_increase(fleet, reader, write, monkeypatch):
    fleet.join("worker", "pdf", slots=5)
    fleet.join("other", "excel")
    run(fleet, "old")
    monkeypatch.setattr(history, "MAX_TYPES", 1)
    write()  # of excel alone: the first name
    fleet.publish("waits", "pdf", delay_s=0)
    for number in range(6):
        fleet.publish(f"waits{number}", "pdf")
    write()
    (pdf,) = [row for row in read_history(reader, "15m").types if row.type == "pdf"]
    assert (pdf.waiting[-1], pdf.ended_per_s[-1]) == (2, 0), "its old jobs did not end in this interval"


def test_point_bounds_counts_and_times_beyond_its_fields(fleet):
    row = TypePoint(2**40, 2**40, 2**40, 1e12, 0.0)
    point = Point.unpacked(Point(7, 2**40, 2**40, 2**70, None, 5.0, {1: row}).packed())
    assert (point.slots, point.memory_bytes, point.p50_s) == (2**32 - 1, 2**64 - 1, None)
    assert point.p95_s == pytest.approx(5, rel=0.05)
    assert point.types[1].ended == 2**32 - 1
    assert point.types[1].p95_s == 0.001


def test_missing_right_to_info_leaves_the_memory_out(fleet, reader, write, monkeypatch):
    ask = type(reader).ask

    def without_info(self, commands, **options):
        if commands and commands[0][0] == "info":
            return [None]
        return ask(self, commands, **options)

    monkeypatch.setattr(type(fleet.scheduler.reader), "ask", without_info)
    fleet.join("worker", "pdf")
    write()
    assert read_history(reader, "15m").cohorts[0].memory_bytes[-1] == 0


def test_status_has_the_recent_p95_of_all_waits(fleet, reader, write):
    fleet.join("worker", "pdf", slots=1)
    write()
    assert Report(reader).status().wait_p95_s is None
    fleet.publish("first", "pdf")
    fleet.publish("second", "pdf")
    fleet.scheduler.advance(60)
    fleet.end("worker", *fleet.inbox("worker"))
    fleet.inbox("worker")
    fleet.hand_over("worker")
    write()
    assert 30 < Report(reader).status().wait_p95_s < 64
    fleet.scheduler.advance(600)
    assert Report(reader).status().wait_p95_s is None, "the last point is old"


def test_recent_waits_are_those_since_the_last_long_point(fleet, reader, write):
    fleet.join("worker", "pdf", slots=1)
    assert history.recent_waits_s(reader, 0.99) == {}
    run(fleet, "old", waited_s=2000)
    write()
    assert history.recent_waits_s(reader, 0.99) == {}, "the wait of the old job is over"
    fleet.publish("first", "pdf")
    fleet.publish("second", "pdf")
    fleet.scheduler.advance(60)
    fleet.end("worker", *fleet.inbox("worker"))
    fleet.inbox("worker")
    fleet.hand_over("worker")
    (wait_s,) = history.recent_waits_s(reader, 0.99).values()
    assert 30 < wait_s < 64
