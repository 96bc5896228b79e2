"""Jobs blocked by a key, a pause or a reserve are pending jobs: all counts and lists include them, with the reason."""

import re
from types import SimpleNamespace

import pytest
from click import unstyle
from prometheus_client import CollectorRegistry

from celery_affinity.cli import explain_text, keys
from celery_affinity.dispatcher import dispatcher
from celery_affinity.dispatcher.dispatcher import Dispatcher
from celery_affinity.reports import jobs, key_usage
from celery_affinity.reports.explain import explain
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.flower import StatusCollector
from celery_affinity.reports.key_usage import show_key
from celery_affinity.reports.metrics import Metrics
from celery_affinity.reports.queue_order import NEXT_JOBS, next_jobs
from celery_affinity.reports.status import Report
from celery_affinity.schema.constants import USUAL_BOUNDS
from celery_affinity.schema.keys import KEYS, Keys

RULES = "key=city%3AHH limit=1"


def publish_five(fleet):
    """Publish a job that holds the key, and five jobs that wait for it: four of its type and one of another type."""
    fleet.join("worker", "pdf", "excel", slots=9)
    fleet.publish("holds!", "pdf", rules=RULES)
    for number in range(3):
        fleet.scheduler.advance(1)
        fleet.publish(f"waits{number}!", "pdf", rules=RULES, priority=number)
    fleet.publish("asked!", "pdf", rules=RULES, on_demand=True)
    fleet.publish("sheet!", "excel", rules=RULES)
    fleet.scheduler.advance(1)


def test_status_and_metrics_count_jobs_blocked_by_keys(fleet, reader):
    publish_five(fleet)
    fleet.join("single", "web")
    fleet.publish("busy", "web")
    fleet.publish("plain", "web")
    status = Report(reader).status()
    found = {each.type: (each.pending, each.on_demand, each.kept_back, each.oldest_wait_s) for each in status.types}
    assert found == {"pdf": (4, 1, 4, 3), "excel": (1, 0, 1, 1), "web": (1, 0, 0, 0)}
    assert status.waiting_keys == 1
    lines = unstyle(status_text(status)).splitlines()
    assert [re.search(r"(\d waits? for a key)?$", line)[0] for line in lines[3:6]] == [
        "1 waits for a key",
        "4 wait for a key",
        "",
    ]
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: Metrics.of(status)))
    assert registry.get_sample_value("celery_affinity_kept_back_jobs", {"type": "pdf", "rule": "key"}) == 4
    assert registry.get_sample_value("celery_affinity_keys_waiting") == 1
    assert registry.get_sample_value("celery_affinity_pending_jobs", {"type": "pdf", "mode": "queued"}) == 3


def test_status_and_metrics_show_pauses_without_double_counting(fleet, reader):
    publish_five(fleet)
    for what in ("type:pdf", "key:city%3AHH", "key:other"):
        fleet.scheduler.pause(what, why="db migration")
    for number in range(2):
        fleet.publish(f"plain{number}", "pdf")
    status = Report(reader).status()
    assert {each.type: each.paused for each in status.types} == {"pdf": True, "excel": False}
    pdf = next(line for line in unstyle(status_text(status)).splitlines() if line.startswith("pdf"))
    assert pdf.endswith("paused; 4 wait for a key")
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: Metrics.of(status)))
    kept_back = {
        (type_, rule): registry.get_sample_value("celery_affinity_kept_back_jobs", {"type": type_, "rule": rule})
        for type_ in ("pdf", "excel")
        for rule in ("key", "pause")
    }
    assert kept_back == {("pdf", "key"): 4, ("pdf", "pause"): 2, ("excel", "key"): 1, ("excel", "pause"): 0}
    assert registry.get_sample_value("celery_affinity_paused", {"type": "pdf"}) == 1
    assert registry.get_sample_value("celery_affinity_paused", {"type": "excel"}) == 0
    assert registry.get_sample_value("celery_affinity_paused_keys") == 2
    fleet.scheduler.pause("*")
    assert all(each.paused for each in Report(reader).status().types)


