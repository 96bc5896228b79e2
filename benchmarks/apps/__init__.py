"""The measured programs: apps with the same tasks for Celery and dramatiq, and the publisher."""
