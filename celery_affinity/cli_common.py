"""What the commands share: the way to the broker, and how they print."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import click
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from .errors import AffinityError
from .observe import reader_on, scheduler_on
from .reader import Reader
from .scheduler import Scheduler


@contextmanager
def scheduler_of(ctx: click.Context) -> Iterator[Scheduler]:
    """Yield the arrows on the app's broker, or end the command with a line that says what is wrong."""
    app = ctx.obj.app
    with app.connection_for_write() as connection:
        try:
            connection.ensure_connection(max_retries=1)
            yield scheduler_on(connection, app.conf.broker_transport)
        except (OperationalError, RedisError, *connection.connection_errors) as exc:
            raise click.ClickException(f"the broker {connection.as_uri()} does not answer: {exc}") from exc
        except AffinityError as exc:
            raise click.ClickException(str(exc)) from exc


@contextmanager
def reader_of(ctx: click.Context) -> Iterator[Reader]:
    with scheduler_of(ctx) as scheduler:
        yield reader_on(scheduler)


def print_json(found: object) -> None:
    click.echo(json.dumps(found, indent=2))


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
