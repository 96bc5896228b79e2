"""Send each Celery task to the right worker, in the right order, on Redis or Valkey.

One setting installs it, in publishers and workers: ``app.conf.broker_transport = "celery_affinity:Transport"``.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING

from . import backends as _backends  # registers them with Celery
from .errors import (
    AffinityError,
    CohortDownError,
    NotMerged,
    OptionError,
    OutcomeUnknownError,
    PublishError,
    QueueFull,
    ResultLostError,
    SchemaError,
    SettingError,
    TraceError,
    TransportError,
)
from .options.affinity import Affinity
from .options.keys import Exclusive, Rate
from .options.merge import Call, Merge
from .publishing import canvas as _canvas  # makes Celery's canvas keep the mode of its call
from .publishing import celery_hooks as _calls  # patches Celery's classes
from .publishing import publish_call as _stamping  # adds the options to each call of Celery's
from .schema.bounds import Bound
from .worker import startup as _startup  # adds the bootstep to workers, and `affinity` to task requests

if TYPE_CHECKING:
    from .admin.jobs import Jobs, jobs
    from .backends.awaited import aresult
    from .publishing.bulk import TaskIds, publish_many
    from .reports.explain import Explanation
    from .reports.jobs import Job
    from .settings.cohorts import Cohort
    from .settings.tenants import Tenant
    from .transport.app_api import explain, recur, stop
    from .transport.transport import Transport
    from .worker.preemption import Preempted, preempted

#: Names loaded at their first use. A process that only imports the app's tasks does not load redis-py, and a publisher
#: loads neither workers nor reports.
_LAZY = {
    "Cohort": "settings.cohorts",
    "Explanation": "reports.explain",
    "Job": "reports.jobs",
    "Jobs": "admin.jobs",
    "Preempted": "worker.preemption",
    "TaskIds": "publishing.bulk",
    "Tenant": "settings.tenants",
    "Transport": "transport.transport",
    "aresult": "backends.awaited",
    "explain": "transport.app_api",
    "jobs": "admin.jobs",
    "preempted": "worker.preemption",
    "publish_many": "publishing.bulk",
    "recur": "transport.app_api",
    "stop": "transport.app_api",
}

__all__ = [
    "Affinity",
    "AffinityError",
    "Bound",
    "Call",
    "Cohort",
    "CohortDownError",
    "Exclusive",
    "Explanation",
    "Job",
    "Jobs",
    "Merge",
    "NotMerged",
    "OptionError",
    "OutcomeUnknownError",
    "Preempted",
    "PublishError",
    "QueueFull",
    "Rate",
    "ResultLostError",
    "SchemaError",
    "SettingError",
    "TaskIds",
    "Tenant",
    "TraceError",
    "Transport",
    "TransportError",
    "aresult",
    "explain",
    "jobs",
    "preempted",
    "publish_many",
    "recur",
    "stop",
]
__version__ = "0.1.0.dev0"
del _backends, _calls, _canvas, _stamping, _startup


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(_import(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
