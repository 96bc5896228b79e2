"""Gather the facts of the cohorts beside `default`: of their servers, and of the workers and jobs there."""

from collections.abc import Callable, Iterator

import redis
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..errors import AffinityError
from ..server.scheduler import Scheduler
from ..transport.channel import AffinityChannel
from .facts import App, Facts, Fleet
from .gather_server import server_of


def in_cohorts(
    own: App,
    channel: AffinityChannel,
    of_cohort: Callable[[str], App],
    fleet_of: Callable[[App, AffinityChannel, Scheduler], Fleet],
) -> Iterator[tuple[str, Facts]]:
    """Yield the name and the facts of each cohort. One that is down is said to be, and holds up no other."""
    routes = channel.routes
    for name in () if routes is None else routes.names:
        try:
            its = routes.channel_of(name)  # type: ignore[union-attr]  # there are names
            # The channel's own scheduler would write the schema to a server without one.
            scheduler = Scheduler(redis.Redis(connection_pool=its.pool), its.keys)
            app = of_cohort(name)
            yield name, Facts(app, server_of(scheduler.reader, scheduler.client), fleet_of(app, its, scheduler))
        except (OperationalError, RedisError, OSError, AffinityError) as exc:
            yield name, Facts(own, down=str(exc))
