"""Send each Celery task to the right worker, in the right order, on Redis or Valkey.

One setting installs it, in publishers and workers: ``app.conf.broker_transport = "celery_affinity:Transport"``.
"""

from .client import intercepted as _intercepted  # changes Celery's classes
from .client import workflows as _workflows  # has Celery's canvas keep the mode of its call
from .client.publish_many import TaskIds, publish_many
from .errors import (
    AffinityError,
    NotMerged,
    OptionError,
    PublishError,
    QueueFull,
    ResultLostError,
    SchemaError,
    SettingError,
    TransportError,
)
from .observe.explain import Explanation
from .observe.jobs import Job
from .operate.jobs import Jobs, jobs
from .rules.affinity import Affinity
from .rules.bounds import Bound
from .rules.keyed import Exclusive, Rate
from .rules.merging import Call, Merge
from .transport.reach import explain, recur, stop
from .transport.transport import Transport
from .worker import install as _worker  # connects the signal handler that adds our step to workers

__all__ = [
    "Affinity",
    "AffinityError",
    "Bound",
    "Call",
    "Exclusive",
    "Explanation",
    "Job",
    "Jobs",
    "Merge",
    "NotMerged",
    "OptionError",
    "PublishError",
    "QueueFull",
    "Rate",
    "ResultLostError",
    "SchemaError",
    "SettingError",
    "TaskIds",
    "Transport",
    "TransportError",
    "explain",
    "jobs",
    "publish_many",
    "recur",
    "stop",
]
__version__ = "0.1.0.dev0"
del _intercepted, _worker, _workflows
