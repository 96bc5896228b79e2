"""Known bugs of old Celery and kombu versions; on those versions, the tests do not expect better of this transport.

The scenario named at the end of a comment shows the bug on stock Celery, on the corners of `tests/whole/matrix.py`.
"""

import celery
import kombu

_CELERY_5_7 = celery.VERSION[:2] >= (5, 7)

#: Before, the caller of a task that rejects its message waits forever (celery#4222): `signals`.
REJECTED_FAILS = _CELERY_5_7

#: Before, the SystemExit of a prefork task, in the form of billiard 4.3, cannot be stored: `errors_of_results`.
EXIT_FAILS = _CELERY_5_7

#: Before, `query_task` omits tasks that wait for their ETA: `scheduled_task_is_reported`.
SCHEDULED_IS_QUERIED = _CELERY_5_7

#: Number of rate-limited tasks that start immediately: before kombu 5.7, a full token bucket is refilled too early.
LIMITED_AT_ONCE = 1 if kombu.VERSION[:2] >= (5, 7) else 2

#: Before, `send_task` with the name of a registered task omits the task's options.
SENT_AS_REGISTERED = _CELERY_5_7

#: Before, an app without `task_create_missing_queues` cannot publish if `task_queues` lacks its default queue.
DEFAULT_QUEUE_MAY_BE_UNDECLARED = _CELERY_5_7

#: Before, `map` and `starmap` are called without their own options.
MAPS_HAVE_OPTIONS = _CELERY_5_7

#: Only in 5.6, a revoke stores REVOKED immediately, even for a running task that its pool cannot end.
RUNNING_IS_REVOKED_AT_ONCE = celery.VERSION[:2] == (5, 6)

#: Before kombu 5.6.1, a connection has no credential provider, so a `broker_url` with a provider is refused.
PROVIDERS = hasattr(kombu.Connection(), "credential_provider")
