"""Parts that all commands share: an option, the way to the broker, and the printing of a report."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps
from typing import TypeVar

import click
from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..errors import AffinityError, TransportError
from ..observe.as_json import Json, as_json
from ..rules.cohorts import DEFAULT
from ..rules.redis_keys import COHORT
from ..server.reader import Reader
from ..server.scheduler import Scheduler
from ..transport.reach import scheduler_on
from ..transport.urls import masked

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")

#: Pause, s, before a broker that did not answer is asked again.
RETRY_S = 1.0

Report = TypeVar("Report")


@contextmanager
def scheduler_of(ctx: click.Context, *, patient_until: threading.Event | None = None) -> Iterator[Scheduler]:
    """Yield the scheduler on the app's broker, or end the command with a line that says what is wrong.

    With *patient_until*, a broker that does not answer is asked again until that event is set.
    """
    app = ctx.obj.app
    with _connection(app) as connection:
        no_answer = (OperationalError, RedisError, *connection.connection_errors)
        try:
            while True:
                try:
                    scheduler = _first_answer(connection, app.conf.broker_transport, ctx.meta.get(COHORT, DEFAULT))
                    break
                except no_answer as exc:
                    if patient_until is None or patient_until.is_set():
                        raise
                    click.echo(f"the broker {connection.as_uri()} does not answer, trying again: {exc}", err=True)
                    patient_until.wait(RETRY_S)
            yield scheduler
        except no_answer as exc:
            raise click.ClickException(f"the broker {connection.as_uri()} does not answer: {exc}") from exc
        except AffinityError as exc:
            raise click.ClickException(str(exc)) from exc


def connection_of(ctx: click.Context) -> Connection:
    """Return a connection to the app's broker, which is not open yet; ends the command if there is none."""
    return _connection(ctx.obj.app)


def check_conf(app: Celery) -> None:
    """End the command with a line that says what is wrong if the app's settings cannot be read."""
    try:
        list(app.conf.keys())  # which reads them
    except Exception as exc:  # any: a module of settings is the user's
        raise click.ClickException(
            f"the settings of the app cannot be read ({' '.join(str(exc).split())}); "
            "`celery -A ... affinity check` says what to write"
        ) from exc


def _connection(app: Celery) -> Connection:
    check_conf(app)
    try:
        return app.connection_for_write()
    except Exception as exc:  # any: the import of a transport may fail in any way
        raise click.ClickException(
            "there is no connection with the app's broker_transport and broker_url, "
            f"{app.conf.broker_transport!r} and {masked(str(app.conf.broker_write_url))!r}: {_said(exc)}"
        ) from exc


def _said(exc: Exception) -> str:
    return str(exc) if isinstance(exc, AffinityError) else f"{type(exc).__name__}: {exc}"


def _first_answer(connection: Connection, transport: str, cohort: str) -> Scheduler:
    try:
        return scheduler_on(connection, transport, cohort)
    except AffinityError:
        raise
    except ValueError as exc:  # kombu's, for a database that is no number
        raise TransportError(f"the broker's URL {connection.as_uri()} cannot be used: {exc}") from exc


@contextmanager
def reader_of(ctx: click.Context) -> Iterator[Reader]:
    with scheduler_of(ctx) as scheduler:
        yield scheduler.reader


def show(found: Report, words: Callable[[Report], str], *, json: bool) -> None:
    """Print a report: as JSON, or in the *words* for people."""
    if json:
        print_json(as_json(found))
    else:
        click.echo(words(found))


def print_json(found: Json) -> None:
    click.echo(dumps(found, indent=2))
