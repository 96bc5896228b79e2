"""Misspelt options and invalid values of tasks and signatures raise errors for their author only."""

import re

import pytest
from celery import Celery, shared_task
from kombu.exceptions import OperationalError

from celery_affinity import OptionError, publish_many
from celery_affinity.check import Facts
from celery_affinity.check.app import misspelt_options, not_sent
from celery_affinity.check.facts import gather_app
from celery_affinity.publishing import validation
from celery_affinity.publishing.validation import check_app

from ..support.misspellings import MISTAKES, OURS, OWN, nothing, refused, task


@pytest.fixture
def app(new_app):
    return new_app()


def test_misspelt_option_of_a_decorator_is_refused_there(app, subtests):
    for name, ours in MISTAKES:
        with subtests.test(name), refused(f"task shop.render: unknown option {name!r}; did you mean {ours!r}?"):
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
        ({"priority": "5.5"}, "priority must be a whole number from 0 to 10, got: '5.5'"),
        ({"priority": float("nan")}, "priority must be a whole number from 0 to 10, got: nan"),
    ],
)
def test_invalid_value_is_refused_in_every_place(new_app, valkey, options, words):
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
    found = [finding.what for finding in not_sent.findings(Facts(gather_app(beat)))]
    assert any(each.startswith(f"beat_schedule entry 'nightly': {words}") for each in found)


@pytest.mark.parametrize("priority", [None, 0, 10, "5", 5.0, True])
def test_stock_celerys_priorities_are_accepted(app, priority):
    task(app, priority=priority)
    task(app, "shop.other").s().set(priority=priority)


def test_users_own_options_are_accepted(new_app, subtests):
    for own in OWN:
        with subtests.test(own):
            app = new_app()
            assert getattr(task(app, **{own: "x"}), own) == "x"
            task(app).s().set(**{own: "x"})


def test_all_forms_of_the_decorator_are_checked(app):
    words = "task shop.render: unknown option 'affinty'; did you mean 'affinity'?"
    with refused(words):
        app.task(nothing, name="shop.render", shared=False, affinty="pdf")
    with refused(words):
        app.task(name="shop.render", shared=False, bind=True, lazy=False, affinty="pdf")(nothing)
    with refused("task tests.support.misspellings.nothing: unknown option"):
        app.task(shared=False, affinty="pdf")(nothing)
    with refused(words):
        task(app, base=type("Base", (app.Task,), {"abstract": True, "affinty": "pdf"}))
    with refused(words):
        task(app, autoretry_for=(OSError,), retry_kwargs={"affinty": "pdf"})
    assert "shop.render" not in app.tasks


def test_misspelt_option_of_a_class_is_refused(app):
    class Render(app.Task):
        name = "shop.render"
        affinty = "pdf"

        def on_demands(self):
            """A method that belongs to the user."""

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


def test_class_registered_early_is_refused_at_its_call(app):
    render, other = task(app), task(app, "shop.other")
    render.__class__.affinty = "pdf"
    for _ in range(2):
        with refused("task shop.render: unknown option 'affinty'; did you mean 'affinity'?"):
            render.delay()
    with pytest.raises(OperationalError):
        other.delay()


def test_app_with_late_configuration_is_checked_when_finalized(valkey):
    app = Celery("shop", broker=valkey.url, set_as_current=False)
    app.config_from_object({"broker_transport": OURS})
    render, other = task(app, affinty="pdf"), task(app, "shop.other")
    assert not app.configured, "nobody else's configuration is read early"
    for _ in range(2):
        for call in (lambda: other.delay(), lambda: render.delay(), app.finalize, lambda: app.tasks):
            with refused("task shop.render: unknown option 'affinty'; did you mean 'affinity'?"):
                call()
    (finding,) = misspelt_options.findings(Facts(gather_app(app)))
    assert finding.what == "task shop.render: unknown option 'affinty'; did you mean 'affinity'?"
    app.close()


def test_app_with_another_transport_is_not_checked(new_app):
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


def test_shared_tasks_are_checked(new_app, monkeypatch):
    monkeypatch.setattr(validation, "_shared_complaints", [])
    monkeypatch.setattr(validation._state, "_get_active_apps", lambda: set())
    decorate = validation.celery.shared_task
    assert decorate is shared_task, "later imports get the decorator that looks"
    decorate(name="shop.shared", affinty="pdf")(nothing)
    stock, ours = new_app(transport="memory"), new_app()
    stock.finalize()
    with refused("task shop.shared: unknown option 'affinty'"):
        ours.finalize()
    monkeypatch.setattr(validation._state, "_get_active_apps", lambda: {stock, ours})
    with refused("task shop.other: unknown option 'afinity'"):
        decorate(nothing, name="shop.other", afinity="pdf")


@pytest.fixture(autouse=True)
def shared_tasks_end_with_their_test():
    """Remove shared tasks, which would join all later apps."""
    before = set(validation._state._on_app_finalizers)
    yield
    validation._state._on_app_finalizers.intersection_update(before)
