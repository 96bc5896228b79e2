"""Faults of stock Celery and kombu in old versions: with those, the tests do not ask this transport to do better.

The scenario named beside a fault shows the fault on stock Celery, on the corners of `tests/whole/matrix.py`.
"""

import celery
import kombu

_CELERY_5_7 = celery.VERSION[:2] >= (5, 7)

#: Before, the caller of a task that rejects its message waits for ever (celery#4222): `signals`.
REJECTED_FAILS = _CELERY_5_7

#: Before, a prefork task's SystemExit, as billiard 4.3 hands it over, cannot be stored: `errors_around_a_result`.
EXIT_FAILS = _CELERY_5_7

#: Before, `query_task` does not know of a task that waits for its time: `what_waits_for_its_time_is_seen`.
SCHEDULED_IS_QUERIED = _CELERY_5_7

#: Number of tasks with a rate limit that start at once: before kombu 5.7, a full token bucket is filled again at once.
LIMITED_AT_ONCE = 1 if kombu.VERSION[:2] >= (5, 7) else 2

#: Before, `send_task` by the name of a registered task leaves out the options that it has for all its calls.
SENT_AS_REGISTERED = _CELERY_5_7

#: Before, an app whose `task_queues` lack its default queue publishes nothing, if it creates no missing ones.
DEFAULT_QUEUE_MAY_BE_UNDECLARED = _CELERY_5_7

#: Before, `map` and `starmap` are called without their own options.
MAPS_HAVE_OPTIONS = _CELERY_5_7

#: In 5.6 alone, a revoke stores REVOKED at once, for a running task as well, whatever its pool can end.
RUNNING_IS_REVOKED_AT_ONCE = celery.VERSION[:2] == (5, 6)

#: Before kombu 5.6.1, there is no place for a provider of logins: `broker_url` with one is refused.
PROVIDERS = hasattr(kombu.Connection(), "credential_provider")
