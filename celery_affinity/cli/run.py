"""``celery -A proj affinity dispatcher``: run a dispatcher that no worker embeds."""

import signal
import threading
from collections.abc import Callable
from functools import partial
from socket import gethostname

import click
from celery import Celery
from celery.bin.base import LOG_LEVEL, CeleryCommand, handle_preload_options
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..callers import chord_parts
from ..callers.announcer import Announcer
from ..callers.teller import Teller
from ..client.of_app import settings_of
from ..dispatcher.dispatcher import SHORT_PAUSE_S, Dispatcher
from ..dispatcher.ingest import Ingest
from ..dispatcher.recurring_calls import RecurringCalls
from ..errors import AffinityError
from ..log_limit import limited_logger
from ..rules.cohorts import DEFAULT
from ..server.scheduler import Scheduler
from ..threads.repeating import Repeating
from ..transport.reach import channel_on
from .broker import RETRY_S, check_conf, scheduler_of

logger = limited_logger(__name__)


@click.command(cls=CeleryCommand)
@click.option("--loglevel", "-l", default="WARNING", show_default=True, type=LOG_LEVEL, help="Lowest level to log.")
@click.pass_context
@handle_preload_options
def dispatcher(ctx: click.Context, loglevel: int) -> None:
    """Run a dispatcher without a worker, for fleets that scale to zero workers. Ctrl-C or SIGTERM ends it."""
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    app = ctx.obj.app
    check_conf(app)
    app.log.setup_logging_subsystem(loglevel=loglevel)
    app.loader.import_default_modules()  # the dispatcher tells the ends of these tasks
    chord_parts.install()
    try:
        settings_of(app)  # checked now, since every tick asks for the settings
    except AffinityError as exc:
        raise click.ClickException(str(exc)) from exc
    hostname = f"dispatcher@{gethostname()}"
    with (
        scheduler_of(ctx, patient_until=ended) as scheduler,
        app.connection_for_write() as connection,
        app.connection_for_write() as broker,
    ):
        events = app.events.Dispatcher(connection, hostname=hostname, enabled=bool(app.conf.worker_send_task_events))
        teller = Teller(app, hostname, lambda: events)
        default = _CohortDispatcher(app, teller, scheduler.keys.cohort, lambda: scheduler)
        default.open()
        names = list(settings_of(app).cohorts) if scheduler.keys.cohort == DEFAULT else []
        others = []
        if names:
            channel = channel_on(broker, app.conf.broker_transport)
            channel.scheduler.load()
            others = [_CohortDispatcher(app, teller, name, partial(channel.scheduler_of, name)) for name in names]
        for other in others:
            other.begin()
        click.echo(f"dispatcher ready on {app.connection_for_write().as_uri()}")
        ended.wait()
        for running in (default, *others):
            running.stop()


class _CohortDispatcher:
    """The dispatcher of one cohort, in a thread of its own. *reach* returns its scheduler, once the server answers."""

    def __init__(self, app: Celery, teller: Teller, cohort: str, reach: Callable[[], Scheduler]) -> None:
        self._app, self._teller, self._reach = app, teller, reach
        self._cohort = cohort
        self._loop: Dispatcher | None = None
        self._opening = Repeating(f"affinity-opens-{cohort}", self._try, RETRY_S)
        self._is_opening = False

    def begin(self) -> None:
        """Start when the server answers, and return at once: a cohort that is down holds up no other."""
        self._is_opening = True
        self._opening.start()
        self._opening.wake()

    def open(self) -> None:
        """Start. Raises the errors of a server that does not answer."""
        scheduler = self._reach()
        scheduler.load()
        app, teller = self._app, self._teller
        self._loop = Dispatcher(
            scheduler, Announcer(teller), Ingest(app), RecurringCalls(app, teller), pause_s=SHORT_PAUSE_S
        )
        self._loop.start()

    def _try(self) -> None:
        if self._loop is not None:
            return
        try:
            self.open()
        except (RedisError, OperationalError, OSError) as exc:
            logger.warning("The server of cohort %r does not answer the dispatcher: %s", self._cohort, exc)

    def stop(self) -> None:
        if self._is_opening:
            self._opening.stop()
        if self._loop is not None:
            self._loop.stop()
