"""A worker resolves the size of a call from the route, the task or the task's name."""

from celery_affinity import Affinity
from celery_affinity.publishing.option_resolution import size_of_call
from celery_affinity.publishing.validation import check_app

from ..support.misspellings import refused


def render(pages=1, scale=2):
    """A task's function."""


def test_route_precedes_task_and_task_precedes_name(new_app):
    app = new_app(
        affinity_task_rules={"shop.*": {"size": "{scale}"}},
        task_routes={"shop.routed": {"affinity": Affinity("pdf", size="{scale}")}},
    )
    sized = Affinity(size="{pages}")
    tasks = {
        "shop.named": app.task(name="shop.named", shared=False)(render),
        "shop.own": app.task(name="shop.own", shared=False, affinity=sized)(render),
        "shop.routed": app.task(name="shop.routed", shared=False, affinity=sized)(render),
        "other": app.task(name="other", shared=False)(render),
    }
    sizes = {name: size_of_call(task, [7], {"scale": 5}) for name, task in tasks.items()}
    assert sizes == {"shop.named": 5, "shop.own": 7, "shop.routed": 5, "other": None}


def test_error_of_a_size_is_logged_and_the_size_unknown(new_app, caplog):
    def fails(args, kwargs):
        raise KeyError("pages")

    task = new_app().task(name="shop.render", shared=False, affinity=Affinity(size=fails))(render)
    assert size_of_call(task, [7], {}) is None
    assert "size of a call of task shop.render is unknown: KeyError('pages')" in caplog.text


def test_size_of_a_missing_argument_is_refused(new_app):
    words = "size \"{page}\": task shop.render has no argument 'page'; it takes: pages, scale"
    app = new_app()
    app.task(name="shop.render", shared=False, affinity=Affinity(size="{page}"))(render)
    with refused(f"task shop.render: {words}"):
        check_app(app)
    app = new_app(affinity_task_rules={"shop.*": {"size": "{page}"}})
    app.task(name="shop.render", shared=False)(render)
    with refused(f"affinity_task_rules: {words}"):
        check_app(app)
