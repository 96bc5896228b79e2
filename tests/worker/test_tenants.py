"""Tenants on real workers: their numbers of slots, and the tenants of calls that a tenant's jobs publish."""

import pytest
from celery import chain, chord, group

from ..support.processes import start_worker

TENANTS = "tests.support.apps.tenants"


@pytest.fixture(params=["prefork", "threads"])
def tasks(request, valkey, load_app):
    tasks = load_app(TENANTS).tasks
    start_worker(TENANTS, valkey.url, ["celery"], pool=request.param, concurrency=5)
    return tasks


def most_at_once(times):
    return max(sum(began <= at < ended for began, ended in times) for at, _ in times)


def test_tenant_never_exceeds_its_maximum_while_others_run(tasks):
    render = tasks["tenants.render"]
    flood = [render.delay("acme", 0.2, number % 2 == 0) for number in range(8)]
    other = [render.delay("other", 0.2) for _ in range(3)]
    last_of_other = max(ended for _, ended in (each.get(timeout=60) for each in other))
    times = [each.get(timeout=60) for each in flood]
    assert most_at_once(times) == 2
    assert last_of_other < max(ended for _, ended in times)


def test_calls_of_a_tenants_task_inherit_the_tenant(tasks):
    told, publish, becomes = (tasks[f"tenants.{name}"] for name in ("told", "publish", "becomes"))
    app = told.app
    found = [app.AsyncResult(each).get(timeout=60) for each in publish.delay("beta").get(timeout=60)]
    assert found == ["beta", "other", None]
    assert told.delay().get(timeout=60) is None
    assert becomes.delay("beta").get(timeout=60) == "beta"


def test_parts_of_a_canvas_inherit_the_tenant(tasks):
    told, publish = tasks["tenants.told"], tasks["tenants.publish"]
    first = chain(publish.si("beta"), told.si(), told.si())()
    assert [first.parent.get(timeout=60), first.get(timeout=60)] == ["beta", "beta"]
    by_call = chain(told.si(), group(told.si(), told.si())).apply_async(tenant="zed")
    assert [by_call.parent.get(timeout=60), *by_call.get(timeout=60)] == ["zed"] * 3
    body = chord([publish.si("beta"), publish.si("beta")], told.si())()
    assert body.get(timeout=60) == "beta"
    both = chord([told.si(), told.si()], told.si()).apply_async(tenant="zed")
    assert [*both.parent.get(timeout=60), both.get(timeout=60)] == ["zed"] * 3


def test_links_inherit_their_tasks_tenant(tasks):
    told, publish, fails = (tasks[f"tenants.{name}"] for name in ("told", "publish", "fails"))
    link, of_failure = told.si().set(task_id="the link"), told.si().set(task_id="the error link")
    publish.apply_async(("beta",), link=link)
    fails.apply_async(("beta",), link_error=of_failure)
    app = told.app
    assert app.AsyncResult("the link").get(timeout=60) == "beta"
    assert app.AsyncResult("the error link").get(timeout=60) == "beta"
