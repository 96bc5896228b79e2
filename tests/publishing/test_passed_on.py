"""Modes in the messages of canvases that no worker runs."""

# Longer than 300 lines: many canvases, each with the modes of all its steps.

import base64
import json
import os
import subprocess
import sys

import pytest
from celery import Celery, chain, chord, group, signature
from kombu.utils.json import dumps, loads

from celery_affinity import Affinity, OptionError, publish_many
from celery_affinity.publishing.canvas import inheriting
from celery_affinity.publishing.message import PROPERTY

from ..support.apps import app_for
from ..support.pages import blocks


def app_of(url, **settings):
    return app_for(url, **{"result_backend": "cache+memory://", **settings})


@pytest.fixture
def app(redis_client, valkey):
    app = app_of(valkey.url)
    app.redis = redis_client
    yield app
    app.close()


def published(app):
    """Return the messages of the jobs published since the last call, by task."""
    found = {}
    for key in app.redis.scan_iter("*message:*"):
        message = loads(app.redis.get(key).decode())
        found[message["headers"]["task"]] = message
    app.redis.flushdb()
    return found


def mode(message):
    return message["properties"].get(PROPERTY, {}).get("on_demand")


def embedded(message):
    """Return the modes of the signatures in a message, by task."""
    _, _, embed = loads(message["body"])
    found = {}

    def look(sig, of_whole=None):
        if isinstance(sig, list):
            for each in sig:
                look(each, of_whole)
        elif sig:
            mode = sig["options"].get("on_demand", of_whole)
            look([sig["kwargs"].get(name) for name in ("tasks", "header", "body") if sig.get("subtask_type")], mode)
            look([sig["options"].get(name) for name in ("link", "link_error")])
            if not sig.get("subtask_type"):
                found[sig["task"]] = mode

    look(list(embed.values()))
    return found


def task_of(app, name, **options):
    def nothing(*_):
        pass

    return app.task(name=name, shared=False, **options)(nothing)


def s(app, name, mode=None, **options):
    """Return a signature of a task that this app does not define."""
    return signature(name, app=app, options=options if mode is None else {**options, "on_demand": mode})


def test_links_of_a_call_inherit_its_mode(app):
    task = task_of(app, "known")
    for call in (task.apply_async, lambda **options: app.send_task("known", **options)):
        call(on_demand=True, link=s(app, "b"), link_error=[dict(s(app, "c")), s(app, "d", False)])
        message = published(app)["known"]
        assert mode(message) is True
        assert embedded(message) == {"b": True, "c": True, "d": False}
        call(link=s(app, "b"))
        assert embedded(published(app)["known"]) == {"b": None}


def test_chain_steps_of_a_call_inherit_its_mode(app):
    rest = [s(app, "c"), chord([s(app, "d")], s(app, "e", False), app=app)]
    app.send_task("a", on_demand=True, chain=rest)
    assert embedded(published(app)["a"]) == {"c": True, "d": True, "e": False}
    app.send_task("a", affinity=Affinity(on_demand=False), chain=[dict(each) for each in rest])
    assert embedded(published(app)["a"]) == {"c": False, "d": False, "e": False}
    app.send_task("a", on_demand=True, chord=s(app, "b"), group_id="group")
    assert embedded(published(app)["a"]) == {"b": True}


def test_signature_may_be_published_again(app):
    canvas = chain(s(app, "a", link=[s(app, "b")]), s(app, "c"), app=app)
    for options, expected in (({}, None), ({"on_demand": True}, True), ({}, None), ({"on_demand": False}, False)):
        canvas.apply_async(**options)
        message = published(app)["a"]
        assert mode(message) is expected
        assert embedded(message) == {"b": expected, "c": expected}


def test_docs_example_has_the_documented_modes(app):
    names = {name: task_of(app, name) for name in ("scan", "render", "archive")}
    code = blocks("docs/reference/options.md")["canvas"]
    exec("".join(code.splitlines(keepends=True)[:-1]), names)
    assert embedded(published(app)["scan"]) == {"render": True, "archive": False}
    names["upload"].apply_async()
    message = published(app)["scan"]
    assert (mode(message), embedded(message)) == (None, {"render": None, "archive": False})


