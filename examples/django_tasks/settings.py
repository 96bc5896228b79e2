"""Settings of Django. The prefix CELERY_ marks settings of Celery."""

import os

SECRET_KEY = "not a secret in an example"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "examples.django_tasks.urls"
USE_TZ = True

TASKS = {
    "default": {
        "BACKEND": "celery_affinity.contrib.django_tasks.AffinityBackend",
        "QUEUES": ["pdf", "mail"],  # types of workers
    }
}

CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ.get("REDIS_URL", "redis://localhost")
CELERY_BROKER_TRANSPORT = "celery_affinity:Transport"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
