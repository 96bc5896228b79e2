"""``celery -A proj affinity cohorts``: the fleet's map of cohorts and the app's; ``--adopt`` makes that the fleet's."""

from dataclasses import replace
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..client.of_app import settings_of
from ..errors import AffinityError
from ..rules.cohorts import DEFAULT, Patterns, cohort_of, shown
from ..rules.encoding import decode
from ..rules.redis_keys import Keys
from ..server import instance
from ..server.connections.kept import KeptClient
from ..server.reader import Reader
from ..transport.channel import AffinityChannel
from ..transport.reach import channel_on
from .broker import connection_of


@click.command(cls=CeleryCommand)
@click.option("--adopt", is_flag=True, help="Make the app's map the fleet's. Other processes are refused from then on.")
@click.pass_context
@handle_preload_options
def cohorts(ctx: click.Context, adopt: bool) -> None:
    """Show the map of the fleet's cohorts and the app's, or make the app's map the fleet's."""
    app = ctx.obj.app
    try:
        patterns = settings_of(app).cohort_map
        with connection_of(ctx) as connection:
            channel = channel_on(connection, app.conf.broker_transport)
            client: Any = KeptClient(channel.pool)  # redis-py's types leave open what a reply is
            keys = channel.keys
            revision, in_force = instance.stated_cohorts(client.get(keys.key("schema")))
            if adopt:
                _check_that_nothing_moves(channel, client, keys, patterns, in_force)
                revision, in_force = instance.adopt_cohorts(client, keys, shown(patterns)), shown(patterns)
    except AffinityError as exc:
        raise click.ClickException(str(exc)) from exc
    except (OperationalError, RedisError, OSError) as exc:
        raise click.ClickException(f"a server does not answer: {exc}") from exc
    click.echo(f"fleet: {in_force or 'no cohorts'} (revision {revision})")
    click.echo(f"app:   {shown(patterns) or 'no cohorts'}")


def _check_that_nothing_moves(
    channel: AffinityChannel, client: KeptClient, keys: Keys, patterns: Patterns, in_force: str
) -> None:
    """Raise ClickException if jobs, or live workers, of a type are in another cohort than *patterns* has for it."""
    before = [DEFAULT, *(word.partition("=")[0] for word in in_force.split())]
    readers = {name: Reader(client, replace(keys, cohort=name)) for name in before}
    routes = channel.routes
    if routes is not None:
        readers |= {name: routes.channel_of(name).scheduler.reader for name in routes.names}
    for name, reader in readers.items():
        types = {decode(each) for each in (*reader.backlogs(), *reader.capacity())}
        moved = sorted(each for each in types if cohort_of(each, patterns) != name)
        if moved:
            raise click.ClickException(
                f"cohort {name!r} has jobs or workers of types that the app's map has elsewhere: {', '.join(moved)}. "
                "Stop these workers, and let them, or a purge, end these jobs first"
            )