def test_merging_job_is_blocked_by_its_exclusive_key(fleet, reader):
    fleet.join("worker", "pdf", slots=9)
    fleet.publish("holds!", "pdf", rules=RULES)
    for number in range(2):
        fleet.publish(f"call{number}+!", "pdf", rules=f"merge=HH{USUAL_BOUNDS} {RULES}")
        found = explain(reader, "task-call0+!")
        assert [each.rule for each in found.waiting.blocked_by] == ["key"]
        assert rows_of(found)["blocked by"].startswith("key 'city:HH': 1 of 1 held by task-holds!")


def test_pause_is_explained_before_the_key_holder(fleet, reader):
    publish_five(fleet)
    fleet.scheduler.pause("type:pdf")
    found = explain(reader, "task-waits0!")
    assert [each.rule for each in found.waiting.blocked_by] == ["pause", "key"]
    pause, key = (each.pause for each in found.waiting.blocked_by)
    assert (pause.kind, pause.name, key) == ("type", "pdf", None)
    rows = rows_of(found)
    assert rows["overtaken"] == "no time limit while a pause blocks it"
    assert rows["wait"] == "unknown: it is paused"


def test_paused_key_with_capacity_shows_only_the_pause(fleet, reader):
    fleet.join("worker", "pdf")
    fleet.scheduler.pause("key:city%3AHH")
    fleet.publish("waits!", "pdf", rules=RULES)
    found = explain(reader, "task-waits!")
    assert [each.rule for each in found.waiting.blocked_by] == ["pause"]


def test_blocked_jobs_are_listed_after_startable_ones(fleet, reader):
    publish_five(fleet)
    fleet.scheduler.leave("worker")  # the key is free: of each lane the first job may start
    fleet.publish("more!", "pdf", rules=RULES)
    fleet.join("other", "pdf", slots=1)
    fleet.publish("plain", "pdf")
    found = [(each.job_id, each.kept_back, each.served) for each in next_jobs(reader, None, 20)]
    assert found == [
        ("plain", False, True),
        ("waits2!", True, True),
        ("waits1!", True, True),
        ("holds!", True, True),
        ("waits0!", True, True),
        ("more!", True, True),
        ("sheet!", True, False),
    ]
    assert "waits for its key" in NEXT_JOBS.text(next_jobs(reader, ["pdf"], 20))


def test_paused_jobs_are_listed_after_others_with_a_note(fleet, reader):
    fleet.publish("paused", "pdf", priority=9)
    fleet.publish("keyed!", "excel", rules=RULES, priority=9)
    fleet.publish("plain", "excel")
    fleet.scheduler.pause("type:pdf")
    fleet.scheduler.pause("key:city%3AHH")
    for type_ in ("pdf", "excel"):
        fleet.join(f"{type_}-worker", type_, slots=1)
    fleet.publish("next", "excel")
    found = [(each.job_id, each.paused, each.note) for each in next_jobs(reader, None, 20)]
    assert found == [("next", False, ""), ("keyed!", True, "paused"), ("paused", True, "paused")]
    assert [line.split()[-1] for line in unstyle(NEXT_JOBS.text(next_jobs(reader, ["pdf"], 1))).splitlines()][1:] == [
        "paused"
    ]
    fleet.scheduler.pause("*")
    assert [each.note for each in next_jobs(reader, None, 20)] == ["paused"] * 3


def test_paused_key_is_marked_in_lists(fleet, reader):
    publish_five(fleet)
    assert "paused" not in unstyle(key_usage.keys_text(key_usage.find_keys(reader, "*", 10)))
    fleet.scheduler.pause("key:city%3AHH")
    found = key_usage.find_keys(reader, "*", 10)
    assert [(each.key, each.paused) for each in found.keys] == [("city:HH", True)]
    assert unstyle(key_usage.keys_text(found)).splitlines()[1].endswith("  paused")
    details = unstyle(keys.key_text(show_key(reader, "city:HH")))
    assert "paused      no job of this key starts until `celery affinity resume --key city:HH`" in details


def test_blocked_jobs_ahead_are_counted_separately(fleet, reader):
    publish_five(fleet)
    for number in range(8):
        fleet.publish(f"busy{number}", "pdf")
    fleet.publish("urgent", "pdf", priority=9)
    fleet.publish("job", "pdf")
    waiting = explain(reader, "task-job").waiting
    groups = {
        (each.on_demand, each.priority, each.kept_back): each.jobs for each in waiting.ahead if each.type == "pdf"
    }
    assert groups == {
        (False, 0, True): 1,
        (False, 1, True): 1,
        (False, 2, True): 1,
        (True, 0, True): 1,
        (False, 9, False): 1,
    }
    assert waiting.rank_in_type == 2


