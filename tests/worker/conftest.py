"""Fixtures of the tests of workers."""

import pytest
from celery import Celery


@pytest.fixture
def app():
    """An app on its own, without a server."""
    with Celery("alone", broker="memory://", set_as_current=False) as app:
        yield app
