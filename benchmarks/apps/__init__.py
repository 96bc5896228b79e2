"""The programs that are measured: the same tasks for Celery and for dramatiq, and what publishes them."""