def test_explain_shows_the_key_holder_and_the_jobs_before(fleet, reader):
    publish_five(fleet)
    fleet.scheduler.advance(7.3)
    found = explain(reader, "task-waits0!")
    waiting = found.waiting
    assert waiting.kept_back
    (block,) = waiting.blocked_by
    assert block.rule == "key"
    assert block.why == (
        "key 'city:HH': 1 of 1 held by task-holds! (tests.task) on worker@host for 11.3 s; "
        "3 jobs of this key are before it"
    )
    assert (waiting.key.key.limit, waiting.key.key.held, waiting.key.key.waiting, waiting.key.before) == (1, 1, 5, 3)
    assert (waiting.bound_s, waiting.passed_until_s, waiting.estimate_s) == (None, None, None)
    rows = rows_of(found)
    assert rows["blocked by"] == block.why
    assert rows["overtaken"] == "no time limit while a key blocks it"
    assert rows["wait"] == "unknown: no run time of such jobs is known yet"
    assert "4 jobs of this key" in rows_of(explain(reader, "task-sheet!"))["blocked by"], "jobs of other types count"


def test_explain_shows_both_keys_without_capacity(fleet, reader):
    fleet.join("worker", "pdf", slots=9)
    rate = "key=rate%3Asmtp rate=2/60000000"
    for job, customer in (("1&", "acme"), ("2&", "acme"), ("3&", "other"), ("4&", "fourth")):
        fleet.publish(job, "pdf", rules=f"key={customer} limit=1 {rate}")
    behind, later = explain(reader, "task-2&").waiting, explain(reader, "task-4&").waiting
    held = "key 'acme': 1 of 1 held by task-1& (tests.task) on worker@host for 0.0 s; no other job of this key is"
    starts = "key 'rate:smtp': 2 may start in 60 s, the next in 30.0 s; no other job of this key is before it"
    assert [each.why for each in behind.blocked_by] == [f"{held} before it", starts]
    assert [each.why for each in later.blocked_by] == [starts], "it passed its first key"
    assert (behind.key.key.key, later.key.key.key) == ("acme", "rate:smtp")
    assert later.estimate_s == 30
    fleet.scheduler.pause("key:acme")
    assert [each.rule for each in explain(reader, "task-2&").waiting.blocked_by] == ["pause", "key", "key"]
    assert jobs.get_jobs(reader, ["task-2&"])[0].keys == ["acme", "rate:smtp"]


def test_wait_for_a_key_is_estimated_from_run_times(fleet, reader):
    fleet.join("worker", "pdf", slots=9)
    fleet.publish("timed", "pdf")
    fleet.scheduler.advance(12)
    fleet.end("worker", *fleet.inbox("worker"))
    fleet.hand_over("worker")
    for number in range(4):
        fleet.publish(f"job{number}!", "pdf", rules=RULES)
    fleet.scheduler.advance(2)
    found = explain(reader, "task-job3!")
    assert found.waiting.estimate_s == 10 + 2 * 12
    assert rows_of(found)["wait"] == "~34 s, estimated from recent runs of this key: 12.0 s each"
    fleet.scheduler.configure({"limits": "city%3A*=2"})
    assert explain(reader, "task-job3!").waiting.estimate_s == 10
    fleet.scheduler.configure({"limits": "city%3A*=0"})
    found = explain(reader, "task-job3!")
    assert rows_of(found)["blocked by"] == "key 'city:HH' is closed: its limit is 0"
    assert rows_of(found)["wait"] == "unknown: its key is closed"


def timed(fleet, slots=9):
    """Start a worker, and measure a run time of 12 s for its type."""
    fleet.join("worker", "pdf", slots=slots)
    fleet.publish("timed", "pdf")
    fleet.scheduler.advance(12)
    fleet.end("worker", *fleet.inbox("worker"))
    fleet.hand_over("worker")