def test_chord_called_with_its_body_passes_the_mode(app):
    chord([s(app, "a")], app=app)(s(app, "b"), on_demand=True)
    message = published(app)["a"]
    assert (mode(message), embedded(message)) == (True, {"b": True})


def test_mode_of_task_route_or_handler_is_not_inherited(app):
    app.conf.task_routes = {"routed": {"on_demand": True}}
    first = task_of(app, "first", affinity=Affinity(on_demand=True))
    for each in (first.s(), s(app, "routed")):
        chain(each, s(app, "b"), app=app).apply_async()
        (message,) = published(app).values()
        assert (mode(message), embedded(message)) == (True, {"b": None})


def test_mode_of_the_call_wins_over_its_tasks(app):
    for each in (True, False):
        last = task_of(app, f"not {each}", affinity=Affinity(on_demand=not each))
        group(last.s(), app=app).apply_async(on_demand=each)
        assert mode(published(app)[f"not {each}"]) is each


def test_type_of_a_group_does_not_change_nested_modes(app):
    group(s(app, "a", affinity=Affinity("pdf", on_demand=False)), s(app, "b"), app=app).apply_async(
        affinity=Affinity("excel", priority=3, on_demand=True)
    )
    found = published(app)
    assert {name: mode(each) for name, each in found.items()} == {"a": False, "b": True}
    assert {each["properties"]["delivery_info"]["routing_key"] for each in found.values()} == {"excel"}, (
        "as Celery has it"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda app: chain(s(app, "a"), s(app, "b"), app=app),
        lambda app: group([s(app, "a"), s(app, "b")], app=app),
        lambda app: chord([s(app, "a")], s(app, "b"), app=app),
        lambda app: s(app, "a", link=[s(app, "b")]),
    ],
)
def test_invalid_mode_is_refused_before_any_publish(app, make):
    with pytest.raises(OptionError, match="on_demand must be True or False, got: 'yes'"):
        make(app).apply_async(on_demand="yes")
    bad = make(app)
    part = bad.kwargs.get("body") or (bad.kwargs.get("tasks") or bad.options["link"])[-1]
    part.options["on_demand"] = "yes"  # `set` would refuse it
    with pytest.raises(OptionError, match="on_demand must be True or False, got: 'yes'"):
        bad.apply_async(on_demand=True)
    assert not published(app)


def test_stamp_named_like_the_mode_belongs_to_users(app):
    canvas = group(s(app, "a"), s(app, "b"), app=app)
    canvas.stamp(on_demand="by a stamp")
    canvas.apply_async()
    for message in published(app).values():
        assert mode(message) is None
        assert message["headers"]["stamps"] == {"on_demand": "by a stamp"}


def test_canvas_without_a_mode_equals_stock_celerys(app):
    canvases = [
        chain(s(app, "a"), group(s(app, "b"), s(app, "c")), s(app, "d"), app=app),
        group(chain(s(app, "a"), s(app, "b")), s(app, "c"), app=app),
        chord([s(app, "a")], chain(s(app, "b"), s(app, "c")), app=app),
        dict(chain(s(app, "a"), s(app, "b"), app=app)),
    ]
    for canvas in canvases:
        assert inheriting(canvas, {}) is canvas
        signature(canvas, app=app).apply_async()
        for message in published(app).values():
            assert "on_demand" not in dumps(message)


@pytest.mark.parametrize(
    "rubbish",
    [
        7,
        "x",
        None,
        [7, None, {}],
        {"a": 1},
        {"task": "b", "options": 7, "kwargs": 7},
        {"task": "b", "subtask_type": "chain", "options": {}, "kwargs": {"tasks": 7}},
        {"task": "b", "subtask_type": "chord", "options": {}, "kwargs": {}},
        {"task": "b", "subtask_type": ["chain"], "options": {"link": 7}, "kwargs": {}},
    ],
)
def test_untrusted_signatures_may_be_invalid(app, rubbish):
    """A retry publishes the fields of its message."""
    app.send_task("a", on_demand=True, link=rubbish, link_error=rubbish, chain=rubbish, chord=rubbish)
    assert mode(published(app)["a"]) is True


