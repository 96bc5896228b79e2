"""Celery's integration tests on stock Celery and on this transport, which must pass the same tests: `make parity`."""
