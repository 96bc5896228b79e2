"""What counts as kept back by a key is what would not start if slots were free: the fleet is given the slots to see."""

import random

import pytest
from click import unstyle

from celery_affinity.reports import key_usage
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.key_usage import keys_text
from celery_affinity.reports.metrics import metrics_text, read_metrics
from celery_affinity.reports.scale import scale_of
from celery_affinity.reports.status import Report

TYPES = ("pdf", "excel")


def kept_back(reader):
    return {each.type: each.kept_back for each in Report(reader).status().types}


def start_all(fleet):
    """Give the fleet more slots than there are jobs. Return how many jobs start, by type."""
    for type_ in TYPES:
        fleet.join(f"more-{type_}", type_, slots=100)
    fleet.scheduler.tick()
    return {type_: len(fleet.jobs(f"more-{type_}")) for type_ in TYPES}


@pytest.mark.parametrize(
    ("rules", "start"),
    [
        ("key=k limit=1", 1),
        ("key=k limit=5", 5),
        ("key=k limit=99", 12),
        ("key=rate%3Ak rate=4/60000000", 4),
        ("key=k limit=1 order=1", 1),
        ("key=k limit=5 key=rate%3Ak rate=3/60000000", 3),
        ("key=k limit=3 key=rate%3Ak rate=5/60000000", 3),
        ("key=rate%3Ak rate=5/60000000 key=k limit=99", 5),
        ("key=rate%3Ak rate=9/60000000 key=k limit=0", 0),
    ],
)
def test_jobs_for_which_their_key_has_room_are_not_kept_back(fleet, reader, rules, start):
    fleet.join("other", "excel")
    for number in range(12):
        fleet.publish(f"{number}{'&' if ' key=' in rules else '!'}", "pdf", rules=rules.replace("limit=0", "limit=1"))
    if "limit=0" in rules:
        fleet.scheduler.configure({"limits": "k=0"})
    assert kept_back(reader)["pdf"] == 12 - start
    assert scale_of(Report(reader).status(), ["pdf"]).waiting == start
    assert start_all(fleet)["pdf"] == start
    assert kept_back(reader)["pdf"] == 12 - start, "none of the others could start"


@pytest.mark.parametrize("seed", range(8))
def test_whatever_keys_there_are_those_that_count_as_waiting_for_slots_start_when_there_are_slots(fleet, reader, seed):
    draw = random.Random(seed)
    fleet.join("worker", "pdf", slots=4)
    for number in range(60):
        key = draw.randrange(6)
        rules = f"key=rate%3A{key} rate={key + 1}/60000000" if key > 3 else f"key=k{key} limit={key + 1}"
        fleet.publish(f"{number}!", "pdf", rules=rules, priority=draw.randrange(3), on_demand=draw.random() < 0.2)
    fleet.scheduler.configure({"limits": "k0=0 k1=7"})
    fleet.scheduler.pause("key:k2")
    fleet.scheduler.tick()
    status = Report(reader).status()
    (pdf,) = status.types
    assert 0 < pdf.kept_back < pdf.pending
    assert pdf.pending - pdf.kept_back == start_all(fleet)["pdf"]


def test_a_key_of_two_types_has_its_room_once(fleet, reader):
    fleet.join("other", "drawing")
    for number in range(8):
        for type_ in TYPES:
            fleet.publish(f"{type_}{number}!", type_, rules="key=k limit=5")
    found = kept_back(reader)
    assert sum(found.values()) == 2 * 8 - 5
    assert sum(start_all(fleet).values()) == 5


def test_of_very_many_keys_some_are_looked_at_and_the_number_is_an_estimate(fleet, reader, monkeypatch):
    monkeypatch.setattr(key_usage, "_MAX_KEYS", 20)
    monkeypatch.setattr(key_usage, "_SAMPLE_SIZE", 2)
    for key in range(50):
        for number in range(4):
            fleet.publish(f"{key}-{number}!", "pdf", rules=f"key={key} limit={3 if key < 25 else 1}")
    before = fleet.scheduler.client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"]
    jobs = key_usage.startable_keyed_jobs(reader, reader.now_us(), *key_usage.waiting_key_facts(reader))["pdf"]
    after = fleet.scheduler.client.info("commandstats")["cmdstat_hgetall"]["calls"]
    assert abs(jobs - 25 * 2) <= 15
    assert after - before == 20


@pytest.mark.parametrize("limit", [0, 2, 5])
def test_a_type_at_its_limit_is_seen_in_the_status_and_in_what_scales_the_fleet(fleet, reader, limit):
    fleet.scheduler.configure({"limits": f"type%3Apdf={limit}"})
    fleet.scheduler.tick()
    fleet.join("worker", "pdf", slots=4)
    for number in range(9):
        fleet.publish(f"{number}", "pdf")
    status = Report(reader).status()
    (pdf,) = status.types
    running = min(limit, 4)
    assert (pdf.limit, pdf.running, pdf.pending) == (limit, running, 9 - running)
    assert pdf.kept_back_by_limit == 9 - limit
    assert scale_of(status, ["pdf"]).waiting == limit - running
    line = unstyle(status_text(status)).splitlines()[3]
    said = "closed: its limit is 0" if not limit else f"{9 - limit} wait because of its limit: {running} of {limit} run"
    assert line.endswith(said)
    metrics = metrics_text(read_metrics(reader))
    assert f'celery_affinity_kept_back_jobs{{type="pdf",rule="type limit"}} {9 - limit}' in metrics
    found = key_usage.find_keys(reader, "type:p*", 10)
    assert [(each.type, each.limit, each.running, each.waiting) for each in found.types] == [
        ("pdf", limit, running, 9 - running)
    ]
    assert keys_text(found).splitlines()[-1].split() == ["type:pdf", str(limit), str(running), str(9 - running)]
    assert key_usage.find_keys(reader, "pdf", 10).types == []


def test_a_job_that_several_rules_keep_back_is_counted_once(fleet, reader):
    fleet.scheduler.configure({"limits": "type%3Apdf=3", "reserve": "pdf:queued=1"})
    fleet.scheduler.tick()
    fleet.join("worker", "pdf", slots=2)
    for number in range(9):
        fleet.publish(f"plain{number}", "pdf")
        fleet.publish(f"keyed{number}!", "pdf", rules="key=k limit=2")
    lines = [
        line for line in metrics_text(read_metrics(reader)).splitlines() if line.startswith("celery_affinity_kept_back")
    ]
    counts = {line.split('rule="')[1].split('"')[0]: int(float(line.split()[-1])) for line in lines}
    (pdf,) = Report(reader).status().types
    assert counts["key"] + counts["type limit"] + counts["reserve"] <= pdf.pending
    assert min(counts["key"], counts["type limit"], counts["reserve"]) > 0
