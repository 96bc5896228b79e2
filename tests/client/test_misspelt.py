"""Options of ours with a wrong letter or a wrong value: the author of the call is told, and nobody else.

For most tests an app without a server is enough: a call that is not refused ends with another error.
"""

# Longer than 300 lines: every place where an option may be misspelt.

import json
import os
import re
import subprocess
import sys

import pytest
from amqp.basic_message import Message as AMQPMessage
from celery import Celery, chain, chord, group, shared_task, signature
from celery.app.defaults import NAMESPACES, flatten
from celery.app.task import Context, Task
from celery.beat import Scheduler as Beat
from celery.beat import SchedulingError
from kombu.exceptions import OperationalError

from celery_affinity import OptionError, SettingError, publish_many
from celery_affinity.check.gather_app import gather_app
from celery_affinity.client import misspelt
from celery_affinity.client.options import KNOWN, OPTIONS, check_app
from celery_affinity.rules.settings import load
from celery_affinity.rules.spelling import meant

from ..support.command import affinity  # noqa: F401
from ..support.messages import running
from ..support.processes import ROOT, Process, start_worker

OURS = "celery_affinity:Transport"
NOWHERE = "redis://127.0.0.1:1"
APP = "tests.support.apps.spelt"

MISSPELT = {
    "affinity": """
        affinty afinity afinty affinitty affintiy affnity affinit afffinity affinitiy effinity ffinity affiniry affinify
        Affinity AFFINITY affinity_
        """,
    "on_demand": """
        ondemand onDemand on-demand on__demand On_Demand on_deman on_demnd on_deamnd on_demmand on_demend on_demands
        on_dmand onn_demand
        """,
    "priority": "priorty prioirty prority priorit Priority piority",
}

#: Names that users may well give to options of their own.
OWN = """
    demand in_demand no_demand n_demand one_demand on_demand_by on_demand_only supply_on_demand demand_on
    on_remand on_command on_defend on_depend on_append on_end on_brand on_demand2 infinity affinities
    affinity_group affinity_key affinity2 my_affinity x_affinity node_affinity acidity agility ability activity
    vicinity divinity prior prioritize priorities prioritized priority_class priority2 x_priority x-priority
    max_priority minority superiority parity _affinity _priority retry_policy headers my_flag tenant user_id
    trace_id type types kind
    """.split()  # noqa: SIM905  # shorter

mistakes = pytest.mark.parametrize(
    ("name", "ours"), [(name, ours) for ours, names in MISSPELT.items() for name in names.split()]
)


@pytest.fixture
def new_app():
    """Return a function that makes an app that has this transport, and no server."""
    made = []

    def make(*, transport=OURS, url=NOWHERE, **settings):
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.update(
            broker_transport=transport, task_publish_retry=False, broker_connection_timeout=0.1, task_ignore_result=True
        )
        app.conf.update(settings)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(new_app):
    return new_app()


def nothing():
    pass


def task(app, name="shop.render", **options):
    return app.task(name=name, shared=False, **options)(nothing)


def refused(words):
    return pytest.raises(OptionError, match="^" + re.escape(words))


# -- spelling


@mistakes
def test_what_is_ours_but_for_a_letter(name, ours):
    assert meant(name, OPTIONS) == ours


@pytest.mark.parametrize("name", OWN)
def test_what_users_call_their_own(name):
    assert meant(name, OPTIONS) is None


def test_no_name_of_celerys_or_kombus_is_taken_for_a_mistake():
    names = {
        *dir(Task),
        *dir(Context),
        *dir(Celery),
        *KNOWN,
        *(name for name, _ in AMQPMessage.PROPERTIES),
        *(word for key, _ in flatten(NAMESPACES) for word in (key, *key.split("_"))),
    }
    assert len(names) > 500
    assert {name: meant(name, OPTIONS) for name in names if meant(name, OPTIONS)} == {}


# -- decorators and classes


