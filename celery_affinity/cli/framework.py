"""Parts that all commands share: connections, options, printing of reports, and groups of commands."""

import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from json import dumps
from typing import Any, TypeVar

import click
from celery import Celery
from celery.bin.base import CeleryCommand, handle_preload_options
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..admin.job_values import hidden_reason
from ..errors import AffinityError, CohortDownError, TransportError
from ..publishing.app_config import settings_of
from ..reports.json import Json, as_json
from ..reports.report import Param, ReportDefinition, Source, find_report
from ..scheduler.cohorts import CohortAnswers, Cohorts
from ..scheduler.scheduler import Scheduler
from ..schema.keys import COHORT
from ..schema.values import MAX_COUNT, MAX_DURATION_S
from ..transport.app_api import fleet_on, stock_lists_of
from ..transport.urls import mask_url

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")

F = TypeVar("F", bound=Callable[..., Any])
Report = TypeVar("Report")

#: Pause before a broker that did not answer is tried again, in seconds.
RETRY_S = 1.0


def command(
    name: str, group: click.Group | None = None, *, json: bool = False, params: Iterable[Param] = ()
) -> Callable[[F], click.Command]:
    """Return a decorator that makes a function a command, of *group* if given. The function gets the context first.

    *json*: with the option ``--json``, the parameter *as_json*. *params*: further parameters, after its arguments.
    """

    def declare(function: F) -> click.Command:
        handled = click.pass_context(handle_preload_options(function))
        declared: click.Command = click.command(name, cls=CeleryCommand)(handled)  # type: ignore[no-untyped-call]
        arguments = sum(isinstance(parameter, click.Argument) for parameter in declared.params)
        declared.params[arguments:arguments] = map(_click_parameter, params)
        if json:
            AS_JSON(declared)
        if group is not None:
            group.add_command(declared)
        return declared

    return declare


def report_command(name: str) -> click.Command:
    """Return the command of the report *name*: a row of `REPORTS`."""
    report = find_report(name)

    def show(ctx: click.Context, as_json: bool, **options: Any) -> None:
        print_declared(ctx, report, as_json=as_json, **options)

    show.__doc__ = report.read.__doc__
    return command(name.split()[-1], json=True, params=report.params)(show)


def print_declared(ctx: click.Context, report: ReportDefinition[Any], *, as_json: bool, **options: Any) -> None:
    """Read and print a report, and print a warning for cohorts that are down."""
    app = ctx.obj.app
    with cohorts_of_context(ctx) as fleet:
        source = Source(fleet, settings_of(app), lambda: stock_lists_of(app), hidden_reason(app))
        answer = report.read(source, **options)
    warn_cohorts_down(answer.down)
    show_report(answer.report, lambda _: report.printed(answer), json=as_json)


def _click_parameter(param: Param) -> click.Parameter:
    """Return the argument or the option for a report's parameter."""
    name = param.name
    if param.type == tuple[str, ...]:
        return click.Argument([name], metavar=f"[{name.upper().removesuffix('S')}]...", nargs=-1)
    if param.is_argument:
        return click.Argument([name], default=param.default)
    if name.endswith("_s"):
        option = f"--{name.removesuffix('_s').replace('_', '-')}"
        return click.Option([option, name], callback=parse_seconds, metavar="TIME", help=param.help)
    return click.Option(
        [f"--{name.replace('_', '-')}"],
        default=param.default,
        show_default=param.default is not None,
        type=_click_type(param),
        help=param.help,
    )


def _click_type(param: Param) -> Any:
    if param.choices:
        return click.Choice(param.choices)
    if param.type is int:
        return click.IntRange(param.min_value, param.max_value)
    if param.type is float:
        min_value = param.min_value if param.above is None else param.above
        return SecondsRange(min_value or 0, param.max_value or MAX_DURATION_S, min_open=param.above is not None)
    return None


