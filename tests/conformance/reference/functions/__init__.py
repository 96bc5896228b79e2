"""The arrows by subject, as in ``celery_affinity/server/arrows``: what several of them share is in the files above."""