def test_holder_that_runs_unusually_long_is_overdue(fleet, reader):
    timed(fleet)
    fleet.publish("holds!", "pdf", rules=RULES)
    fleet.publish("job!", "pdf", rules=RULES)
    fleet.scheduler.advance(30)
    found = explain(reader, "task-job!")
    assert found.waiting.estimate_s is None
    assert found.now_s - found.waiting.overdue_since_s == 18
    assert re.fullmatch(r"overdue since .* \(18.0 s\): jobs of its type usually run for 12.0 s", rows_of(found)["wait"])


def test_estimate_uses_the_holder_that_ends_next(fleet, reader):
    timed(fleet)
    fleet.publish("first!", "pdf", rules="key=city%3AHH limit=2")
    fleet.scheduler.advance(20)
    fleet.publish("second!", "pdf", rules="key=city%3AHH limit=2")
    fleet.publish("job!", "pdf", rules="key=city%3AHH limit=2")
    fleet.scheduler.advance(5)
    waiting = explain(reader, "task-job!").waiting
    assert (waiting.estimate_s, waiting.overdue_since_s) == (7, None)


def test_key_reserved_for_a_retry_shows_the_due_time(fleet, reader):
    timed(fleet)
    fleet.publish("try!", "pdf", task_id="task", rules="key=o limit=1 order=1")
    (claim,) = fleet.inbox("worker")
    fleet.publish("retry!", "pdf", task_id="task", rules="key=o limit=1 order=1", delay_s=60)
    fleet.publish("job!", "pdf", rules="key=o limit=1 order=1")
    fleet.end("worker", claim)
    fleet.scheduler.advance(10)
    found = explain(reader, "task-job!")
    assert found.waiting.not_before.at_s - found.now_s == 50
    assert found.waiting.estimate_s == 50 + 12
    wait = rows_of(found)["wait"]
    assert re.fullmatch(
        r"until .* at least \(50.0 s\): the retry of task is due then; ~1 min 2 s in all, an estimate", wait
    )
    assert "for the retry of task, which is due at " in keys.key_text(show_key(reader, "o"))


def test_explain_shows_the_end_of_a_pause(fleet, reader):
    fleet.join("worker", "pdf")
    fleet.scheduler.pause("type:pdf", for_s=300)
    fleet.publish("job", "pdf")
    fleet.scheduler.advance(100)
    found = explain(reader, "task-job")
    assert found.waiting.not_before.at_s - found.now_s == 200
    wait = rows_of(found)["wait"]
    assert re.fullmatch(r"until .* at least \(3 min 20 s\): the pause of type 'pdf' ends then", wait)
    fleet.scheduler.pause("*")
    assert rows_of(explain(reader, "task-job"))["wait"] == "unknown: it is paused"


def test_estimate_respects_the_type_limit(fleet, reader):
    timed(fleet, slots=4)
    fleet.scheduler.configure({"limits": "type%3Apdf=2"})
    fleet.scheduler.tick()
    for number in range(7):
        fleet.publish(f"job{number}", "pdf")
    assert explain(reader, "task-job6").waiting.estimate_s == 12 * 5 / 2
    fleet.scheduler.configure({"limits": "type%3Apdf=0"})
    found = explain(reader, "task-job6")
    assert [each.why for each in found.waiting.blocked_by if each.rule == "type limit"] == [
        "type 'pdf' is closed: its limit is 0"
    ]
    assert rows_of(found)["wait"] == "unknown: its type is closed"


def test_type_named_closed_is_not_closed(fleet, reader):
    fleet.join("worker", "closed-deals", slots=4)
    fleet.scheduler.configure({"limits": "type%3Aclosed-deals=1"})
    fleet.scheduler.tick()
    for number in range(2):
        fleet.publish(f"job{number}", "closed-deals")
    found = explain(reader, "task-job1")
    assert [each.rule for each in found.waiting.blocked_by] == ["type limit"]
    assert rows_of(found)["wait"] == "unknown: no run time of such jobs is known yet"


@pytest.mark.parametrize("digits", [1, 15, 16, 18])
def test_key_limits_with_many_digits_are_read_correctly(fleet, reader, digits):
    fleet.join("worker", "pdf", slots=2)
    limit = "1" + "0" * (digits - 1)
    fleet.scheduler.configure({"limits": f"city%3AHH={limit}"})
    fleet.publish("holds!", "pdf", rules=RULES)
    fleet.publish("job!", "pdf", rules=RULES)
    assert show_key(reader, "city:HH").key.limit == int(limit)
    assert explain(reader, "task-job!").state == ("pending" if digits == 1 else "claimed")


