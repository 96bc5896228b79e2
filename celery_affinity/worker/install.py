"""Install the bootsteps in a worker whose app names this transport, and derive its consumer and pool classes."""

from typing import Any

from celery import bootsteps
from celery.signals import worker_process_init
from celery.worker import WorkController
from kombu.utils.imports import symbol_by_name

from ..errors import TransportError
from ..liveness.guard import ForkMarker, end_orphans
from ..log_limit import limited_logger
from ..publishing.app_config import settings_of, uses_affinity_transport
from ..publishing.validation import check_app
from ..schema.keys import Keys
from ..transport import urls
from ..transport.transport import Transport
from . import consumer, control_commands, own_commands, pool, task_context  # noqa: F401  # registers our commands
from .bootstep import AffinityBootstep


class ClassesStep(bootsteps.Step):
    """Derives from the classes that the command line or the settings `worker_consumer` and `worker_pool` name.

    Celery instantiates all steps of a worker before the first step creates anything. It imports the pool's class before
    that, but after the handlers of `worker_init`, because some of them patch the process for the pool.
    """

    name = "affinity classes"

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        worker.consumer_cls = consumer.derive_consumer(symbol_by_name(worker.consumer_cls))
        worker.pool_cls = pool.derive_pool(worker.pool_cls)
        super().__init__(worker, **kwargs)


#: Loggers of Celery and kombu that log an error, with the body or a traceback, for each unreadable message. The loggers
#: of a task's run (`celery.app.trace`, `celery.worker.request`) are not limited: these errors belong to the task.
_MESSAGE_LOGGERS = (
    "celery.worker.consumer.consumer",
    "celery.worker.consumer.gossip",
    "celery.worker.control",
    "celery.worker.pidbox",
    "kombu.pidbox",
)


def install(worker: WorkController) -> None:
    """Add the steps to *worker*, a ``celery.worker.WorkController`` whose app names this transport.

    Raises TransportError if the worker's connections would use another transport, SettingError for an invalid setting,
    OptionError for an invalid option of a task, a route or an annotation.
    """
    app = worker.app
    if not uses_affinity_transport(app.conf.broker_transport):
        return
    transport_cls = app.connection_for_read().get_transport_cls()
    if not issubclass(transport_cls, Transport):
        url = urls.mask_url(str(app.conf.broker_read_url))
        raise TransportError(
            f"broker_transport is {app.conf.broker_transport!r}, but the URL {url!r} selects {transport_cls.__name__} "
            f"of {transport_cls.__module__}: write redis://, rediss://, sentinel://, redis-cluster://, or "
            "socket:///path/to/redis.sock (not redis+socket://)"
        )
    Keys.of_options(app.conf.broker_transport_options or {})
    check_app(app)
    task_context.prepare_process(app)  # before a pool forks
    worker_process_init.connect(end_orphans(), weak=False)
    settings = settings_of(app)
    worker.affinity_kin = ForkMarker() if settings.guard else None  # before the pool forks
    app.steps["worker"].add(ClassesStep)
    app.steps["consumer"].add(AffinityBootstep)
    control_commands.replace()
    for name in _MESSAGE_LOGGERS:
        limited_logger(name)
    control_commands.keep_the_connection(app)
