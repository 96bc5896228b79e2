"""The connections of a channel: timeouts and TLS, kombu's own client, schedulers, and one channel per cohort."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..broker.client import PersistentClient, credential_streams, watch_credentials
from ..broker.failover import is_transient, refuses_writes, surviving_failover
from ..broker.inflight import InFlightCommands
from ..errors import SettingError, TransportError
from ..publishing import publish_call
from ..publishing.app_config import settings_of
from ..scheduler import server_info
from ..scheduler.cohorts import Cohorts
from ..scheduler.messages import PublishReply
from ..scheduler.scheduler import Scheduler
from ..schema.job_record import NewJob
from ..schema.keys import COHORT, Keys
from ..settings.cohorts import DEFAULT, Cohort, Patterns, cohort_of, shown_cohorts

if TYPE_CHECKING:
    from .channel import AffinityChannel

#: For a publish: the connection options of ``task_publish_retry_policy``, with kombu's defaults.
_DEFAULT_POLICY: dict[str, float] = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2}

#: For everything else. By default, kombu pauses 2 s before its single retry, and waiting for one cohort delays others.
_ONE_RETRY: dict[str, float] = {"max_retries": 1, "interval_start": 0, "interval_step": 0}


class CohortRoutes:
    """The channels of *cohorts* of *app*, opened on first use. *broker* is the connection of `default`."""

    def __init__(self, app: Celery, broker: Connection, cohorts: dict[str, Cohort], patterns: Patterns) -> None:
        self.map = patterns
        self._app, self._broker, self._cohorts = app, broker, cohorts
        self._channels: dict[str, AffinityChannel] = {}

    @property
    def names(self) -> list[str]:
        """The names of the cohorts other than `default`."""
        return list(self._cohorts)

    def cohort_of(self, type_: str) -> str:
        return cohort_of(type_, self.map)

    def channel_of(self, name: str, *, publishes: bool = False) -> "AffinityChannel":
        """Return the channel of a cohort other than `default`. Raises the errors of a server that does not answer.

        With *publishes*, such a server is retried first, as often as the app's policy for publishes allows.
        """
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = self._open(name, publishes=publishes)
        return channel

    def connection_to(self, name: str) -> Connection:
        """Return a new, unopened connection to a cohort."""
        url = self._cohorts[name].url if name != DEFAULT else None
        # Not `clone`, which a pooled connection does not have.
        connection = (
            Connection(**dict(self._broker._info(resolve=False)))
            if url is None
            else self._app.connection_for_write(url)
        )
        broker_options = self._broker.transport_options
        timeouts = {
            option: broker_options[option]
            for option in ("socket_timeout", "socket_connect_timeout")
            if option in broker_options
        }
        connection.transport_options = {**connection.transport_options, **timeouts, COHORT: name}
        return connection

    def _open(self, name: str, *, publishes: bool) -> "AffinityChannel":
        connection = self.connection_to(name)
        try:
            connection.ensure_connection(**self._retry_policy(publishes))
        except OperationalError as exc:
            if publishes:
                raise  # kombu would retry a connection error: all attempts of the policy for each of its attempts
            raise (exc.__cause__ or exc) from None
        channel = connection.channel()
        if not hasattr(channel, "scheduler_for"):
            raise TransportError(f"url of cohort {name!r} must begin with a scheme of broker_url, such as redis://")
        return channel  # type: ignore[no-any-return]

    def _retry_policy(self, publishes: bool) -> dict[str, float]:
        conf = self._app.conf
        if not publishes or not conf.task_publish_retry:
            return _ONE_RETRY
        # kombu retries a publish, with pauses, while the broker's server is down, but no other server.
        policy = {**_DEFAULT_POLICY, **(conf.task_publish_retry_policy or {})}
        return {option: policy[option] for option in _DEFAULT_POLICY}

    def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.connection.client.release()


if TYPE_CHECKING:
    from kombu.transport.redis import Channel as _StockChannel
else:
    _StockChannel = object  # mixed into kombu's channels, with and without Sentinel

#: Seconds to wait for the reply of a server function, unless ``socket_timeout`` is set. A connection that was lost
#: silently must not block the event loop, or a publisher, forever.
REPLY_TIMEOUT_S = 10


class ConnectedChannel(_StockChannel):
    """A kombu channel with a scheduler."""

    #: Transport option of kombu: the prefix of all keys, or of kombu's own keys (`Keys.of_kombu`).
    global_keyprefix: str = ""

    #: Transport option: the first part of the hash tag of all keys.
    namespace = "affinity"

    _stock_client: redis.Redis | None = None
    _scheduler: Scheduler | None = None

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        #: All keys of the fleet. Raises SettingError for bad options before any connection is opened.
        self.keys = self.keys_of(connection.client.transport_options)
        super().__init__(connection, **kwargs)

    def keys_of(self, options: Mapping[str, object]) -> Keys:
        return Keys.of_options(options)

    def _get_client(self) -> Any:
        self.global_keyprefix = self.keys.of_kombu  # kombu's client prepends it to its keys
        return super()._get_client()

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # If redis-py repeated a command, it would count twice. Server functions are repeated where that is harmless.
        params = {**super()._connparams(asynchronous), "retry": Retry(NoBackoff(), 0)}
        connect_timeout_s = self.connection.client.connect_timeout or REPLY_TIMEOUT_S
        if not params.get("socket_timeout"):
            # An asynchronous connection is only read when a reply has arrived, except for the reply to the PING that
            # opens a channel. A server that accepts connections and never answers must fail there.
            params["socket_timeout"] = connect_timeout_s if asynchronous else REPLY_TIMEOUT_S
        if "host" in params and not params.get("socket_connect_timeout"):  # without a host, it is a Unix socket
            params["socket_connect_timeout"] = connect_timeout_s
        if isinstance(self.connection.client.ssl, dict) and self.connection.client.ssl:
            # redis-py before 6 accepts another host's certificate by default.
            verifies = params.get("ssl_cert_reqs", ssl.CERT_REQUIRED) not in (None, "none", ssl.CERT_NONE)
            params.setdefault("ssl_check_hostname", verifies)
        if asynchronous and credential_streams(params.get("credential_provider")):
            # In the newer protocol, redis-py reauthenticates a subscription in the provider's thread, which would read
            # replies that the event loop waits for. In the older protocol, kombu subscribes again.
            params["protocol"] = 2
        # kombu only reads from the asynchronous connections.
        params["connection_class"] = surviving_failover(params["connection_class"], reads=asynchronous)
        return params

    @contextmanager
    def conn_or_acquire(self, client: redis.Redis | None = None) -> Iterator[redis.Redis]:
        """Yield one client for all of kombu's commands, since kombu's own client per call costs more."""
        if client is None:
            if self._scheduler is not None:
                self._scheduler.client.give_back()
            if self._stock_client is None or self._stock_client.connection_pool is not self.pool:
                self._stock_client = self.Client(connection_pool=self.pool)
            client = self._stock_client
        try:
            yield client
        except redis.ResponseError as exc:  # also inside the reply to a transaction, which no connection checks
            if not (is_transient(exc) or (self.is_a_workers and refuses_writes(exc))):
                raise
            raise redis.ConnectionError(str(exc)) from exc

    @property
    def is_a_workers(self) -> bool:
        """True if this channel belongs to a worker's consumer, which retries refused writes until they succeed."""
        return getattr(self.connection, "on_revoked", None) is not None

    @property
    def scheduler(self) -> Scheduler:
        """The server functions, on a client without a key prefix: kombu's own client prefixes only some keys."""
        pool = self.pool
        if self._scheduler is None or self._scheduler.client.connection_pool is not pool:
            scheduler = Scheduler(PersistentClient(pool), self.keys)
            self._check_schema(scheduler)
            self._scheduler = scheduler
        return self._scheduler

    def scheduler_of_its_own(self, cohort: str | None = None) -> Scheduler:
        """Return a scheduler on connections that outlive the channel: other threads use it during the close.

        *cohort* is the cohort of the scheduler, by default the channel's.
        """
        if cohort is not None and cohort != self.keys.cohort and self.routes is not None:
            return self.routes.channel_of(cohort).scheduler_of_its_own()
        scheduler = Scheduler(PersistentClient(self._dedicated_pool()), self.keys)
        self._check_schema(scheduler)
        return scheduler

    def _check_schema(self, scheduler: Scheduler) -> None:
        routes = self.routes
        server_info.check_schema(scheduler.client, scheduler.keys, "" if routes is None else shown_cohorts(routes.map))

    @cached_property
    def routes(self) -> CohortRoutes | None:
        """The routes to the app's cohorts; None for an app without cohorts, and on the channel of one cohort."""
        if self.keys.cohort != DEFAULT:
            return None
        connection = self.connection.client
        app = publish_call.app_of_connection(connection)
        try:
            settings = settings_of(app)
        except SettingError:
            return None  # publishers and workers report the error
        return CohortRoutes(app, connection, dict(settings.cohorts), settings.cohort_map) if settings.cohorts else None

    def scheduler_for(self, type_: str, *, publishes: bool = False) -> Scheduler:
        """Return the scheduler of the cohort of *type_*. *publishes*: see `CohortRoutes.channel_of`."""
        routes, default = self.routes, self.scheduler  # raises for a process with another cohort map
        if routes is None or (name := routes.cohort_of(type_)) == DEFAULT:
            return default
        return routes.channel_of(name, publishes=publishes).scheduler

    def scheduler_of(self, cohort: str) -> Scheduler:
        """Return the scheduler of the cohort with that name. Raises SettingError if the app has no such cohort."""
        routes, default = self.routes, self.scheduler
        names = [DEFAULT] if routes is None else [DEFAULT, *routes.names]
        if cohort not in names:
            raise SettingError(f"a cohort must be one of the app's, {' or '.join(map(repr, names))}, got: {cohort!r}")
        return default if routes is None or cohort == DEFAULT else routes.channel_of(cohort).scheduler

    def publish(self, *jobs: NewJob) -> list[PublishReply]:
        """Publish jobs, each in its cohort, and return their replies in order."""
        if self.routes is None:
            return self.scheduler.publish(*jobs)
        schedulers = [self.scheduler_for(job.type, publishes=True) for job in jobs]
        published: dict[int, PublishReply] = {}
        for scheduler in dict.fromkeys(schedulers):
            indexes = [index for index, candidate in enumerate(schedulers) if candidate is scheduler]
            published.update(zip(indexes, scheduler.publish(*(jobs[index] for index in indexes)), strict=True))
        return [published[index] for index in range(len(jobs))]

    @property
    def fleet(self) -> Cohorts:
        """All cohorts of the app, or only the channel's cohort if there are no others."""
        routes, default = self.routes, self.scheduler
        if routes is None:
            return Cohorts.alone(default)
        return Cohorts([DEFAULT, *routes.names], routes.cohort_of, self.scheduler_of)

    def close(self) -> None:
        if routes := self.__dict__.pop("routes", None):
            routes.close()
        super().close()

    def in_flight_of_its_own(self) -> InFlightCommands:
        """Return a connection for server functions whose replies the event loop does not wait for."""
        return InFlightCommands(self._dedicated_pool())

    def _get_pool(self, asynchronous: bool = False) -> redis.ConnectionPool:
        pool: redis.ConnectionPool = super()._get_pool(asynchronous)
        if not asynchronous:  # kombu's own client notifies the other connections
            watch_credentials(pool)
        return pool

    def _dedicated_pool(self) -> redis.ConnectionPool:
        manager = getattr(self, "_sentinel_manager", None)
        pool: redis.ConnectionPool = self._get_pool()
        self._sentinel_manager = manager  # the channel closes its own pool's manager
        return pool
