"""Celery's own integration tests on stock Celery and on ours: what passes there must pass here. `make parity`."""
