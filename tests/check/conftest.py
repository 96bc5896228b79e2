"""An app for the tests of the checks."""

import pytest
from celery import Celery

OURS = "celery_affinity:Transport"


@pytest.fixture
def new_app():
    """Return a function that makes an app, which is closed after the test."""
    made = []

    def make(url="redis://localhost", **settings):
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.update({"broker_transport": OURS, **settings})
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()