@mistakes
def test_a_misspelt_option_of_a_decorator_is_refused_where_it_stands(app, name, ours):
    with refused(f"task shop.render: unknown option {name!r}; did you mean {ours!r}?"):
        task(app, **{name: "pdf"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"affinity": "a,b"}, "affinity must be the name of a queue that -Q can give"),
        ({"affinity": "pdf "}, "affinity must be the name of a queue that -Q can give"),
        ({"affinity": ""}, "affinity must be the name of a queue that -Q can give"),
        ({"affinity": "pd\nf"}, "affinity must be the name of a queue that -Q can give"),
        ({"affinity": 7}, "affinity must be a type (str) or an Affinity, got: 7"),
        ({"affinity": {"typ": "pdf"}}, "affinity must be a type (str) or an Affinity, got: {'typ': 'pdf'}; did you"),
        ({"on_demand": "yes"}, "on_demand must be True or False, got: 'yes'"),
        ({"priority": 11}, "priority must be a whole number from 0 to 10, got: 11"),
        ({"priority": -1}, "priority must be a whole number from 0 to 10, got: -1"),
        ({"priority": "5.5"}, "priority must be a whole number from 0 to 10, got: '5.5'"),
        ({"priority": float("nan")}, "priority must be a whole number from 0 to 10, got: nan"),
    ],
)
def test_a_value_that_is_refused_is_refused_wherever_it_is_written(new_app, valkey, options, words):
    app = new_app(url=valkey.url)
    with refused(f"task shop.render: {words}"):
        task(app, **options)
    with refused(f"task shop.render: {words}"):
        app.register_task(type("Render", (app.Task,), {"name": "shop.render", **options})())
    plain = task(app)
    with refused(f"signature of task shop.render: {words}"):
        plain.s().set(**options)
    for call in (
        lambda: plain.apply_async(**options),
        lambda: plain.signature(options=options).apply_async(),
        lambda: app.send_task("shop.far", **options),
        lambda: publish_many(plain, [()], **options),
    ):
        with pytest.raises(OptionError, match=re.escape(words)):
            call()
    for settings, where in (
        ({"task_routes": {"shop.*": options}}, "task_routes 'shop.*'"),
        ({"task_annotations": {"*": options}}, "task_annotations '*'"),
    ):
        with refused(f"{where}: {words}"):
            check_app(new_app(**settings))
    beat = new_app(beat_schedule={"nightly": {"task": "shop.far", "schedule": 9.0, "options": options}})
    assert any(each.startswith(f"beat entry 'nightly': {words}") for each in gather_app(beat).refused)


@pytest.mark.parametrize("priority", [None, 0, 10, "5", 5.0, True])
def test_what_stock_celery_takes_for_a_priority_is_taken(app, priority):
    task(app, priority=priority)
    task(app, "shop.other").s().set(priority=priority)


@pytest.mark.parametrize("own", OWN)
def test_options_of_the_users_own_are_taken(app, own):
    assert getattr(task(app, **{own: "x"}), own) == "x"
    task(app).s().set(**{own: "x"})


def test_all_ways_to_decorate(app):
    words = "task shop.render: unknown option 'affinty'; did you mean 'affinity'?"
    with refused(words):
        app.task(nothing, name="shop.render", shared=False, affinty="pdf")
    with refused(words):
        app.task(name="shop.render", shared=False, bind=True, lazy=False, affinty="pdf")(nothing)
    with refused("task tests.client.test_misspelt.nothing: unknown option"):
        app.task(shared=False, affinty="pdf")(nothing)
    with refused(words):
        task(app, base=type("Base", (app.Task,), {"abstract": True, "affinty": "pdf"}))
    with refused(words):
        task(app, autoretry_for=(OSError,), retry_kwargs={"affinty": "pdf"})
    assert "shop.render" not in app.tasks


def test_classes(app):
    class Render(app.Task):
        name = "shop.render"
        affinty = "pdf"

        def on_demands(self):
            """A method of the user's."""

        def run(self):
            pass

    words = "task shop.render: unknown option 'affinty'; did you mean 'affinity'?"
    for given in (Render, Render()):
        with refused(words):
            app.register_task(given)
    assert "shop.render" not in app.tasks
    del Render.affinty
    assert app.register_task(Render()).name == "shop.render"
    instance = Render()
    instance.afinity = "pdf"
    with refused("task shop.render: unknown option 'afinity'"):
        app.register_task(instance)


def test_a_class_that_was_registered_before_anybody_looked_is_refused_at_its_call(app):
    render, other = task(app), task(app, "shop.other")
    render.__class__.affinty = "pdf"
    for _ in range(2):
        with refused("task shop.render: unknown option 'affinty'; did you mean 'affinity'?"):
            render.delay()
    with pytest.raises(OperationalError):
        other.delay()


