"""The ways from a channel to the cohorts of its app: a connection and a channel for each, side by side."""

from typing import TYPE_CHECKING

from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError

from ..client import publishing_app
from ..client.of_app import settings_of
from ..errors import SettingError, TransportError
from ..rules.cohorts import DEFAULT, Cohort, Patterns, cohort_of
from ..rules.redis_keys import COHORT, Keys

if TYPE_CHECKING:
    from .channel import AffinityChannel


#: Of a publish: the options of ``task_publish_retry_policy`` that are about connections, with kombu's defaults.
_POLICY: dict[str, float] = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2}

#: Of all else. By itself, kombu pauses 2 s before its one further try: whoever waits for one cohort holds up others.
_ONCE_MORE: dict[str, float] = {"max_retries": 1, "interval_start": 0, "interval_step": 0}


class Routes:
    """The channels of *cohorts* of *app*, opened when they are used first. *broker*: the connection of `default`."""

    def __init__(self, app: Celery, broker: Connection, cohorts: dict[str, Cohort], patterns: Patterns) -> None:
        self.map = patterns
        self._app, self._broker, self._cohorts = app, broker, cohorts
        self._channels: dict[str, AffinityChannel] = {}

    @property
    def names(self) -> list[str]:
        """The names of the cohorts beside `default`."""
        return list(self._cohorts)

    def cohort_of(self, type_: str) -> str:
        return cohort_of(type_, self.map)

    def channel_of(self, name: str, *, publishes: bool = False) -> "AffinityChannel":
        """Return the channel of a cohort beside `default`. Raises the errors of a server that does not answer.

        *publishes*: such a server is tried again first, as often as the app's policy for publishes says.
        """
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = self._open(name, publishes=publishes)
        return channel

    def connection_to(self, name: str) -> Connection:
        """Return a new connection to a cohort, which is not open yet."""
        url = self._cohorts[name].url if name != DEFAULT else None
        # Not `clone`, which a connection of a pool does not have.
        connection = (
            Connection(**dict(self._broker._info(resolve=False)))
            if url is None
            else self._app.connection_for_write(url)
        )
        ours = self._broker.transport_options
        patience = {each: ours[each] for each in ("socket_timeout", "socket_connect_timeout") if each in ours}
        connection.transport_options = {**connection.transport_options, **patience, COHORT: name}
        return connection

    def _open(self, name: str, *, publishes: bool) -> "AffinityChannel":
        connection = self.connection_to(name)
        try:
            connection.ensure_connection(**self._patience(publishes))
        except OperationalError as exc:
            if publishes:
                raise  # kombu would repeat the error of a connection: all tries of the policy for each try of it
            raise (exc.__cause__ or exc) from None
        channel = connection.channel()
        if not hasattr(channel, "scheduler_for"):
            raise TransportError(f"url of cohort {name!r} must begin with a scheme of broker_url, such as redis://")
        return channel  # type: ignore[no-any-return]

    def _patience(self, publishes: bool) -> dict[str, float]:
        conf = self._app.conf
        if not publishes or not conf.task_publish_retry:
            return _ONCE_MORE
        # kombu repeats a publish, with pauses, as long as the broker's server is down. It knows of no other server.
        policy = {**_POLICY, **(conf.task_publish_retry_policy or {})}
        return {option: policy[option] for option in _POLICY}

    def close(self) -> None:
        """Close the connections to all cohorts beside `default`."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.connection.client.release()


def routes_of(connection: Connection, keys: Keys) -> Routes | None:
    """Return the ways to the cohorts of the app that made *connection*; None if there are none beside `default`.

    *keys*: those of the connection's channel. A channel of another cohort than `default` leads nowhere else.
    """
    if keys.cohort != DEFAULT:
        return None
    app = publishing_app.that_made(connection)
    try:
        settings = settings_of(app)
    except SettingError:
        return None  # who publishes, or works, says so
    return Routes(app, connection, dict(settings.cohorts), settings.cohort_map) if settings.cohorts else None
