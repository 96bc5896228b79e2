"""The configuration of Superset for the tests: three kinds of tasks in separate queues, and reports by beat."""

import os
from datetime import timedelta
from urllib.parse import urlparse

from cachelib.redis import RedisCache
from celery.signals import task_postrun

from tests.apps.programs import URL, write_event

SECRET_KEY = "a key of the tests, long enough for Superset"
SQLALCHEMY_DATABASE_URI = os.environ["DATABASE"]
WEBDRIVER_BASEURL = os.environ["SUPERSET_URL"] + "/"
RESULTS_BACKEND = RedisCache(host="127.0.0.1", port=urlparse(URL).port, key_prefix="results")
CACHE_CONFIG = {"CACHE_TYPE": "RedisCache", "CACHE_REDIS_URL": URL, "CACHE_DEFAULT_TIMEOUT": 600}
DATA_CACHE_CONFIG = {**CACHE_CONFIG, "CACHE_KEY_PREFIX": "data"}
FEATURE_FLAGS = {"ALERT_REPORTS": True}
ALERT_REPORTS_NOTIFICATION_DRY_RUN = True
CELERY_BEAT_SCHEDULER_EXPIRES = timedelta(weeks=1)
WTF_CSRF_ENABLED = False
TALISMAN_ENABLED = False
RATELIMIT_ENABLED = False


class CELERY_CONFIG:
    broker_url = result_backend = URL
    broker_transport = os.environ["TRANSPORT"]
    imports = ("superset.sql_lab", "superset.tasks.scheduler", "superset.tasks.thumbnails", "superset.tasks.cache")
    worker_prefetch_multiplier = 1
    task_annotations = {"sql_lab.get_sql_results": {"rate_limit": "100/s"}}
    task_routes = {
        "sql_lab.*": {"queue": "sqllab"},
        "reports.*": {"queue": "reports"},
        "cache-warmup": {"queue": "warmup"},
        "fetch_url": {"queue": "warmup"},
    }
    beat_schedule = {
        "reports.scheduler": {
            "task": "reports.scheduler",
            "schedule": 20.0,
            "options": {"expires": int(CELERY_BEAT_SCHEDULER_EXPIRES.total_seconds())},
        },
        "cache-warmup": {"task": "cache-warmup", "schedule": 20.0, "kwargs": {"strategy_name": "dummy"}},
    }


@task_postrun.connect(weak=False)
def note(task, state, retval, **kwargs):
    """Record each finished task with its queue and worker."""
    worker = task.request.hostname.partition("@")[0]
    write_event([task.name, state, task.request.delivery_info["routing_key"], worker, retval])