def test_each_blocker_has_a_separate_line(fleet, reader):
    fleet.join("worker", "pdf", slots=1)
    fleet.publish("holds!", "pdf", rules=RULES)
    fleet.publish("job!", "pdf", rules=RULES)
    fleet.publish("elsewhere!", "drawing", rules=RULES)
    assert [each.rule for each in explain(reader, "task-job!").waiting.blocked_by] == ["key", "slots"]
    found = explain(reader, "task-elsewhere!")
    assert [each.rule for each in found.waiting.blocked_by] == ["key", "type"]
    lines = unstyle(explain_text.explanation_text(found)).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("blocked by"))
    assert lines[first + 1] == "            no live worker serves type 'drawing': start one with -Q drawing"


def test_key_with_capacity_starts_the_earlier_job_first(fleet, reader):
    for number in range(3):
        fleet.publish(f"job{number}!", "pdf", rules="key=city%3AHH limit=2")
    first = explain(reader, "task-job0!")
    assert not first.waiting.kept_back
    assert first.waiting.bound_s is not None
    assert rows_of(first)["overtaken"].endswith(" (while its key has capacity and no other rule blocks it)")
    (block, _) = explain(reader, "task-job2!").waiting.blocked_by
    assert block.why == (
        "key 'city:HH' has capacity (0 of 2 held), but another job of the key starts first: task-job0! (tests.task); "
        "2 jobs of this key are before it"
    )


def test_explain_shows_the_wait_for_a_rate(fleet, reader):
    fleet.join("worker", "pdf", slots=9)
    for number in range(5):
        fleet.publish(f"job{number}!", "pdf", rules="key=rate%3Aacme rate=2/60000000")
    fleet.scheduler.advance(10)
    found = explain(reader, "task-job4!")
    assert rows_of(found)["blocked by"] == (
        "key 'rate:acme': 2 may start in 60 s, the next in 20.0 s; 2 jobs of this key are before it"
    )
    assert rows_of(found)["wait"] == "~1 min 20 s until its key lets it start, an estimate"


def test_explain_shows_a_key_reserved_for_a_retry(fleet, reader):
    rules = "key=city%3AHH limit=1 order=1"
    fleet.join("worker", "pdf", slots=9)
    fleet.publish("first!", "pdf", rules=rules, task_id="task")
    fleet.publish("behind!", "pdf", rules=rules)
    fleet.publish("second!", "pdf", rules=rules, task_id="task", delay_s=60)
    fleet.end("worker", *fleet.inbox("worker"))
    found = explain(reader, "task-behind!")
    assert rows_of(found)["blocked by"] == (
        "key 'city:HH' is kept for the retry of task; no other job of this key is before it"
    )


def test_explain_shows_a_key_reserved_for_a_type(fleet, reader):
    rules = "key=city%3AHH limit=1"
    fleet.scheduler.configure({"worker_timeout_us": "1000000000"})  # nobody sends heartbeats
    fleet.join("worker", "pdf")
    fleet.join("other", "excel")
    fleet.publish("busy", "excel")
    for name in ("first!", "behind!"):
        fleet.publish(name, "pdf", rules=rules)
    fleet.publish("turn!", "excel", rules=rules)
    fleet.scheduler.advance(30)
    assert fleet.end("worker", *fleet.inbox("worker")) == []
    found = explain(reader, "task-behind!")
    assert rows_of(found)["blocked by"] == (
        "key 'city:HH' is kept for type 'excel', which has waited for it longest; no other job of this key is before it"
    )
    shown = unstyle(keys.key_text(show_key(reader, "city:HH")))
    assert "reserved    for type excel, which has waited longest" in shown
    assert "1 of excel priority 0, queued; the first may start" in shown


def rows_of(found):
    return {line[:12].strip(): line[12:] for line in unstyle(explain_text.explanation_text(found)).splitlines()}