@contextmanager
def cohorts_of_context(ctx: click.Context, *, patient_until: threading.Event | None = None) -> Iterator[Cohorts]:
    """Yield the cohorts of a command, or end the command with an error message.

    With *patient_until*, a broker that does not answer is tried again until that event is set.
    """
    with connection_of_context(ctx) as connection:
        no_answer = (OperationalError, RedisError, *connection.connection_errors)
        try:
            while True:
                try:
                    fleet = _connect(connection, ctx.obj.app.conf.broker_transport, ctx.meta.get(COHORT))
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
    """Return an unopened connection to the app's broker, or end the command with an error message."""
    app = ctx.obj.app
    check_app_conf(app)
    try:
        return app.connection_for_write()
    except Exception as exc:  # any: importing a transport can raise anything
        raise click.ClickException(
            "there is no connection with the app's broker_transport and broker_url, "
            f"{app.conf.broker_transport!r} and {mask_url(str(app.conf.broker_write_url))!r}: "
            f"{exc if isinstance(exc, AffinityError) else f'{type(exc).__name__}: {exc}'}"
        ) from exc


def check_app_conf(app: Celery) -> None:
    """End the command with an error message if the app's settings cannot be read."""
    try:
        list(app.conf.keys())  # reads them
    except Exception as exc:  # any: a settings module is user code
        raise click.ClickException(
            f"the settings of the app cannot be read ({' '.join(str(exc).split())}); "
            "`celery -A ... affinity check` shows the correction"
        ) from exc


def _connect(connection: Connection, transport: str, cohort: str | None) -> Cohorts:
    try:
        return fleet_on(connection, transport, cohort)
    except AffinityError:
        raise
    except ValueError as exc:  # raised by kombu for a database that is not a number
        raise TransportError(f"the broker's URL {connection.as_uri()} cannot be used: {exc}") from exc


@contextmanager
def scheduler_of_context(ctx: click.Context, *, patient_until: threading.Event | None = None) -> Iterator[Scheduler]:
    """Yield the scheduler of one cohort, by default `default`. Otherwise like `cohorts_of_context`."""
    with cohorts_of_context(ctx, patient_until=patient_until) as fleet:
        yield fleet.main


def warn_cohorts_down(down: Mapping[str, str] | None) -> None:
    for name, why in (down or {}).items():
        click.echo(str(CohortDownError(name, why)), err=True)


def answers_of(ctx: click.Context, ask: Callable[[Scheduler], Report], *, once: bool = False) -> CohortAnswers[Report]:
    """Return the results of *ask* for each cohort of a command, and print a warning for cohorts that are down.

    *once*: *ask* makes a change and must not be repeated.
    """
    with cohorts_of_context(ctx) as fleet:
        answers = fleet.act_in_each(ask) if once else fleet.each(ask)
    warn_cohorts_down(answers.down)
    return answers


def show_per_cohort(answers: CohortAnswers[Report], as_text: Callable[[Report], str], *, json: bool) -> None:
    """Print the reports of cohorts, with a heading per cohort if there are several."""
    if not answers.is_split:
        for report in answers.answers.values():
            show_report(report, as_text, json=json)
    elif json:
        print_json(as_json(answers.answers))
    else:
        click.echo("\n\n".join(f"cohort {name}:\n{as_text(report)}" for name, report in answers.answers.items()))


def show_report(report: Report, as_text: Callable[[Report], str], *, json: bool) -> None:
    """Print a report as JSON, or as text for people."""
    if json:
        print_json(as_json(report))
    else:
        click.echo(as_text(report))


def print_json(value: Json) -> None:
    click.echo(dumps(value, indent=2))


_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

#: A number of rows or of repetitions.
COUNT = click.IntRange(1, MAX_COUNT)


class SecondsRange(click.FloatRange):
    """A number of seconds. Rejects NaN, which passes click's comparison with the limits."""

    def __init__(self, min: float, max: float = MAX_DURATION_S, min_open: bool = False) -> None:
        super().__init__(min, max, min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number from {self.min} to {self.max}.", param, ctx)
        return seconds


def parse_seconds(_ctx: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return the time in *text*, such as 90s, 30m, 2h or 1d, in seconds. Raises BadParameter."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
    if not 0 < seconds <= MAX_DURATION_S:
        accepted = "a whole number above 0 of s, m, h or d is accepted, such as 30m, up to 3650d"
        raise click.BadParameter(f"{accepted}, got: {text!r}")
    return seconds
