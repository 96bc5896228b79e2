"""Recurring calls: the conversion of signatures to entries, and the firing of due entries."""

import json
import re

import pytest

from celery_affinity import Affinity, Merge, OptionError
from celery_affinity.publishing import recurring
from celery_affinity.scheduler.messages import DueCall

LAST = Merge("{city}", keep="last")


def refused(words):
    return pytest.raises(OptionError, match=re.escape(words))


def plan(city=None):
    pass


@pytest.fixture
def reroute(app):
    def reroute(city=None, force=False):
        pass

    return app.task(name="proj.reroute", shared=False, affinity=Affinity("route", merge=LAST))(reroute)


@pytest.fixture
def plain(app):
    return app.task(name="proj.plain", shared=False, affinity="route")(plan)


def entry(app, signature, **options):
    return recurring.call_of_signature(app, "hh", signature, **{"stale_after": 300, **options})


def due(found, at="17"):
    return DueCall("hh", at, found.task, found.signature)


def fired(app, signature):
    return recurring.recurring_job(app, due(entry(app, signature)))


def test_entry_has_the_fields_that_matching_calls_have(app, reroute):
    found = entry(app, reroute.s("New York", force=True), stale_after=1.5, since="end")
    assert (found.name, found.task, found.type, found.merge_key) == ("hh", "proj.reroute", "route", "New%20York")
    assert (found.stale_after_us, found.since) == (1_500_000, "end")
    assert json.loads(found.signature)["args"] == ["New York"]
    assert entry(app, reroute.s("HH").set(queue="other")).type == "other"
    assert entry(app, reroute.s("HH").set(merge_key="x")).merge_key == "x"
    assert app.redis.keys() == [], "nothing was published"


def test_entry_sends_no_signal_but_its_job_does(app, reroute, request):
    from celery.signals import before_task_publish

    seen = []
    handler = before_task_publish.connect(lambda headers=None, **_: seen.append(headers["id"]), weak=False)
    request.addfinalizer(lambda: before_task_publish.disconnect(handler))
    found = entry(app, reroute.s("HH"))
    assert seen == []
    job = recurring.recurring_job(app, due(found))
    assert seen == [job.task_id]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stale_after": 0.5}, "stale_after must be a number of seconds, 1 or more, up to 315,360,000, got: 0.5"),
        ({"since": "now"}, "since must be 'enqueue' or 'end', got: 'now'"),
    ],
)
def test_invalid_interval_is_refused(app, reroute, options, words):
    with refused(words):
        entry(app, reroute.s("HH"), **options)


def test_call_without_a_merge_key_does_not_recur(app, reroute, plain):
    needs = "recurring 'hh' needs a task with a merge key: that is what 'matching' means"
    for signature in (plain.s("HH"), reroute.s(), reroute.s("HH").set(merge_key=False)):
        with refused(needs):
            entry(app, signature)


def test_canvas_does_not_recur(app, reroute):
    for signature in (reroute, reroute.s("HH") | reroute.s(), "proj.reroute", None):
        with refused("recurring 'hh' must be a signature of one task, such as reroute.s('HH'), got:"):
            entry(app, signature)


@pytest.mark.parametrize("option", [{"countdown": 3}, {"task_id": "x"}, {"eta": "2026-01-01"}])
def test_call_with_time_or_own_id_does_not_recur(app, reroute, option):
    (name,) = option
    with refused(f"recurring 'hh' must have no {name}: each firing has its own, got:"):
        entry(app, reroute.s("HH").set(**option))


def test_signature_beyond_json_or_size_limit_does_not_recur(app, reroute):
    with refused("recurring 'hh' must be a signature that JSON can represent"):
        entry(app, reroute.s("HH", force=object()))
    with refused("recurring 'hh' must have at most 100,000 characters, got: "):
        entry(app, reroute.s("HH", force="x" * 100_000))


def test_unscheduled_queue_or_other_transport_refuses_recurring_calls(app, reroute, new_app):
    app.conf.affinity_queues = ["pdf"]
    with refused("recurring 'hh' needs a queue that is scheduled (affinity_queues), got: 'route'"):
        entry(app, reroute.s("HH"))
    stock = new_app(transport="redis")
    task = stock.task(name="x", shared=False)(plan)
    with refused("recurring 'hh': a recurring call needs broker_transport 'celery_affinity:Transport'"):
        entry(stock, task.s())


def test_repeated_firing_is_one_job_and_the_next_another(app, reroute):
    found = entry(app, reroute.s("HH"))
    one, again, next_one = (recurring.recurring_job(app, due(found, at)) for at in ("17", "17", "18"))
    assert (one.id, one.task_id) == (again.id, again.task_id)
    assert not {one.id, one.task_id} & {next_one.id, next_one.task_id}
    by_hand = [recurring.recurring_job(app, due(found, "")) for _ in range(2)]
    assert by_hand[0].id != by_hand[1].id, "an operator makes a call as often as he says so"


def test_firing_has_the_lowest_priority_by_default(app, reroute):
    assert (fired(app, reroute.s("HH")).priority, fired(app, reroute.s("HH")).on_demand) == (0, False)
    urgent = app.task(
        name="proj.urgent", shared=False, affinity=Affinity("route", priority=7, on_demand=True, merge=LAST)
    )(plan)
    assert (fired(app, urgent.s("HH")).priority, fired(app, urgent.s("HH")).on_demand) == (0, False)
    assert fired(app, urgent.s("HH").set(priority=3)).priority == 3
    assert fired(app, urgent.s("HH").set(affinity=Affinity(priority=4))).priority == 4
    assert fired(app, urgent.s("HH").set(on_demand=True)).on_demand


def test_firing_has_priority_10_when_lower_comes_first(app, reroute):
    app.conf.affinity_priority_order = "lower-first"
    assert fired(app, reroute.s("HH")).priority == 0, "as the scripts count"


@pytest.mark.parametrize("text", ["", "[]", '{"task": "other"}', "\x00", '{"task": "proj.reroute", "args": 7}'])
def test_corrupt_entry_is_refused(app, reroute, text):
    with pytest.raises((OptionError, TypeError)):
        recurring.recurring_job(app, DueCall("hh", "17", "proj.reroute", text))
    assert app.redis.keys() == []


def test_configured_entries_are_declared_one_by_one(app, reroute, plain):
    app.conf.affinity_recurring = {
        "good": {"task": "proj.reroute", "kwargs": {"city": "HH"}, "stale_after": 2, "options": {"priority": 3}},
        "plain": {"task": "proj.plain", "stale_after": 2},
        "gone": {"task": "proj.gone", "stale_after": 2},
    }
    found = dict(recurring.calls_in_conf(app))
    assert found["good"].merge_key == "HH"
    assert json.loads(found["good"].signature)["options"] == {"priority": 3}
    assert str(found["plain"]).startswith("recurring 'plain' needs a task with a merge key")
    assert str(found["gone"]) == "affinity_recurring: the app has no task 'proj.gone'"