def test_an_app_that_says_later_which_transport_it_has_is_not_finalized_with_a_mistake(valkey):
    app = Celery("shop", broker=valkey.url, set_as_current=False)
    app.config_from_object({"broker_transport": OURS})
    render, other = task(app, affinty="pdf"), task(app, "shop.other")
    assert not app.configured, "nobody else's configuration is read early"
    for _ in range(2):
        for call in (lambda: other.delay(), lambda: render.delay(), app.finalize, lambda: app.tasks):
            with refused("task shop.render: unknown option 'affinty'; did you mean 'affinity'?"):
                call()
    assert gather_app(app).misspelt == ("task shop.render: unknown option 'affinty'; did you mean 'affinity'?",)
    app.close()


def test_an_app_with_another_transport_is_left_alone(new_app):
    for transport in (None, "memory"):
        app = new_app(transport=transport, task_routes={"shop.*": {"affinty": "pdf"}})
        render = task(app, affinty="pdf", ondemand=True, priority=255)
        app.finalize()
        assert (render.affinty, render.priority) == ("pdf", 255)
        render.s().set(afinity="x", priority=99, affinity="a,b")
        if transport:
            render.apply_async(affinty="pdf")
            app.send_task("shop.far", afinity="pdf")
        assert render.apply(affinty="pdf").successful()
    app = Celery("plain", broker="memory://", set_as_current=False)
    task(app, affinty="pdf").delay()
    app.close()


def test_shared_tasks(new_app, monkeypatch):
    monkeypatch.setattr(misspelt, "_complaints_of_shared", [])
    monkeypatch.setattr(misspelt._state, "_get_active_apps", lambda: set())
    decorate = misspelt.celery.shared_task
    assert decorate is shared_task, "whoever imports it from now on gets the one that looks"
    decorate(name="shop.shared", affinty="pdf")(nothing)
    stock, ours = new_app(transport="memory"), new_app()
    stock.finalize()
    with refused("task shop.shared: unknown option 'affinty'"):
        ours.finalize()
    monkeypatch.setattr(misspelt._state, "_get_active_apps", lambda: {stock, ours})
    with refused("task shop.other: unknown option 'afinity'"):
        decorate(nothing, name="shop.other", afinity="pdf")


@pytest.fixture(autouse=True)
def shared_tasks_end_with_their_test():
    """Shared tasks belong to all apps to come."""
    before = set(misspelt._state._on_app_finalizers)
    yield
    misspelt._state._on_app_finalizers.intersection_update(before)


# -- calls


def calls(app, render, option):
    """Yield all ways to call with an option."""
    given = {option: "pdf"}
    yield lambda: render.apply_async(**given)
    yield lambda: render.apply_async((), {}, **given)
    yield lambda: app.send_task("shop.render", **given)
    yield lambda: render.s().apply_async(**given)
    yield lambda: render.signature(options=given).apply_async()
    yield lambda: signature("shop.render", app=app, options=given).delay()
    yield lambda: group([render.s(), render.s()]).apply_async(**given)
    yield lambda: chain(render.s(), render.s()).apply_async(**given)
    yield lambda: publish_many(render, [(), ()], **given)
    yield lambda: render.apply(**given)


@mistakes
def test_a_misspelt_option_of_a_call_is_refused(app, name, ours):
    render = task(app)
    for call in calls(app, render, name):
        with refused(f"call of task shop.render: unknown option {name!r}; did you mean {ours!r}?"):
            call()
    for set_option in (render.s().set, render.si().set, group([render.s()]).set, chain(render.s(), render.s()).set):
        with pytest.raises(OptionError, match=f"^signature of task .*: unknown option {name!r}"):
            set_option(**{name: "pdf"})


def test_a_misspelt_option_of_a_chord_is_refused(new_app):
    app = new_app(result_backend="cache+memory://", task_ignore_result=False)
    with refused("call of task "):
        chord([task(app).s()], task(app, "shop.other").s()).apply_async(affinty="pdf")


def test_eager_calls_are_refused_as_well(new_app):
    render = task(new_app(task_always_eager=True))
    with refused("call of task shop.render: unknown option 'affinty'"):
        render.apply_async(affinty="pdf")
    with refused("call of task shop.render: affinity must be the name of a queue"):
        render.apply_async(affinity="a,b")
    assert render.apply_async(affinity="pdf", on_demand=True, my_flag=1).successful()


def test_a_retry_is_refused_where_it_is_called(app):
    render = task(app)
    with running(
        render, {"headers": {"id": "1", "task": "shop.render"}, "properties": {"priority": 0, "delivery_info": {}}}
    ):
        with refused("retry of task shop.render: unknown option 'affinty'; did you mean 'affinity'?"):
            render.retry(countdown=0, affinty="excel")
        with refused("retry of task shop.render: affinity must be the name of a queue"):
            render.retry(countdown=0, affinity="a,b")


