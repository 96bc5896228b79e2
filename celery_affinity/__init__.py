"""Send each Celery task to the right worker, in the right order, on Redis or Valkey.

One setting installs it, in publishers and workers: ``app.conf.broker_transport = "celery_affinity:Transport"``.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING

from . import backends as _backends  # tells Celery of them
from .client import stamping as _stamping  # has each call of Celery's say its options
from .client.celery_methods import calls as _calls  # changes Celery's classes
from .client.celery_methods import canvas as _canvas  # has Celery's canvas keep the mode of its call
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
from .rules.affinity import Affinity
from .rules.bounds import Bound
from .rules.keyed.key_rules import Exclusive, Rate
from .rules.merging import Call, Merge
from .worker import context as _context  # gives the requests of tasks an attribute
from .worker import on_init as _worker  # connects the signal handler that adds our step to workers

if TYPE_CHECKING:
    from .client.publish_many import TaskIds, publish_many
    from .observe.explain import Explanation
    from .observe.jobs import Job
    from .operate.jobs import Jobs, jobs
    from .rules.cohorts import Cohort
    from .rules.tenants import Tenant
    from .transport.reach import explain, recur, stop
    from .transport.transport import Transport
    from .worker.preempted import Preempted, preempted

#: Names that are loaded when they are used first: a process that imports the app's tasks need not load redis-py, and
#: one that only publishes nothing of workers and reports.
_LATER = {
    "Cohort": "rules.cohorts",
    "Explanation": "observe.explain",
    "Job": "observe.jobs",
    "Jobs": "operate.jobs",
    "Preempted": "worker.preempted",
    "TaskIds": "client.publish_many",
    "Tenant": "rules.tenants",
    "Transport": "transport.transport",
    "explain": "transport.reach",
    "jobs": "operate.jobs",
    "preempted": "worker.preempted",
    "publish_many": "client.publish_many",
    "recur": "transport.reach",
    "stop": "transport.reach",
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
    "explain",
    "jobs",
    "preempted",
    "publish_many",
    "recur",
    "stop",
]
__version__ = "0.1.0.dev0"
del _backends, _calls, _canvas, _context, _stamping, _worker


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(_import(f".{_LATER[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
