"""Pages of lists are disjoint and complete, and REST, the command and Python return the same JSON for all jobs."""

import json

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as draw

from celery_affinity import jobs
from celery_affinity.cli import affinity
from celery_affinity.reports.job_lists import LISTED
from celery_affinity.reports.json import as_json

from ..support.jobs_in_all_states import TYPES, fill, runs_of, some_jobs, tell


class Asked:
    """One query, sent over HTTP, by the command and in Python."""

    def __init__(self, app, web):
        self.app, self.web = app, web
        self.jobs = jobs(app)

    def page(self, **options):
        by_rest = self.web.get("/api/jobs", params=options)
        assert by_rest.status_code == 200, by_rest.text
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        found = by_rest.json()
        assert found == self.by_command("jobs", "list", *words)
        assert found == as_json(self.jobs.list(**options))
        return found

    def by_command(self, *words):
        context = CLIContext(app=self.app, no_color=True, workdir=None)
        done = CliRunner().invoke(affinity, [*words, "--json"], obj=context, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def all_pages(self, limit, **which):
        """Return the ids of the jobs on all pages."""
        found, cursor = [], {}
        while True:
            page = self.page(limit=limit, **which, **cursor)
            assert len(page["jobs"]) <= limit
            found += [each["job_id"] for each in page["jobs"]]
            if page["cursor"] is None:
                return found
            cursor = {"cursor": page["cursor"]}

    def one(self, id):
        by_rest = self.web.get(f"/api/jobs/{id}").json()
        assert by_rest == as_json(self.jobs.get(id))
        whole = self.web.get(f"/api/jobs/{id}?explain=1").json()
        if "explanation" in whole:
            explained = self.by_command("explain", id)
            moving = {name for name in explained if name.endswith(("_s", "score"))}  # numbers that grow with time
            assert _without(whole.pop("explanation"), moving) == _without(explained, moving)
            assert whole == by_rest
        return by_rest


def _without(found, names):
    if isinstance(found, dict):
        return {name: _without(value, names) for name, value in found.items() if name not in names}
    return [_without(each, names) for each in found] if isinstance(found, list) else type(found)


@pytest.fixture
def asked(app, web):
    return Asked(app, web)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=some_jobs, limit=draw.sampled_from([1, 3, 7, 1000]))
def test_pages_by_state_are_disjoint_complete_and_consistent(asked, fleet, drawn, limit):
    fleet.scheduler.client.flushall()
    ids = fill(fleet, drawn)
    tell(fleet, batches_alone=True)
    runs = runs_of(fleet, ids)
    found = [(state, job_id) for state in LISTED for job_id in asked.all_pages(limit, state=state)]
    assert sorted(job_id for _, job_id in found) == sorted(set(runs.values()))
    state_of = {job_id: state for state, job_id in found}
    for job_id in ids[:: max(1, len(ids) // 4)]:
        assert asked.one(f"task-{job_id}")["state"] == state_of[runs[job_id]]
    for type_ in TYPES:
        of_type = {runs[name] for name, each in zip(ids, drawn, strict=True) if each["type_"] == type_}
        listed = [each for state in LISTED for each in asked.all_pages(limit, state=state, type=type_)]
        assert sorted(listed) == sorted(of_type)
    live = {job_id for state, job_id in found if state not in ("done", "failed", "revoked", "expired")}
    assert sorted(asked.all_pages(limit, task="tests.*")) == sorted(live)
    assert asked.all_pages(limit, task="others.*") == []


def test_unknown_job_is_unknown_in_all_interfaces(asked, fleet):
    assert asked.one("nobody")["state"] == "unknown"
