"""An app for the tests of the checks."""

import pytest
from celery import Celery, _state

OURS = "celery_affinity:Transport"


@pytest.fixture
def only_own_tasks(monkeypatch):
    """Keep the tasks that other tests share with all apps out of the apps of this test."""
    own = {each for each in _state._on_app_finalizers if each.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", own)


@pytest.fixture
def new_app(only_own_tasks):
    """Return a function that makes an app, which is closed after the test, without what other tests share with apps."""
    made = []

    def make(url="redis://localhost", **settings):
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.update({"broker_transport": OURS, **settings})
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()
