"""Settings of Django. The prefix CELERY_ marks settings of Celery, and CELERY_AFFINITY_ marks celery_affinity's."""

import os

SECRET_KEY = "not a secret in an example"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "examples.django_app.urls"
USE_TZ = True

CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ.get("REDIS_URL", "redis://localhost")
CELERY_BROKER_TRANSPORT = "celery_affinity:Transport"  # this line enables celery_affinity
CELERY_AFFINITY_WORKER_TIMEOUT = 60  # seconds; `affinity_worker_timeout` in the docs
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
