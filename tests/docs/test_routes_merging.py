"""The merged side of `examples/routes`: few runs, a plan with its change for every caller, and users first."""

import io
import os
import subprocess
import sys
from collections import Counter

import pytest
from celery import Celery
from celery.result import AsyncResult
from rich.console import Console

from examples.comparing.processes import Processes
from examples.comparing.program import delete_keys
from examples.routes import books, merging, sides, work
from examples.routes.cities import all_cities
from examples.routes.measure import MERGED, Job, Run

from ..support.made_once import made_once
from ..support.processes import ROOT, wait_until

PREFIX = "routes-merging:"


@pytest.fixture(scope="module")
def many():
    return work.make_many(0.1)


@pytest.fixture(scope="module")
def merged(valkey, many, tmp_path_factory):
    """Return the records of the merged side, with many changes."""

    def make(folder):
        sides.run(Console(file=io.StringIO()), MERGED, many, 0.1, folder, valkey.url)

    run = Run(MERGED, made_once(tmp_path_factory, "routes-merged", make) / MERGED)
    run.follow()
    return run


# -- a side of the example


def test_each_change_is_planned_once_and_most_changes_merge(merged, many):
    runs = merging.runs_of(merged)
    planned = Counter(number for run in runs for number in run.changes)
    assert planned == Counter(request.change["number"] for request in many)
    assert len(runs) < len(many) / 2
    assert merged.overlapping() == set()
    assert merged.missing() == []


def test_every_caller_receives_a_plan_with_its_change(merged, many):
    assert len(merged.change_calls()) == len(many)
    assert all(job.is_in_plan for job in merged.change_calls())
    assert merging.failures(merged, len(many)) == []


def test_changes_of_a_city_are_applied_in_order(merged, many):
    for city in work.flooded():
        dropped = set()
        for change in (request.change for request in many if request.city == city):
            (dropped.discard if change["is_wanted"] else dropped.add)(change["stop"])
        assert merged.book(city)["dropped"] == sorted(dropped)


def test_work_mixes_users_into_a_thousand_changes():
    requests = work.make_many(7.0)
    users = [nth for nth, request in enumerate(requests) if request.mode == "on_demand"]
    assert len(requests) - len(users) == work.MAX_MERGED == 1000
    assert {request.city for request in requests} == set(work.flooded()), "no changes in the city at rest"
    assert Counter(requests[nth].city for nth in users) == dict.fromkeys(work.flooded(), work.USERS)
    assert min(users) > 0
    assert max(users) < len(requests) - 1
    assert [request.at_s for request in requests] == sorted(request.at_s for request in requests)


def test_recurring_call_plans_the_unchanged_city(merged):
    again = merging.recurring_runs(merged)
    assert len(again) >= sides.MIN_REPLANS
    assert {(job.type, tuple(job.changes)) for job in again} == {(work.AT_REST, ())}
    book = merged.book(work.AT_REST)
    assert book["changes"] == []
    assert sum(map(len, book["tours"])) == len(all_cities()[work.AT_REST].stops)


# -- one moment


@pytest.fixture
def behind_others(valkey, tmp_path):
    """Publish changes of all cities and a user's change in the last one. Then run a worker; return its records."""
    cities = work.flooded()
    numbers = iter(range(1, 100))
    requests = [
        work.Request(city, "queued", {"number": next(numbers), "stop": stop.name, "is_wanted": False})
        for city in cities
        for stop in all_cities()[city].stops[:3]
    ]
    users_change = {"number": next(numbers), "stop": all_cities()[cities[-1]].stops[3].name, "is_wanted": False}
    requests.append(work.Request(cities[-1], "on_demand", users_change))
    for city in all_cities().values():
        books.create(tmp_path, city)
    path = tmp_path / "work.json"
    work.save(requests, path)
    env = {
        "ROUTES_SIDE": MERGED,
        "ROUTES_FOLDER": str(tmp_path),
        "ROUTES_KEYPREFIX": PREFIX,
        "REDIS_URL": valkey.url,
    }
    publish = (
        f"from pathlib import Path\nfrom examples.routes import work, publish\n"
        f"for request in work.load(Path({str(path)!r})): publish.publish(request)\n"
    )
    run = Run(MERGED, tmp_path)

    def all_ended():
        run.follow()
        return sum(job.ended is not None for job in merging.runs_of(run)) == len(cities)

    with Processes(tmp_path, env) as processes:
        subprocess.run([sys.executable, "-c", publish], cwd=ROOT, env=os.environ | env, check=True, timeout=60)
        worker = "celery -A examples.routes.app worker -Q route -c 2 -n one@routes -l INFO"
        processes.python("one", *worker.split(), "--without-mingle", "--without-gossip")
        wait_until(all_ended, 120, "one run of each city")
    yield run
    delete_keys(valkey.url, PREFIX)