def test_stamps_may_have_any_name(app):
    stamped = task(app).s()
    stamped.stamp(affinty="a", affinity="b,c", priority="high")
    assert stamped.options["affinty"] == ["a"] or stamped.options["affinty"] == "a"


@pytest.mark.parametrize("own", ["my_flag", "affinity_group", "demand", "infinity", "correlation_id", "app_id"])
def test_options_of_the_users_own_are_published(redis_client, valkey, own):
    app = Celery("stamped", broker=valkey.url, set_as_current=False)
    app.conf.update(broker_transport=OURS, task_ignore_result=True)
    task(app).apply_async(**{own: "x"}, priority=3, retry_policy={"max_retries": 1}, headers={"affinty": "x"})
    assert list(redis_client.scan_iter("*job:*"))
    app.close()


def test_a_call_without_a_mistake_goes_on_to_the_server(app):
    with pytest.raises(OperationalError):
        task(app).apply_async(my_flag=1)


# -- configuration


@pytest.mark.parametrize(
    ("routes", "where"),
    [
        ({"shop.render": {"affinty": "pdf"}}, "task_routes 'shop.render'"),
        ({"shop.*": {"queue": "pdf", "affinty": "pdf"}}, "task_routes 'shop.*'"),
        ([{"bank.*": {"queue": "b"}}, {"shop.*": {"affinty": "pdf"}}], "task_routes 'shop.*'"),
        ([[("bank.*", {"queue": "b"}), ("shop.*", {"affinty": "pdf"})]], "task_routes 'shop.*'"),
        ({re.compile(r"shop\..*"): {"affinty": "pdf"}}, r"task_routes 'shop\\..*'"),
        (({"bank.*": "b"}, {"shop.*": {"affinty": "pdf"}}), "task_routes 'shop.*'"),
    ],
)
def test_a_misspelt_option_of_a_route(new_app, routes, where):
    app = new_app(task_routes=routes)
    words = f"{where}: unknown option 'affinty'; did you mean 'affinity'?"
    for call in (task(app).delay, lambda: app.send_task("shop.render")):
        with refused(words):
            call()
    with refused(words):
        check_app(app)
    assert gather_app(app).misspelt == (words,)
    with pytest.raises(OperationalError):
        app.send_task("bank.other")


def test_what_a_router_returns_is_looked_at_when_it_does(new_app):
    app = new_app(task_routes=[lambda name, *_, **__: {"afinity": "pdf"} if name == "shop.render" else None])
    with refused(
        "call of task shop.render, or what a router of task_routes returns for it: unknown option 'afinity'; did you"
    ):
        task(app).delay()
    with pytest.raises(OperationalError):
        task(app, "shop.other").delay()
    assert gather_app(app).misspelt == ()


@pytest.mark.parametrize("annotations", [{"*": {"affinty": "pdf"}}, [{"shop.render": {"affinty": "pdf"}}]])
def test_a_misspelt_option_of_an_annotation(new_app, annotations):
    app = new_app(task_annotations=annotations)
    render = task(app)
    (pattern,) = annotations if isinstance(annotations, dict) else annotations[0]
    words = f"task_annotations {pattern!r}: unknown option 'affinty'; did you mean 'affinity'?"
    with refused(words):
        render.delay()
    with refused(words):
        check_app(app)
    assert gather_app(app).misspelt == (words,)


def test_a_misspelt_option_of_a_beat_entry(new_app):
    entry = {"task": "shop.far", "schedule": 9.0}
    app = new_app(
        beat_schedule={
            "nightly": {**entry, "options": {"affinty": "pdf", "expires": 5}},
            "hourly": {**entry, "options": {"on_demnd": True}},
            "daily": {**entry, "options": {"affinity": "pdf", "my_flag": 1}},
            "plain": entry,
            "odd": {**entry, "options": None},
        }
    )
    assert gather_app(app).misspelt == (
        "beat entry 'nightly': unknown option 'affinty'; did you mean 'affinity'?",
        "beat entry 'hourly': unknown option 'on_demnd'; did you mean 'on_demand'?",
    )
    beat = Beat(app=app)
    with pytest.raises(SchedulingError, match="unknown option 'affinty'; did you mean 'affinity'"):
        beat.apply_async(beat.schedule["nightly"], advance=False)


