"""``preemptible=True``: places that refuse it, and jobs whose rules include it."""

import pytest
from celery import Celery, Task, group

from celery_affinity import Affinity, Merge, publish_many
from celery_affinity.publishing.validation import check_app

from ..support.misspellings import nothing, refused

TENANT = "key=tenant%3Aacme quota=settings"
NEEDS = "preemptible=True needs acks_late=True: a task that was acked early cannot be run again"
MAY_BE_STOPPED = Affinity(tenant="acme", preemptible=True)


@pytest.fixture
def rules_of(app):
    def rules_of(publish):
        publish()
        found = [app.redis.hget(job, "rules") for job in app.redis.scan_iter("*job:*")]
        app.redis.flushdb()
        return [each and each.decode() for each in found]

    return rules_of


@pytest.mark.parametrize("options", [{"preemptible": True}, {"affinity": MAY_BE_STOPPED}])
def test_early_acked_task_is_refused(new_app, options):
    with refused(f"task shop.render: {NEEDS}"):
        new_app().task(name="shop.render", **options)(nothing)
    with refused(f"task shop.render: {NEEDS}"):
        new_app(task_acks_late=True).task(name="shop.render", acks_late=False, **options)(nothing)
    new_app(task_acks_late=True).task(name="shop.render", **options)(nothing)
    new_app().task(name="shop.render", acks_late=True, **options)(nothing)

    class Late(Task):
        acks_late = True

    new_app().task(name="shop.render", base=Late, **options)(nothing)


def test_task_is_refused_once_its_app_is_configured(new_app):
    late = Celery("shop", set_as_current=False)
    late.config_from_object({"broker_transport": "celery_affinity:Transport", "task_acks_late": True})
    late.task(name="shop.render", shared=False, affinity=MAY_BE_STOPPED)(nothing)
    check_app(late)
    early = Celery("shop", set_as_current=False)
    early.config_from_object({"broker_transport": "celery_affinity:Transport"})
    early.task(name="shop.render", shared=False, affinity=MAY_BE_STOPPED)(nothing)
    with refused(f"task shop.render: {NEEDS}"):
        check_app(early)
    with refused(f"task shop.render: {NEEDS}"):
        early.tasks["shop.render"].delay()


def test_call_of_an_early_acked_task_is_refused(app):
    task = app.task(name="shop.render", shared=False)(nothing)
    for options in ({"preemptible": True}, {"affinity": MAY_BE_STOPPED}):
        with refused(f"call of task shop.render: {NEEDS}"):
            task.apply_async(**options)


@pytest.mark.parametrize("value", [1, "yes"])
def test_value_other_than_a_bool_is_refused(new_app, app, value):
    with refused("task shop.render: preemptible must be True or False, got"):
        new_app().task(name="shop.render", acks_late=True, preemptible=value)(nothing)
    with refused("preemptible must be True or False, got"):
        Affinity(preemptible=value)
    task = app.task(name="shop.render", shared=False, acks_late=True)(nothing)
    with refused("preemptible must be True or False, got"):
        task.apply_async(preemptible=value, tenant="acme")


def test_only_jobs_with_a_tenant_are_marked_preemptible(app, rules_of):
    task = app.task(name="shop.render", shared=False, acks_late=True, affinity=MAY_BE_STOPPED)(nothing)
    assert rules_of(task.delay) == [f"{TENANT} preemptible=1"]
    assert rules_of(lambda: task.apply_async(preemptible=False)) == [TENANT]
    assert rules_of(lambda: task.apply_async(tenant=False)) == [None]
    assert rules_of(lambda: task.apply_async(exclusive="k")) == [f"key=k limit=1 {TENANT} preemptible=1"]
    assert rules_of(lambda: publish_many(task, [(), ()])) == [f"{TENANT} preemptible=1"] * 2
    assert rules_of(group(task.s(), task.s().set(preemptible=False)).delay) in (
        [TENANT, f"{TENANT} preemptible=1"],
        [f"{TENANT} preemptible=1", TENANT],
    )
    plain = app.task(name="shop.plain", shared=False, acks_late=True)(nothing)
    assert rules_of(lambda: plain.apply_async(preemptible=True)) == [None]
    assert rules_of(lambda: plain.apply_async(preemptible=True, tenant="acme")) == [f"{TENANT} preemptible=1"]
    merging = Affinity(tenant="acme", preemptible=True, merge=Merge("all", keep="last"))
    merges = app.task(name="shop.merges", shared=False, acks_late=True, affinity=merging)(nothing)
    (rules,) = rules_of(merges.delay)
    assert rules.startswith("merge=all")
    assert rules.endswith(f"{TENANT} preemptible=1")


def test_task_names_can_set_preemptible(app, rules_of):
    app.conf.affinity_task_rules = {"shop.r*": {"tenant": "acme", "preemptible": True}, "shop.*": {"preemptible": True}}
    task = app.task(name="shop.render", shared=False, acks_late=True)(nothing)
    assert rules_of(task.delay) == [f"{TENANT} preemptible=1"]
    assert rules_of(lambda: task.apply_async(preemptible=False)) == [TENANT]
    assert rules_of(lambda: app.send_task("shop.remote")) == [f"{TENANT} preemptible=1"]
    assert rules_of(lambda: app.send_task("shop.store")) == [None]
    never = app.task(name="shop.rest", shared=False, acks_late=True, preemptible=False)(nothing)
    assert rules_of(never.delay) == [TENANT]


def test_name_of_an_early_acked_task_is_refused(app):
    app.conf.affinity_task_rules = {"shop.*": {"tenant": "acme", "preemptible": True}}
    app.task(name="shop.render", shared=False)(nothing)
    app.task(name="shop.rest", shared=False, preemptible=False)(nothing)
    with refused(f"affinity_task_rules of task shop.render: {NEEDS}"):
        check_app(app)
    with refused(f"call of task shop.render: {NEEDS}"):
        app.tasks["shop.render"].delay()
