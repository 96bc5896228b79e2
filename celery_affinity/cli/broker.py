"""Parts that all commands share: an option, the way to the broker, and the printing of a report."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from json import dumps
from typing import TypeVar

import click
from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..errors import AffinityError, CohortDownError, TransportError
from ..observe import cohorts
from ..observe.as_json import Json, as_json
from ..rules.redis_keys import COHORT
from ..server.fleet import Asked, Row, WholeFleet
from ..server.scheduler import Scheduler
from ..transport.reach import fleet_on
from ..transport.urls import masked

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")

#: Pause, s, before a broker that did not answer is asked again.
RETRY_S = 1.0

Report = TypeVar("Report")
R = TypeVar("R", bound=Row)


@contextmanager
def fleet_of(ctx: click.Context, *, patient_until: threading.Event | None = None) -> Iterator[WholeFleet]:
    """Yield the cohorts that a command is about, or end the command with a line that says what is wrong.

    With *patient_until*, a broker that does not answer is asked again until that event is set.
    """
    app = ctx.obj.app
    with _connection(app) as connection:
        no_answer = (OperationalError, RedisError, *connection.connection_errors)
        try:
            while True:
                try:
                    fleet = _first_answer(connection, app.conf.broker_transport, ctx.meta.get(COHORT))
                    break
                except no_answer as exc:
                    if patient_until is None or patient_until.is_set():
                        raise
                    click.echo(f"the broker {connection.as_uri()} does not answer, trying again: {exc}", err=True)
                    patient_until.wait(RETRY_S)
            yield fleet
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


def _first_answer(connection: Connection, transport: str, cohort: str | None) -> WholeFleet:
    try:
        return fleet_on(connection, transport, cohort)
    except AffinityError:
        raise
    except ValueError as exc:  # kombu's, for a database that is no number
        raise TransportError(f"the broker's URL {connection.as_uri()} cannot be used: {exc}") from exc


@contextmanager
def scheduler_of(ctx: click.Context, *, patient_until: threading.Event | None = None) -> Iterator[Scheduler]:
    """Yield the scheduler of one cohort: `default` unless another one is named. Otherwise as `fleet_of`."""
    with fleet_of(ctx, patient_until=patient_until) as fleet:
        yield fleet.main


def say_down(down: Mapping[str, str] | None) -> None:
    """Say of each cohort that is *down* that it is."""
    for name, why in (down or {}).items():
        click.echo(str(CohortDownError(name, why)), err=True)


def asked_of(ctx: click.Context, ask: Callable[[Scheduler], Report], *, once: bool = False) -> Asked[Report]:
    """Return what *ask* learns of each cohort that a command is about; those that are down are said to be.

    *once*: it makes a change, and is not repeated.
    """
    with fleet_of(ctx) as fleet:
        asked = fleet.act_in_each(ask) if once else fleet.each(ask)
    say_down(asked.down)
    return asked


def rows_of(ctx: click.Context, ask: Callable[[Scheduler], list[R]]) -> list[R]:
    """Return the rows of all these cohorts as one list."""
    return cohorts.rows(asked_of(ctx, ask))


def show_each(asked: Asked[Report], words: Callable[[Report], str], *, json: bool) -> None:
    """Print the reports of cohorts, under a heading for each if there are several."""
    if not asked.is_split:
        for found in asked.answers.values():
            show(found, words, json=json)
    elif json:
        print_json(as_json(asked.answers))
    else:
        click.echo("\n\n".join(f"cohort {name}:\n{words(found)}" for name, found in asked.answers.items()))


def changed_of(
    ctx: click.Context,
    change: Callable[[Scheduler], Report | None],
    words: Callable[[Report], str],
    *,
    json: bool,
    in_json: Callable[[Report], object] = lambda found: found,
    nothing: Callable[[], str] = str,
) -> None:
    """Change each cohort that a command is about, and show what there is then. Exits with 1 if a cohort is down.

    *nothing*: what to say if *change* returned None of each cohort.
    """
    found = asked_of(ctx, change)
    asked = Asked({name: each for name, each in found.answers.items() if each is not None}, found.down)
    if not asked.answers:
        raise click.ClickException(nothing())
    if json:
        shown = Asked({name: in_json(found) for name, found in asked.answers.items()}, asked.down)
        show_each(shown, str, json=True)
    else:
        show_each(asked, words, json=False)
    if asked.down:
        ctx.exit(1)


def show(found: Report, words: Callable[[Report], str], *, json: bool) -> None:
    """Print a report: as JSON, or in the *words* for people."""
    if json:
        print_json(as_json(found))
    else:
        click.echo(words(found))


def print_json(found: Json) -> None:
    click.echo(dumps(found, indent=2))
