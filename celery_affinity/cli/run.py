"""``celery -A proj affinity dispatcher``: run a dispatcher that no worker embeds."""

import signal
import threading
from socket import gethostname

import click
from celery.bin.base import LOG_LEVEL, CeleryCommand, handle_preload_options

from ..callers import chord_parts
from ..callers.announcer import Announcer
from ..callers.teller import Teller
from ..client.of_app import settings_of
from ..dispatcher.dispatcher import SHORT_PAUSE_S, Dispatcher
from ..dispatcher.ingest import Ingest
from ..dispatcher.recurring_calls import RecurringCalls
from ..errors import AffinityError
from .broker import check_conf, scheduler_of


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
    with scheduler_of(ctx, patient_until=ended) as scheduler, app.connection_for_write() as connection:
        events = app.events.Dispatcher(connection, hostname=hostname, enabled=bool(app.conf.worker_send_task_events))
        teller = Teller(app, hostname, lambda: events)
        loop = Dispatcher(scheduler, Announcer(teller), Ingest(app), RecurringCalls(app, teller), pause_s=SHORT_PAUSE_S)
        scheduler.load()
        loop.start()
        click.echo(f"dispatcher ready on {app.connection_for_write().as_uri()}")
        ended.wait()
        loop.stop()
