"""Filters find jobs by an argument of their call and by their enqueue time."""

from dataclasses import replace

import pytest

from celery_affinity import Affinity, Merge
from celery_affinity.admin.actions import JobFilters
from celery_affinity.admin.bulk import CANCELLABLE, choose_jobs
from celery_affinity.errors import OptionError
from celery_affinity.reports import job_lists
from celery_affinity.reports.job_lists import MAX_JOBS_READ, jobs_page
from celery_affinity.transport.app_api import scheduler_of

from ..support.messages import wire


def ids_of(jobs, **filters):
    """Return the ids of all matching jobs from all pages."""
    page = jobs.list(limit=2, **filters)
    ids = [job.id for job in page.jobs]
    while page.cursor:
        page = jobs.list(limit=2, cursor=page.cursor, **filters)
        ids += [job.id for job in page.jobs]
    assert len(ids) == len(set(ids))
    return set(ids)


def render(customer, page=1):
    """Do nothing: the tests only use its arguments."""


@pytest.fixture
def task(app):
    name = "tests.render"
    yield app.task(name=name, affinity="pdf")(render)
    app.tasks.pop(name)


def test_argument_filter_matches_by_name_and_by_position(task, jobs):
    acme = {task.delay("acme").id, task.delay(customer="acme", page=2).id}
    task.delay("globex", 17)
    number = task.delay(17).id
    assert ids_of(jobs, argument="customer=acme") == acme
    assert ids_of(jobs, argument="args[0]=acme") == acme
    assert ids_of(jobs, argument="customer=17") == {number}
    assert ids_of(jobs, argument="customer=ac*") == acme
    assert ids_of(jobs, argument="page=1") == {number, *acme} - ids_of(jobs, argument="page=2")
    assert ids_of(jobs, argument="customer=ACME") == ids_of(jobs, argument="nothing=1") == set()


def test_argument_filter_combines_with_other_filters(task, jobs):
    task.apply_async(("acme",), countdown=600)
    waits = task.delay("acme").id
    assert ids_of(jobs, argument="customer=acme", state="pending") == {waits}
    assert ids_of(jobs, argument="customer=acme", type="excel") == set()
    assert ids_of(jobs, argument="customer=acme", task="tests.r*", newer_than_s=60) == ids_of(jobs, task="tests.*")


def test_unregistered_tasks_arguments_match_as_the_call_passed_them(app, jobs):
    by_name = app.send_task("elsewhere.task", kwargs={"customer": "acme"}, queue="pdf").id
    by_position = app.send_task("elsewhere.task", ("acme",), queue="pdf").id
    assert ids_of(jobs, argument="customer=acme") == {by_name}
    assert ids_of(jobs, argument="args[0]=acme") == {by_position}


@pytest.mark.parametrize("version", [1, 2])
def test_argument_filter_reads_stock_messages_and_skips_invalid_ones(fleet, jobs, version):
    fleet.publish("one", "pdf", message=wire("task-one", version=version, args=("acme",)))
    for number, text in enumerate(["", "{", "[]", "3", '{"body": 7, "headers": []}', "[" * 100_000]):
        fleet.publish(f"invalid{number}", "pdf", message=text)
    assert ids_of(jobs, argument="args[0]=acme") == {"task-one"}
    assert ids_of(jobs, argument="args[0]=*") == {"task-one"}


def test_argument_filter_finds_dead_letters(fleet, jobs):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf", message=wire("task-job", args=("acme",)))
    fleet.end("worker", *fleet.inbox("worker"), outcome="rejected")
    assert ids_of(jobs, argument="args[0]=acme", state="dead") == {"task-job"}


def test_merged_calls_match_if_the_whole_batch_has_the_argument(app, fleet, jobs):
    @app.task(name="tests.plan", affinity=Affinity("pdf", merge=Merge("{city}", keep="all")))
    def plan(city, customer):
        pass

    fleet.join("worker", "excel")
    for customer in ("acme", "globex"):
        plan.delay("HH", customer)
    ours = {plan.delay("M", "acme").id, plan.delay("M", "acme").id}
    runs = ids_of(jobs, argument="customer=acme")
    assert (len(runs), runs < ours) == (1, True)
    assert len(ids_of(jobs, argument="city=*")) == 2
    app.tasks.pop("tests.plan")


