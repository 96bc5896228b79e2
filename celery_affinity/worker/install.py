"""The way of the step into a worker whose app names this transport."""

from celery.signals import worker_process_init
from celery.worker import WorkController

from ..client.of_app import is_ours, settings_of
from ..client.wrong_in_app import check_app
from ..errors import TransportError
from ..guard.guard import Kin, orphans_end
from ..log_limit import limited_logger
from ..rules.redis_keys import Keys
from ..transport import urls
from ..transport.transport import Transport
from . import (
    own_commands,  # noqa: F401  # the commands, for a worker that nobody began with `celery`
    remote_control,
    task_process,
)
from .classes_step import ClassesStep
from .cohorts_step import CohortsStep
from .step import AffinityStep

#: Loggers of Celery and kombu that write an error for each message that cannot be read, with the body or a traceback.
#: Errors of a task's run (`celery.app.trace`, `celery.worker.request`) belong to the task: they are not limited.
_LOGGERS_OF_MESSAGES = (
    "celery.worker.consumer.consumer",
    "celery.worker.consumer.gossip",
    "celery.worker.control",
    "celery.worker.pidbox",
    "kombu.pidbox",
)


def install(worker: WorkController) -> None:
    """Add the steps to *worker*, a ``celery.worker.WorkController`` whose app names this transport.

    Raises TransportError if the worker's connections would use another transport, SettingError for a bad setting,
    OptionError for a bad option of a task, a route or an annotation.
    """
    app = worker.app
    if not is_ours(app.conf.broker_transport):
        return
    transport_cls = app.connection_for_read().get_transport_cls()
    if not issubclass(transport_cls, Transport):
        url = urls.masked(str(app.conf.broker_read_url))
        raise TransportError(
            f"broker_transport is {app.conf.broker_transport!r}, but the URL {url!r} selects {transport_cls.__name__} "
            f"of {transport_cls.__module__}: write redis://, rediss://, sentinel://, redis-cluster://, or "
            "socket:///path/to/redis.sock (not redis+socket://)"
        )
    Keys.of_options(app.conf.broker_transport_options or {})
    check_app(app)
    task_process.prepare(app)  # before a pool forks
    worker_process_init.connect(orphans_end(), weak=False)
    settings = settings_of(app)
    worker.affinity_kin = Kin() if settings.guard else None  # now, before the pool's processes are forked
    app.steps["worker"].add(ClassesStep)
    app.steps["consumer"].add(CohortsStep if settings.cohorts else AffinityStep)
    remote_control.replace()
    for name in _LOGGERS_OF_MESSAGES:
        limited_logger(name)
    remote_control.keep_the_connection(app)