def test_queue_length_and_purge_include_blocked_jobs(fleet, reader, redis_client):
    publish_five(fleet)
    assert (reader.pending("pdf"), reader.pending("excel")) == (4, 1)
    assert fleet.scheduler.purge("pdf") == 4
    assert (reader.pending("pdf"), reader.pending("excel")) == (0, 1)
    assert fleet.scheduler.purge("excel") == 1
    fleet.end("worker", *fleet.inbox("worker"))
    left = {kind for kind, (name, *_) in KEYS.items() if redis_client.keys(Keys().base + name.replace("%s", "*"))}
    assert not left & {"held", "key_queue", "key_state", "kept_back", "kept_lanes", "waiting_keys"}


def reserve_two_of(fleet, slots=8, *, settings=None, more=""):
    fleet.scheduler.configure({"reserve": f"pdf:queued=2 {more}".strip(), **(settings or {})})
    fleet.scheduler.tick()
    fleet.join("worker", "pdf", slots=slots)
    for number in range(9):
        fleet.publish(f"job{number}", "pdf")


def test_explain_shows_jobs_blocked_by_a_reserve(fleet, reader):
    reserve_two_of(fleet, more="pdf:0=1")
    waiting = explain(reader, "task-job8").waiting
    assert [(each.rule, each.why) for each in waiting.blocked_by] == [
        ("reserve", "reserve: 2 of 8 slots that fit are kept for on-demand jobs, 2 are free")
    ]
    assert waiting.bound_s is None
    assert "no time limit while a reserve blocks it" in unstyle(
        explain_text.explanation_text(explain(reader, "task-job8"))
    )
    for number in range(2):
        fleet.publish(f"asked{number}", "pdf", on_demand=True, priority=1)
    fleet.publish("asked", "pdf", on_demand=True, priority=1)
    rules = [[each.rule for each in explain(reader, f"task-{job}").waiting.blocked_by] for job in ("job8", "asked")]
    assert rules == [["reserve", "slots"], ["slots"]]


def test_reserve_patience_restores_the_overtaking_bound(fleet, reader):
    reserve_two_of(fleet, settings={"reserve_patience_us": "9000000000"})
    assert explain(reader, "task-job8").waiting.bound_s == 9005


def test_reserve_of_all_slots_leaves_one_job_running(fleet, reader):
    reserve_two_of(fleet, slots=2)
    (block,) = explain(reader, "task-job8").waiting.blocked_by
    assert block.why == (
        "reserve: all 2 slots that fit are kept for on-demand jobs: only one other job may run at a time, and 1 runs"
    )


def test_status_and_metrics_show_reserves_and_blocked_jobs(fleet, reader):
    reserve_two_of(fleet, more="pdf:0-3=10% excel:queued=1")
    fleet.publish("asked", "pdf", on_demand=True, priority=5)
    fleet.join("other", "index")
    status = Report(reader).status()
    (found,) = (each for each in status.types if each.type == "pdf")
    assert [(each.of_class, each.kept, each.live) for each in found.reserves] == [("queued", 2, 8), ("0-3", 1, 8)]
    assert found.kept_back_by_reserves == 3
    assert (
        "3 wait because of a reserve; kept free: 2 for on-demand jobs; kept free: 1 for priorities above 3"
        in status_text(status)
    )
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: Metrics.of(status)))
    values = [
        registry.get_sample_value("celery_affinity_kept_back_jobs", {"type": type_, "rule": "reserve"})
        for type_ in ("pdf", "index")
    ]
    assert values == [3, 0]


def test_dispatcher_warns_once_of_a_reserve_with_too_few_slots(fleet, monkeypatch, caplog):
    monkeypatch.setattr(dispatcher, "_REPAIR_INTERVAL_S", 0)  # the check is part of each repair
    repairing = Dispatcher(fleet.scheduler, *(SimpleNamespace() for _ in range(3)))

    def repair():
        repairing._repair_if_due()
        return caplog.messages

    repair()
    fleet.scheduler.configure({"reserve": "pdf:queued=3 pdf:0=1 excel:0=9"})
    fleet.join("worker", "pdf", slots=3)
    repair()
    (message,) = repair()
    assert message.startswith(
        "affinity_reserve keeps 3 slots free for on-demand jobs of type 'pdf', which has 3: one job of class 'queued' "
    )
    fleet.sync("worker", slots=4)
    repair()
    fleet.sync("worker", slots=2)
    assert len(repair()) == 2