def test_first_call_of_an_unprepared_process_passes_its_mode(valkey, redis_client):
    """The first connection imports the transport, and the call itself makes that connection."""
    code = """
import os, sys
from celery import Celery, chain, group, chord, signature
app = Celery("first", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])
app.conf.broker_transport = "celery_affinity:Transport"
s = lambda name, **options: signature(name, app=app, options=options)
assert "celery_affinity" not in sys.modules
"""
    calls = {
        "chain(s('a'), s('b'), chord([s('c')], s('d', on_demand=False))).apply_async(on_demand=True)": {
            "a": (True, {"b": True, "c": True, "d": False})
        },
        "app.send_task('a', link=s('b'), chain=[s('c')], on_demand=True)": {"a": (True, {"b": True, "c": True})},
        "group(chain(s('a'), s('b')), s('c', link=[s('d')])).apply_async(on_demand=True)": {
            "a": (True, {"b": True}),
            "c": (True, {"d": True}),
        },
        "chord([s('a')], chain(s('b'), s('c'))).apply_async(on_demand=True)": {"a": (True, {"b": True, "c": True})},
    }
    for call, expected in calls.items():
        env = {**os.environ, "BROKER_URL": valkey.url}
        subprocess.run([sys.executable, "-c", code + call], env=env, check=True, timeout=30)
        found = {name: (mode(each), embedded(each)) for name, each in published_on(redis_client).items()}
        assert found == expected, call


def published_on(client):
    app = Celery(set_as_current=False)
    app.redis = client
    return published(app)


def test_chord_unlock_task_has_the_mode_of_the_body(valkey, redis_client, tmp_path):
    """With a backend that cannot count a chord's parts, a task polls for them."""
    app = app_of(valkey.url, result_backend=f"file://{tmp_path}")
    app.redis = redis_client
    for body in (s(app, "b"), chain(s(app, "b"), s(app, "c"), app=app), group([s(app, "b")], app=app)):
        for options, expected in (({"on_demand": True}, True), ({}, None)):
            chord([s(app, "a")], body, app=app).apply_async(**options)
            assert mode(published(app)["celery.chord_unlock"]) is expected
    chord([s(app, "a")], s(app, "b", True), app=app).apply_async()
    assert mode(published(app)["celery.chord_unlock"]) is True
    app.close()


def test_app_with_another_transport_is_left_alone(redis_client, valkey):
    app = Celery("stock", broker=valkey.url, backend="cache+memory://", set_as_current=False)
    chain(s(app, "a"), s(app, "b"), app=app).apply_async(on_demand=True)
    message = loads(redis_client.lpop("celery").decode())
    body = json.loads(base64.b64decode(message["body"]))
    assert message["properties"]["on_demand"] is True
    assert "on_demand" not in body[2]["chain"][0]["options"]
    canvas = s(app, "a") | group([s(app, "b"), s(app, "c")], app=app).set(on_demand="yes") | s(app, "d")
    canvas.apply_async(affinity=["of", "its own"], on_demand="yes")
    message = loads(redis_client.lpop("celery").decode())
    assert (message["properties"]["affinity"], message["properties"]["on_demand"]) == (["of", "its own"], "yes")
    app.close()


def test_eager_app_runs_its_canvas(valkey):
    app = app_of(valkey.url, task_always_eager=True)

    @app.task(shared=False)
    def add(*numbers):
        return sum(numbers)

    @app.task(shared=False)
    def total(numbers):
        return sum(numbers)

    for canvas, expected in (
        (chain(add.s(1, 2), add.s(3)), 6),
        (chord([add.s(1, 1), add.s(2, 2)], total.s()), 6),
        (chain(add.s(1, 2), group(add.s(1), add.s(2)), total.s()), 9),
    ):
        assert canvas.apply_async(on_demand=True).get() == expected
    assert group(add.s(1), add.s(2)).apply_async(on_demand=True).get() == [1, 2]
    app.close()


def test_link_of_publish_many_inherits_the_mode(app):
    task = task_of(app, "task")
    publish_many(task, [()] * 3, on_demand=True, link=s(app, "b"))
    messages = [loads(app.redis.get(key).decode()) for key in app.redis.scan_iter("*message:*")]
    assert [(mode(each), embedded(each)) for each in messages] == [(True, {"b": True})] * 3
    with pytest.raises(OptionError, match="must be a signature of task without options"):
        publish_many(task, [chain(task.s(), task.s(), app=app)], on_demand=True)
