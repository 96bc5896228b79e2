"""Parts that all commands share: an option, the way to the broker, and the printing of a report.

Groups of commands that load the module of a command when that command is asked for.

Groups of commands, such as ``keys``, that list what there is if no command is named.

Times that a person writes: 90s, 30m, 2h, 1d. Each number of a command has an upper bound.

Options that `celery worker` takes besides its own.

``app.user_options`` is Celery's place for such options, but belongs to one app, which does not exist yet when `celery`
loads our commands. So the command gets here what it would take from there.
"""

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from json import dumps
from typing import Any, TypeVar

import click
from celery import Celery
from celery.bin.worker import worker
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..errors import AffinityError, CohortDownError, TransportError
from ..policy.placement import LARGEST
from ..reports import cohorts
from ..reports.json import Json, as_json
from ..scheduler.cohorts import CohortAnswers, CohortRow, Cohorts
from ..scheduler.scheduler import Scheduler
from ..schema.keys import COHORT
from ..schema.values import LONGEST_S, MOST_COUNT
from ..transport.app_api import fleet_on
from ..transport.urls import mask_url

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")

#: Pause, s, before a broker that did not answer is asked again.
RETRY_S = 1.0

Report = TypeVar("Report")
R = TypeVar("R", bound=CohortRow)


@contextmanager
def cohorts_of_context(ctx: click.Context, *, patient_until: threading.Event | None = None) -> Iterator[Cohorts]:
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


def connection_of_context(ctx: click.Context) -> Connection:
    """Return a connection to the app's broker, which is not open yet; ends the command if there is none."""
    return _connection(ctx.obj.app)


def check_app_conf(app: Celery) -> None:
    """End the command with a line that says what is wrong if the app's settings cannot be read."""
    try:
        list(app.conf.keys())  # which reads them
    except Exception as exc:  # any: a module of settings is the user's
        raise click.ClickException(
            f"the settings of the app cannot be read ({' '.join(str(exc).split())}); "
            "`celery -A ... affinity check` says what to write"
        ) from exc


def _connection(app: Celery) -> Connection:
    check_app_conf(app)
    try:
        return app.connection_for_write()
    except Exception as exc:  # any: the import of a transport may fail in any way
        raise click.ClickException(
            "there is no connection with the app's broker_transport and broker_url, "
            f"{app.conf.broker_transport!r} and {mask_url(str(app.conf.broker_write_url))!r}: {_said(exc)}"
        ) from exc


def _said(exc: Exception) -> str:
    return str(exc) if isinstance(exc, AffinityError) else f"{type(exc).__name__}: {exc}"


def _first_answer(connection: Connection, transport: str, cohort: str | None) -> Cohorts:
    try:
        return fleet_on(connection, transport, cohort)
    except AffinityError:
        raise
    except ValueError as exc:  # kombu's, for a database that is no number
        raise TransportError(f"the broker's URL {connection.as_uri()} cannot be used: {exc}") from exc


@contextmanager
def scheduler_of_context(ctx: click.Context, *, patient_until: threading.Event | None = None) -> Iterator[Scheduler]:
    """Yield the scheduler of one cohort: `default` unless another one is named. Otherwise as `fleet_of`."""
    with cohorts_of_context(ctx, patient_until=patient_until) as fleet:
        yield fleet.main


def warn_cohorts_down(down: Mapping[str, str] | None) -> None:
    """Say of each cohort that is *down* that it is."""
    for name, why in (down or {}).items():
        click.echo(str(CohortDownError(name, why)), err=True)


def answers_of(ctx: click.Context, ask: Callable[[Scheduler], Report], *, once: bool = False) -> CohortAnswers[Report]:
    """Return what *ask* learns of each cohort that a command is about; those that are down are said to be.

    *once*: it makes a change, and is not repeated.
    """
    with cohorts_of_context(ctx) as fleet:
        asked = fleet.act_in_each(ask) if once else fleet.each(ask)
    warn_cohorts_down(asked.down)
    return asked


def rows_of_cohorts(ctx: click.Context, ask: Callable[[Scheduler], list[R]]) -> list[R]:
    """Return the rows of all these cohorts as one list."""
    return cohorts.rows_of_all(answers_of(ctx, ask))


def show_per_cohort(asked: CohortAnswers[Report], words: Callable[[Report], str], *, json: bool) -> None:
    """Print the reports of cohorts, under a heading for each if there are several."""
    if not asked.is_split:
        for found in asked.answers.values():
            show_report(found, words, json=json)
    elif json:
        print_json(as_json(asked.answers))
    else:
        click.echo("\n\n".join(f"cohort {name}:\n{words(found)}" for name, found in asked.answers.items()))


def change_in_cohorts(
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
    found = answers_of(ctx, change)
    asked = CohortAnswers({name: each for name, each in found.answers.items() if each is not None}, found.down)
    if not asked.answers:
        raise click.ClickException(nothing())
    if json:
        shown = CohortAnswers({name: in_json(found) for name, found in asked.answers.items()}, asked.down)
        show_per_cohort(shown, str, json=True)
    else:
        show_per_cohort(asked, words, json=False)
    if asked.down:
        ctx.exit(1)


def show_report(found: Report, words: Callable[[Report], str], *, json: bool) -> None:
    """Print a report: as JSON, or in the *words* for people."""
    if json:
        print_json(as_json(found))
    else:
        click.echo(words(found))


def print_json(found: Json) -> None:
    click.echo(dumps(found, indent=2))


def lazy_group(package: str, modules: Mapping[str, str]) -> type[click.Group]:
    """Return the class of a group that knows no more than the names of its commands until one is asked for.

    *modules*: name of a command, as people type it -> the module of *package* that has it, in the order of `--help`.
    `celery` loads this package whichever of its commands it runs.
    """

    class LoadsOnUse(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return [*modules]

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in modules:
                return None
            found = vars(import_module(f".{modules[cmd_name]}", package)).values()
            return next(each for each in found if isinstance(each, click.Command) and each.name == cmd_name)

    return LoadsOnUse


class DefaultListGroup(click.Group):
    """A group whose command ``list`` need not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


#: A number of rows, or of repetitions.
COUNT = click.IntRange(1, MOST_COUNT)


class SecondsRange(click.FloatRange):
    """A number of seconds. NaN, which is neither below nor above a limit, is outside of every range."""

    def __init__(self, min: float, max: float = LONGEST_S, min_open: bool = False) -> None:
        super().__init__(min, max, min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number from {self.min} to {self.max}.", param, ctx)
        return found


def parse_seconds(_ctx: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return the time in *text*, s. Raises BadParameter."""
    if text is None:
        return None
    said = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    found = int(said[1]) * _UNITS_S[said[2]] if said else 0
    if not 0 < found <= LONGEST_S:
        accepted = "a whole number above 0 of s, m, h or d is accepted, such as 30m, up to 3650d"
        raise click.BadParameter(f"{accepted}, got: {text!r}")
    return found


PRIORITY = click.Option(
    ["--affinity-priority"],
    type=click.IntRange(-LARGEST, LARGEST),
    envvar="CELERY_AFFINITY_PRIORITY",
    help='celery_affinity: priority of this worker among equally specialised ones, with affinity_placement="weighted". '
    "By default the worker with the lower number is preferred.",
)


def add_worker_options() -> None:
    """Have `celery worker` take our options."""
    if PRIORITY not in worker.params:
        worker.params.append(PRIORITY)
