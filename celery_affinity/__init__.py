"""Send each Celery task to the right worker, in the right order, on Redis or Valkey.

app.conf.broker_transport = "celery_affinity:Transport"
"""

from . import intercepted as _intercepted  # changes Celery's classes
from . import worker as _worker  # connects the signal handler that adds our step to workers
from . import workflows as _workflows  # has Celery's canvas keep the mode of its call
from .affinity import Affinity
from .errors import AffinityError, OptionError, PublishError, SchemaError, SettingError, TransportError
from .explanation import Explanation
from .many import TaskIds, publish_many
from .observe import explain
from .transport import Transport

__all__ = [
    "Affinity",
    "AffinityError",
    "Explanation",
    "OptionError",
    "PublishError",
    "SchemaError",
    "SettingError",
    "TaskIds",
    "Transport",
    "TransportError",
    "explain",
    "publish_many",
]
__version__ = "0.2.0.dev0"
del _intercepted, _worker, _workflows