def test_users_batch_runs_first_and_callers_get_their_results(behind_others, valkey):
    run = behind_others
    order = sorted(merging.runs_of(run), key=lambda job: job.started)
    assert [job.type for job in order] == [work.flooded()[-1], *work.flooded()[:-1]]
    assert order[0].changes == [10, 11, 12, 13], "the user's is the last"
    assert [job.changes for job in order[1:]] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    backend = Celery(set_as_current=False, backend=valkey.url)
    backend.conf.result_backend_transport_options = {"global_keyprefix": PREFIX}
    for job in run.change_calls():
        book = AsyncResult(job.id, app=backend).get(timeout=30)
        assert job.number in book["changes"]
        assert book == run.book(job.type)


# -- numbers from prepared records


def job(number, city, published, began=None, planned=None, changes=(), mode="queued"):
    about = f"{number}: a stop is dropped"
    own = {"began": began, "planned": planned, "changes": list(changes), "received": planned, "is_in_plan": True}
    return Job(str(number), "", city, mode, about, published, started=began, ended=planned, **own)


@pytest.fixture
def made(tmp_path):
    """Return records of three runs (Kiel, Bremen, Kiel with a user's change) and four runs of a recurring call."""
    jobs = [
        job(1, "Kiel", 10.0, 10.0, 11.0, [1]),
        job(2, "Bremen", 10.1, 11.2, 12.0, [2]),
        job(3, "Kiel", 10.2, 11.5, 13.0, [3, 4]),
        job(4, "Kiel", 10.5, mode="on_demand"),
    ]
    times = [(9.0, 9.5), (10.2, 10.8), (11.0, 11.8), (12.0, 12.5)]
    again = [
        Job(
            str(nth),
            "",
            work.AT_REST,
            "queued",
            "planned again",
            began - 0.1,
            began,
            planned,
            began=began,
            planned=planned,
        )
        for nth, (began, planned) in enumerate(times, 5)
    ]
    return Run(MERGED, tmp_path, {job.id: job for job in [*jobs, *again]})


def test_run_answers_the_calls_whose_changes_it_planned(made):
    calls = {run: [call.number for call in calls] for run, calls in merging.calls_of(made).items()}
    assert calls == {"1": [1], "2": [2], "3": [3, 4]}
    assert made.plan_waits() == pytest.approx([1.0, 1.9, 2.5, 2.8])
    assert made.user_waits({"Kiel"}) == [1.0]


def test_started_before_counts_runs_of_other_cities(made):
    user = made.jobs["4"]
    assert merging.started_before(made, user) == 1
    made.jobs["2"].started = 10.9
    assert merging.started_before(made, user) == 0, "the user's city was not free"
    made.jobs["2"].started, made.jobs["2"].mode = 11.2, "on_demand"
    assert merging.started_before(made, user) == 0, "for another user"


def test_plan_age_starts_when_its_run_began(made):
    assert merging.oldest_s(made) == pytest.approx(10.8 - 9.0)
    made.jobs["6"].planned = None
    assert merging.oldest_s(made) == pytest.approx(11.8 - 9.0)


def test_recurring_calls_are_not_changes(made):
    assert [call.number for call in made.change_calls()] == [1, 2, 3, 4]
    assert (made.began, made.took_s) == (10.0, 3.0), "from the first change on"
    assert [run.id for run in merging.runs_of(made)] == ["1", "2", "3"]


def test_failures_describe_each_failure(made):
    made.jobs["4"].received = 13.0
    assert merging.failures(made, 4) == []
    made.jobs["4"].is_in_plan = False
    made.jobs["6"].planned = made.jobs["7"].planned = None
    title = "celery_affinity, calls merged"
    assert merging.failures(made, 5) == [
        f"{title}: changes that were not planned in time: 1.",
        f"{title}: the recurring call did not plan {work.AT_REST} 3 times.",
        f"{title}: callers that got no plan with their change: 1; the first is Kiel, 4: a stop is dropped.",
    ]
