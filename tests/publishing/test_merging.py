"""The merge key of a call's job: the places that can set it, and their precedence."""

import json
import re

import pytest

from celery_affinity import Affinity, Exclusive, Merge, OptionError, publish_many
from celery_affinity.publishing import option_resolution
from celery_affinity.publishing.message import PROPERTY
from celery_affinity.publishing.validation import check_app

from ..support.apps import app_for
from ..support.kept_rules import kept_rules
from ..support.misspellings import refused, task

LAST = Merge("{city}", keep="last")
HH = "merge=HH most=1000 bytes=1000000"
KEY = "key=HH limit=1"


def jobs(app):
    """Return the rules of every job published since the last call whose id suffix names rules."""
    found = []
    for key in app.redis.scan_iter("*job:*"):
        rules = app.redis.hget(key, "rules")
        rules = rules.decode() if rules else ""
        marks = ("+" if "merge=" in rules else "") + ("!" if "key=" in rules else "")
        if b"*" not in key:  # it is not a batch
            assert re.search(r"[\w-]" + re.escape(marks) + "$", key.decode())
            message = json.loads(app.redis.get(key.replace(b"job:", b"message:")))
            said = message["properties"].get(PROPERTY, {}).get("rules", "")
            assert kept_rules(said) == rules
            assert "merge_key" not in message["properties"]
            found.append(said)
    app.redis.flushdb()
    return sorted(found)


@pytest.fixture
def new_task(app):
    def make(name="proj.reroute", **affinity):
        def reroute(city=None, force=False):
            pass

        return app.task(name=name, shared=False, affinity=Affinity(**affinity))(reroute)

    return make


@pytest.mark.parametrize(
    ("affinity", "rules"),
    [
        ({"merge": LAST}, HH),
        ({"merge": Merge("{city}:{force}", keep="all", most=5, most_bytes=9)}, "merge=HH%3AFalse most=5 bytes=9"),
        ({"merge": Merge(lambda args, kwargs: args[0], keep="first")}, HH),
        ({"merge": LAST, "exclusive": "{city}"}, f"{HH} {KEY}"),
        ({"merge": Merge(lambda args, kwargs: None, keep="first"), "exclusive": "{city}"}, KEY),
    ],
)
def test_task_sets_its_merge_key(app, new_task, affinity, rules):
    reroute = new_task(**affinity)
    reroute.delay("HH")
    assert jobs(app) == [rules]
    publish_many(reroute, [("HH",), ("HH",)])
    assert jobs(app) == [rules] * 2


def test_call_with_none_as_key_argument_does_not_merge(app, new_task):
    new_task(merge=LAST).delay()
    assert jobs(app) == [""]


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({"merge_key": "x y"}, f"merge=x%20y most=1000 bytes=1000000 {KEY}"),
        ({"merge_key": False}, KEY),
        ({"merge_key": None}, f"{HH} {KEY}"),
        ({"exclusive": False}, HH),
        ({"exclusive": "other"}, f"{HH} key=other limit=1"),
        ({"exclusive": False, "merge_key": False}, ""),
    ],
)
def test_call_may_set_another_merge_key_or_none(app, new_task, options, rules):
    reroute = new_task(merge=LAST, exclusive=Exclusive("{city}"))
    reroute.apply_async(("HH",), **options)
    reroute.s("HH").set(**options).apply_async()
    assert jobs(app) == [rules] * 2


def test_call_of_unknown_tasks_may_set_a_merge_key(app):
    app.send_task("else.where", ("HH",), merge_key="HH")
    assert jobs(app) == [HH]


@pytest.fixture
def named(app):
    """Return the app with rules for names: one only merges, another has a key as well."""
    app.conf.affinity_task_rules = {
        "proj.plan.own": {"merge": {"key": "all", "fold": "proj.plans.union", "most": 7}},
        "proj.plan.*": {"merge": LAST, "exclusive": "{city}"},
    }
    return app


def test_producer_without_the_code_sets_merging_by_pattern(named):
    for options, rules in (
        ({}, f"{HH} {KEY}"),
        ({"merge_key": "x"}, f"merge=x most=1000 bytes=1000000 {KEY}"),
        ({"merge_key": False}, KEY),
        ({"exclusive": False}, HH),
    ):
        named.send_task("proj.plan.far", kwargs={"city": "HH"}, **options)
        assert jobs(named) == [rules]
    named.send_task("proj.plan.own", merge_key="x")
    assert jobs(named) == ["merge=x most=7 bytes=1000000"], "the bounds are those of the name"
    with refused('merge "{city}": task proj.plan.far was called without keyword argument'):
        named.send_task("proj.plan.far", ("HH",))


def test_known_task_prefers_its_own_merging_to_its_names(named, new_task):
    new_task("proj.plan.one").delay("HH")
    assert jobs(named) == [f"{HH} {KEY}"]
    new_task("proj.plan.two").apply_async(("HH",), merge_key="x")
    assert jobs(named) == [f"merge=x most=1000 bytes=1000000 {KEY}"]
    new_task("proj.plan.own", merge=Merge("{city}", keep="first", most=3)).delay("HH")
    assert jobs(named) == ["merge=HH most=3 bytes=1000000"]
    new_task("proj.plan.four", exclusive="own").delay("HH")
    assert jobs(named) == [f"{HH} key=own limit=1"], "each kind of rule for itself"


def test_invalid_merge_options_of_a_call_are_refused(app, new_task):
    plain = new_task("plain")
    with refused("merge_key='x': calls of task plain are not merged; its affinity must say merge=Merge(...)"):
        plain.apply_async(("HH",), merge_key="x")
    for value in ("", True, 5):
        with pytest.raises(OptionError, match="merge_key"):
            plain.apply_async(("HH",), merge_key=value)
    with refused("merge belongs to a task; a call can only give its key, with merge_key=, got: Merge("):
        plain.apply_async(("HH",), affinity=Affinity(merge=LAST))
    assert jobs(app) == []


def test_unfillable_merge_key_is_refused_at_the_decorator(app, new_task):
    with refused("merge \"{town}\": task proj.reroute has no argument 'town'; it takes: city, force"):
        new_task(merge=Merge("{town}", keep="last"))
    with refused(
        "task shop.render: merge= is no option of its own; a task has it in its affinity: Affinity(merge=Merge("
    ):
        task(app, merge=LAST)
    new_task(merge=LAST)
    check_app(app)


def test_unscheduled_queue_merges_nothing_and_warns_once(valkey, redis_client, caplog):
    app = app_for(valkey.url, affinity_queues=["pdf"])
    option_resolution.warn_of_queue.cache_clear()
    for _ in range(2):
        app.send_task("far", merge_key="k")
    for message in map(json.loads, redis_client.lrange("celery", 0, -1)):
        assert not {"merge_key", PROPERTY} & message["properties"].keys()
    assert redis_client.llen("celery") == 2
    assert caplog.text.count("Jobs of task 'far' have a key, which has no effect on queue 'celery'") == 1
