"""The server functions by subject, as in ``celery_affinity/lua/functions``; shared code is in the files above."""
