"""The Celery app, as in Celery's manual for Django. All of its settings are in `settings.py`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_app.settings")

app = Celery("examples.django_app")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["examples.django_app"])
