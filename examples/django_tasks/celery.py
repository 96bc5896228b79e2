"""The Celery app. Its workers find Django's tasks in `tasks.py`, in the same way as Celery's tasks."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_tasks.settings")

app = Celery("examples.django_tasks")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["examples.django_tasks"])
