"""Settings of Django; those that begin with CELERY_ are Celery's, and celery_affinity's own are among them."""

import os

SECRET_KEY = "not a secret in an example"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "examples.django_app.urls"
USE_TZ = True

CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ.get("REDIS_URL", "redis://localhost")
CELERY_BROKER_TRANSPORT = "celery_affinity:Transport"  # the whole installation
CELERY_AFFINITY_WORKER_TIMEOUT = 60  # s; what the README calls affinity_worker_timeout
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
