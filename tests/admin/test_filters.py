"""Jobs are found by an argument of their call, and by the time at which they were enqueued."""

import pytest

from celery_affinity import Affinity, Merge
from celery_affinity.admin.actions import JobFilters
from celery_affinity.admin.bulk import choose_jobs
from celery_affinity.errors import OptionError
from celery_affinity.reports import job_lists
from celery_affinity.reports.job_lists import MAX_JOBS_READ
from celery_affinity.transport.app_api import scheduler_of

from ..support.messages import wire


def found(jobs, **filters):
    """Return the ids of all jobs that match, in whatever number of pages."""
    page = jobs.list(limit=2, **filters)
    ids = [job.id for job in page.jobs]
    while page.cursor:
        page = jobs.list(limit=2, cursor=page.cursor, **filters)
        ids += [job.id for job in page.jobs]
    assert len(ids) == len(set(ids))
    return set(ids)


def render(customer, page=1):
    """Do nothing: its arguments are what counts."""


@pytest.fixture
def task(app):
    name = "tests.render"
    yield app.task(name=name, affinity="pdf")(render)
    app.tasks.pop(name)


def test_an_argument_is_found_by_name_and_by_position_however_the_call_gave_it(task, jobs):
    acme = {task.delay("acme").id, task.delay(customer="acme", page=2).id}
    task.delay("globex", 17)
    number = task.delay(17).id
    assert found(jobs, argument="customer=acme") == acme
    assert found(jobs, argument="args[0]=acme") == acme
    assert found(jobs, argument="customer=17") == {number}
    assert found(jobs, argument="customer=ac*") == acme
    assert found(jobs, argument="page=1") == {number, *acme} - found(jobs, argument="page=2")
    assert found(jobs, argument="customer=ACME") == found(jobs, argument="nothing=1") == set()


def test_a_job_has_to_match_the_other_filters_too(task, jobs):
    task.apply_async(("acme",), countdown=600)
    waits = task.delay("acme").id
    assert found(jobs, argument="customer=acme", state="pending") == {waits}
    assert found(jobs, argument="customer=acme", type="excel") == set()
    assert found(jobs, argument="customer=acme", task="tests.r*", newer_than_s=60) == found(jobs, task="tests.*")


def test_arguments_of_a_task_that_is_not_at_hand_are_known_as_the_call_gave_them(app, jobs):
    by_name = app.send_task("elsewhere.task", kwargs={"customer": "acme"}, queue="pdf").id
    by_position = app.send_task("elsewhere.task", ("acme",), queue="pdf").id
    assert found(jobs, argument="customer=acme") == {by_name}
    assert found(jobs, argument="args[0]=acme") == {by_position}


@pytest.mark.parametrize("version", [1, 2])
def test_messages_of_other_producers_are_read_and_what_is_no_message_has_no_arguments(fleet, jobs, version):
    fleet.publish("one", "pdf", message=wire("task-one", version=version, args=("acme",)))
    for number, text in enumerate(["", "{", "[]", "3", '{"body": 7, "headers": []}', "[" * 100_000]):
        fleet.publish(f"spoiled{number}", "pdf", message=text)
    assert found(jobs, argument="args[0]=acme") == {"task-one"}
    assert found(jobs, argument="args[0]=*") == {"task-one"}


def test_a_dead_letter_is_found_by_its_argument(fleet, jobs):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf", message=wire("task-job", args=("acme",)))
    fleet.end("worker", *fleet.inbox("worker"), outcome="rejected")
    assert found(jobs, argument="args[0]=acme", state="dead") == {"task-job"}


def test_merged_calls_are_found_if_all_of_their_run_have_the_argument(app, fleet, jobs):
    @app.task(name="tests.plan", affinity=Affinity("pdf", merge=Merge("{city}", keep="all")))
    def plan(city, customer):
        pass

    fleet.join("worker", "excel")
    for customer in ("acme", "globex"):
        plan.delay("HH", customer)
    ours = {plan.delay("M", "acme").id, plan.delay("M", "acme").id}
    runs = found(jobs, argument="customer=acme")
    assert (len(runs), runs < ours) == (1, True)
    assert len(found(jobs, argument="city=*")) == 2
    app.tasks.pop("tests.plan")


@pytest.mark.parametrize("most_bytes", [1, 700, 3_000])
def test_a_page_reads_so_many_bytes_of_messages_and_the_next_one_goes_on(task, jobs, app, monkeypatch, most_bytes):
    ours = {task.delay("acme", "x" * 100 * nth).id for nth in range(7)}
    task.delay("globex", "x" * 5_000)
    monkeypatch.setattr("celery_affinity.reports.job_lists.MAX_BYTES", most_bytes)
    page = jobs.list(argument="customer=acme")
    assert (page.partial, len(page.jobs) < 7) == (True, True)
    assert found(jobs, argument="customer=acme") == ours
    with scheduler_of(app) as scheduler:
        which = JobFilters(argument="customer=acme").of(app, scheduler.reader)
        assert len(choose_jobs(scheduler.reader, which, ["pending"]).chosen) == 7


def test_messages_are_read_of_no_job_that_another_filter_leaves_out(fleet, jobs, redis_client):
    fleet.publish("one", "pdf")
    before = redis_client.info("commandstats").get("cmdstat_strlen", {"calls": 0})["calls"]
    assert found(jobs, argument="a=b", type="excel") == found(jobs, type="excel") == set()
    assert redis_client.info("commandstats").get("cmdstat_strlen", {"calls": 0})["calls"] == before
    assert job_lists.MAX_BYTES > MAX_JOBS_READ


def test_jobs_are_found_by_their_age_from_both_sides(fleet, jobs, redis_client):
    for name in ("old", "between", "new"):
        fleet.publish(name, "pdf")
    now_us = fleet.scheduler.reader.now_us()
    for name, age_s in (("old", 7_200), ("between", 3_600), ("new", 60)):
        redis_client.hset(fleet.scheduler.keys.key("job", name), "enqueued", now_us - age_s * 1_000_000)
    assert found(jobs, newer_than_s=600) == {"task-new"}
    assert found(jobs, newer_than_s=4_000) == {"task-new", "task-between"}
    assert found(jobs, newer_than_s=4_000, older_than_s=1_000) == {"task-between"}
    assert found(jobs, older_than_s=1_000) == {"task-old", "task-between"}


@pytest.mark.parametrize(
    ("filters", "said"),
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
def test_filters_that_mean_nothing_are_refused(jobs, filters, said):
    with pytest.raises(OptionError, match=said):
        jobs.list(**filters)
