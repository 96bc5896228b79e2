"""The teller of an app's ends."""

from celery import Celery

from celery_affinity.dispatcher.teller import Teller


def run():
    """Be a task."""


def test_an_app_is_known_by_its_name_and_its_tasks():
    def identity(name, *tasks):
        with Celery(name, set_as_current=False) as app:
            for task in tasks:
                app.task(run, name=task, shared=False)
            return Teller(app, "host", lambda: None).identity()

    unnamed, other, again = identity(None, "a"), identity(None, "b"), identity(None, "a")
    assert unnamed == again != other
    assert identity("proj", "a") not in (unnamed, identity("proj", "a", "b"))