def test_any_priority_is_right_where_a_queue_is_not_scheduled(new_app):
    app = new_app(affinity_queues=["pdf"], task_routes={"shop.*": {"queue": "mail", "priority": 99}})
    task(app, priority=99).s().set(priority=77)
    check_app(app)
    assert gather_app(app).refused == ()


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("affinty_queues", "affinity_queues"),
        ("afinity_worker_timeout", "affinity_worker_timeout"),
        ("affinity-queues", "affinity_queues"),
        ("affinityqueues", "affinity_queues"),
        ("affintiy_worker_timout", "affinity_worker_timeout"),
        ("CELERY_AFFINTY_QUEUES", "affinity_queues"),
    ],
)
def test_a_setting_with_a_misspelt_prefix_is_refused(key, setting):
    app = Celery("app", set_as_current=False)
    app.conf[key] = ["pdf"]
    with pytest.raises(SettingError, match=re.escape(f"unknown setting {key!r}; did you mean {setting!r}?")):
        load(app.conf, app.conf.keys())


@pytest.mark.parametrize("key", ["infinity_queues", "affinities", "afinity_of_mine", "my_queues", "CELERY_QUEUES"])
def test_settings_of_the_users_own_are_none_of_ours(key):
    app = Celery("app", set_as_current=False)
    app.conf[key] = ["pdf"]
    load(app.conf, app.conf.keys())


# -- as users meet it


def run(url, program, **env):
    """Run a program of one process that has set up nothing; return its output to both streams."""
    process = Process("script", [sys.executable, "-c", program], {"BROKER_URL": url, **env})
    process.wait(60)
    return process.log()


def test_a_script_that_imports_nothing_of_ours_is_told_at_the_call():
    program = f"import {APP} as tasks\nprint('imported')\ntasks.wrong.delay()"
    said = run(NOWHERE, program, OPTIONS='{"affinty": "pdf"}')
    assert said.startswith("imported")
    assert "OptionError: task wrong: unknown option 'affinty'; did you mean 'affinity'?" in said
    said = run(NOWHERE, f"import {APP} as tasks\ntasks.shared.delay()", SHARED='{"afinity": "pdf"}')
    assert "OptionError: task shared: unknown option 'afinity'; did you mean 'affinity'?" in said


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"OPTIONS": {"affinty": "pdf"}}, "task wrong: unknown option 'affinty'; did you mean 'affinity'?"),
        ({"SHARED": {"afinity": "pdf"}}, "task shared: unknown option 'afinity'; did you mean 'affinity'?"),
        ({"OPTIONS": {"affinity": "a,b"}}, "task wrong: affinity must be the name of a queue that -Q can give"),
        (
            {"CONF": {"task_routes": {"far.*": {"ondemand": True}}}},
            "celery_affinity: task_routes 'far.*': unknown option 'ondemand'; did you mean 'on_demand'?",
        ),
        (
            {"CONF": {"task_annotations": {"wrong": {"affinty": "x"}}}},
            "celery_affinity: task_annotations 'wrong': unknown option 'affinty'; did you mean 'affinity'?",
        ),
    ],
)
def test_a_worker_does_not_start_with_a_mistake(env, words):
    worker = start_worker(APP, NOWHERE, (), pool="solo", env={name: json.dumps(each) for name, each in env.items()})
    assert worker.wait(60) == 1
    assert words in worker.log()


def test_a_worker_with_another_transport_starts_with_it(valkey, redis_client):
    worker = start_worker(
        APP,
        valkey.url,
        (),
        pool="solo",
        env={"TRANSPORT": "redis", "OPTIONS": '{"affinty": 1}', "SHARED": '{"afinity": 1}'},
    )
    worker.wait_ready(30)


def test_check_names_the_entry(valkey, redis_client):
    conf = {"beat_schedule": {"nightly": {"task": "good", "schedule": 9.0, "options": {"affinty": "pdf"}}}}
    found = subprocess.run(
        [sys.executable, "-m", "celery", "-A", APP, "affinity", "check", "--no-fleet", "--json"],
        env={
            **os.environ,
            "BROKER_URL": valkey.url,
            "CONF": json.dumps(conf),
            "OPTIONS": '{"afinity": 1}',
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert found.returncode == 2, found.stderr
    said = [each["what"] for each in json.loads(found.stdout)["findings"] if each["id"] == "option-misspelt"]
    assert said == [
        "task wrong: unknown option 'afinity'; did you mean 'affinity'?",
        "beat entry 'nightly': unknown option 'affinty'; did you mean 'affinity'?",
    ]
