"""Celery's own integration tests on stock Celery and on ours: tests that pass there must pass here. `make parity`."""
