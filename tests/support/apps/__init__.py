"""Celery apps of the tests: each module builds one for the broker at ``$BROKER_URL``."""

#: The app of most tests: typed tasks that write what they do into ``$LEDGER``.
APP = "tests.support.apps.typed"