@pytest.mark.parametrize("max_bytes", [1, 700, 3_000])
def test_page_stops_at_max_bytes_and_next_page_continues(task, jobs, app, monkeypatch, max_bytes):
    ours = {task.delay("acme", "x" * 100 * nth).id for nth in range(7)}
    task.delay("globex", "x" * 5_000)
    monkeypatch.setattr("celery_affinity.reports.job_lists.MAX_BYTES", max_bytes)
    page = jobs.list(argument="customer=acme")
    assert (page.partial, len(page.jobs) < 7) == (True, True)
    assert ids_of(jobs, argument="customer=acme") == ours
    with scheduler_of(app) as scheduler:
        which = JobFilters(argument="customer=acme").of(app, scheduler.reader)
        assert len(choose_jobs(scheduler.reader, which, ["pending"]).chosen) == 7


def test_argument_filter_reads_no_messages_of_excluded_jobs(fleet, jobs, redis_client):
    fleet.publish("one", "pdf")
    before = redis_client.info("commandstats").get("cmdstat_strlen", {"calls": 0})["calls"]
    assert ids_of(jobs, argument="a=b", type="excel") == ids_of(jobs, type="excel") == set()
    assert redis_client.info("commandstats").get("cmdstat_strlen", {"calls": 0})["calls"] == before
    assert job_lists.MAX_BYTES > MAX_JOBS_READ


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"key": "city:HH"},
        {"type": "excel"},
        {"task": "tests.*", "older_than_s": 0.0},
        {"newer_than_s": 0.0},
        {"newer_than_s": 600.0, "key": "city:HH", "type": "pdf"},
    ],
)
def test_bulk_choice_reads_fewer_fields_and_chooses_the_listed_jobs(app, fleet, jobs, filters):
    keyed, merging = "key=city%3AHH limit=1", "merge=k most=9 bytes=900"
    fleet.join("worker", "pdf")
    fleet.publish("claimed!", "pdf", rules=keyed)
    for number, type_ in enumerate(("pdf", "pdf", "excel")):
        fleet.publish(f"blocked{number}!", type_, rules=keyed)
        fleet.publish(f"later{number}!", type_, rules=keyed, delay_s=600)
        fleet.publish(f"plain{number}", type_, on_demand=number == 1)
        fleet.publish(f"merged{number}+", type_, rules=merging)
        fleet.publish(f"both{number}+!", type_, rules=f"{merging} {keyed}")
    with scheduler_of(app) as scheduler:
        reader = scheduler.reader
        which = JobFilters(**filters).of(app, reader)
        choice = choose_jobs(reader, which, ["pending", "scheduled", "claimed", "running"])
        listed = [jobs_page(reader, replace(which, state=state), 1000).jobs for state in CANCELLABLE]
    listed = [job for page in listed for job in page]
    assert {(job.id, job.job_id, job.state) for job in listed} == set(choice.chosen)
    assert choice.calls == sum(job.calls for job in listed)
    assert set(map(repr, choice.shown)) <= set(map(repr, listed))
    assert len(choice.shown) == min(5, len(listed))


def test_jobs_match_by_minimum_and_maximum_age(fleet, jobs, redis_client):
    for name in ("old", "between", "new"):
        fleet.publish(name, "pdf")
    now_us = fleet.scheduler.reader.now_us()
    for name, age_s in (("old", 7_200), ("between", 3_600), ("new", 60)):
        redis_client.hset(fleet.scheduler.keys.key("job", name), "enqueued", now_us - age_s * 1_000_000)
    assert ids_of(jobs, newer_than_s=600) == {"task-new"}
    assert ids_of(jobs, newer_than_s=4_000) == {"task-new", "task-between"}
    assert ids_of(jobs, newer_than_s=4_000, older_than_s=1_000) == {"task-between"}
    assert ids_of(jobs, older_than_s=1_000) == {"task-old", "task-between"}


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"newer_than_s": -1}, "newer_than must be a number of seconds, 0 or more, up to 315,360,000, got: -1"),
        ({"newer_than_s": float("nan")}, "newer_than must be a number of seconds"),
        ({"newer_than_s": 5, "older_than_s": 5}, r"newer_than must be a longer time than older_than \(5 s\), got: 5"),
        ({"argument": "customer"}, "argument must be a name and a value, name=value, .* got: 'customer'"),
        ({"argument": "=acme"}, "argument must be a name and a value"),
        ({"argument": "a b=1"}, "argument must begin with the name of an argument or args.0., then =, got: 'a b'"),
        ({"argument": "{x}=1"}, "argument must begin with the name of an argument"),
        ({"argument": "task=1"}, "argument must begin with the name of an argument"),
        ({"argument": "a=\udc80"}, "argument must be a name and a value"),
    ],
)
def test_invalid_filters_are_refused(jobs, filters, message):
    with pytest.raises(OptionError, match=message):
        jobs.list(**filters)
