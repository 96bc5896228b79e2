"""Whatever the jobs: lists by state, in pages, are disjoint and complete, and each job has the state of its list."""

from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as draw

from celery_affinity.reports import job_lists
from celery_affinity.reports.job_lists import LISTED, JobFilter, jobs_page
from celery_affinity.reports.jobs import get_jobs

from ..support.jobs_in_all_states import TYPES, fill, runs_of, some_jobs, tell

pytestmark = pytest.mark.slow_on_redis

#: Numbers of lanes and of workers that are read together; and whether callers are told what ended without a worker.
together = draw.sampled_from([1, 2, 100])
are_told = draw.booleans()


def all_pages(reader, limit, **which):
    """Return the ids of the jobs on all pages, in order."""
    found, cursor, cursors = [], None, set()
    while True:
        page = jobs_page(reader, JobFilter(**which), limit, cursor)
        assert len(page.jobs) <= limit
        found += [each.job_id for each in page.jobs]
        assert page.cursor not in cursors, "a page leads back"
        cursors.add(page.cursor)
        if page.cursor is None:
            return found
        cursor = page.cursor


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=some_jobs, limit=draw.sampled_from([1, 3, 7, 1000]), together=together, are_told=are_told)
def test_pages_by_state_are_disjoint_and_complete(fleet, reader, drawn, limit, together, are_told):
    fleet.scheduler.client.flushall()
    fleet.scheduler.advance(1)  # the time as well was there
    ids = fill(fleet, drawn)
    tell(fleet, batches_alone=not are_told)
    runs = runs_of(fleet, ids)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job_lists, "_TOGETHER", together)
        by_state = {state: all_pages(reader, limit, state=state) for state in LISTED}
        assert sorted(chain.from_iterable(by_state.values())) == sorted(set(runs.values()))
        state_of = {job_id: state for state, found in by_state.items() for job_id in found}
        asked = get_jobs(reader, [f"task-{each}" for each in ids])
        assert [each.state for each in asked] == [state_of[runs[each]] for each in ids]
        for type_ in TYPES:
            of_type = {runs[each] for each, its in zip(ids, drawn, strict=True) if its["type_"] == type_}
            listed = [each for state in LISTED for each in all_pages(reader, limit, state=state, type=type_)]
            assert sorted(listed) == sorted(of_type)
        live = [each for each, state in state_of.items() if state not in ("done", "failed", "revoked", "expired")]
        assert sorted(all_pages(reader, limit)) == sorted(live)
        assert sorted(all_pages(reader, limit, task="tests.*")) == sorted(live)
        assert all_pages(reader, limit, task="others.*") == []
