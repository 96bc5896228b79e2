"""The kombu transport for any Redis URL: ``app.conf.broker_transport = "celery_affinity:Transport"`` installs it."""

import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from socket import socket
from typing import Any

from kombu.asynchronous.hub import Hub
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as stock
from kombu.transport.base import Transport as BaseTransport
from kombu.utils.url import as_url
from redis.exceptions import NoScriptError

from ..broker.cluster import ClusterConnection, ClusterNode, ClusterSSLConnection, cluster_of
from ..broker.failover import LOST
from ..errors import TransportError
from ..log_limit import limited_logger
from ..publishing.app_config import without_prefix
from ..publishing.message import Revoke, is_mailbox, read_revoke
from ..schema import values
from ..schema.keys import Keys
from ..schema.values import shown_bytes
from ..versions import versions
from . import inbox, urls
from .channel import AffinityChannel, Channel, SentinelChannel


class SingleWatch:
    """A ``kombu.asynchronous.Hub`` for a transport, without duplicate watches. *sockets* returns its open connections.

    In each iteration, kombu's Redis transport adds all its connections to the hub. Each addition is a system call, a
    twentieth of a worker's time for a short task. Some of these connections are closed, and other connections can have
    their file descriptors by now. So `add_reader` does nothing if the watch exists, or if no open connection has that
    descriptor.
    """

    def __init__(self, hub: Hub, sockets: Callable[[], Iterable[socket]]) -> None:
        self._hub, self._sockets = hub, sockets

    def __getattr__(self, name: str) -> object:
        return getattr(self._hub, name)

    def add_reader(self, fd: int, callback: Callable[..., object], *args: object) -> None:
        is_new = self._hub.readers.get(fd) != (callback, args)
        if is_new and any(connection.fileno() == fd for connection in self._sockets()):
            self._hub.add_reader(fd, callback, *args)


class DefaultURL(BaseTransport):
    """Masks the password of a URL that kombu does not know, and raises TransportError for connections.

    `celery report` and `inspect report` create such a connection without this transport, and never open it.
    """

    can_parse_url = True
    driver_type = driver_name = "redis"

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri if include_password else urls.mask_url(uri, mask)

    def driver_version(self) -> str:
        return "N/A"

    def establish_connection(self) -> Any:
        raise TransportError(
            "a URL with this scheme needs the transport of this package: set broker_transport = "
            "'celery_affinity:Transport'"
        )


for _scheme in (*urls.CLUSTER, *urls.SAME):
    TRANSPORT_ALIASES.setdefault(_scheme, f"{__name__}:DefaultURL")


logger = limited_logger(__name__)

#: Transport option with the scheme of a connection's URL: kombu copies the options to the connection's clones.
_SCHEME = "affinity_scheme"


class Transport(stock.Transport):
    """Celery's Redis transport, scheduled by affinity. Celery uses it; you only name it in ``broker_transport``.

    ::

        app = Celery("shop", broker="redis://:password@broker:6379/0")
        app.conf.broker_transport = "celery_affinity:Transport"
        app.conf.broker_transport_options = {"namespace": "shop"}

    ``broker_url``: ``redis://``, ``rediss://`` (the server's certificate is verified, unless the URL has
    ``?ssl_cert_reqs=none``), ``sentinel://``, ``redis-cluster://``, ``rediss-cluster://`` or ``socket:///path``. Join
    several with ";" for failover, or as start nodes of a cluster. Any other scheme raises TransportError, without the
    password. ``?credential_provider=proj.logins.Provider`` names a subclass of ``redis.CredentialProvider``, which
    supplies user and password for each new connection. A URL with the prefix ``affinity+``, as in ``affinity+redis://``,
    selects this transport without ``broker_transport``, in a process that has imported `celery_affinity`.

    ``broker_transport_options``: the options of stock Celery for Redis, and ``namespace``. The most important ones:

    - ``namespace`` ("affinity"): first part of the hash tag of all keys. Apps on one database with different namespaces
      share no job and no worker.
    - ``global_keyprefix`` (""): prefix of all keys, including kombu's.
    - ``socket_timeout`` (10 s): maximum wait for a reply.
    - ``socket_connect_timeout`` (``broker_connection_timeout``, 4 s): maximum wait for a connection.
    - ``master_name``, ``sentinel_kwargs``: for ``sentinel://``.

    ``visibility_timeout`` only affects queues that are not scheduled (``affinity_queues``). The app's own settings are
    listed in docs/reference/settings.md.
    """

    Channel = Channel
    can_parse_url = True

    #: The server's scripts can be flushed after kombu has loaded one of its own, and before it invokes the script. A
    #: worker that reconnects at that moment retries instead of exiting.
    connection_errors = (*stock.Transport.connection_errors, NoScriptError)

    #: kombu's default for transports without this attribute. With it, a publish is repeated after each lost connection,
    #: not only after the first; `publishing.celery_hooks` pauses in between.
    recoverable_connection_errors = (*connection_errors, *stock.Transport.channel_errors)

    #: Remote control, mingle and gossip compare this string.
    driver_type = "redis"
    driver_name = "celery_affinity"

    #: Called with the revocations of a broadcast, in a worker that reads it for the whole fleet; None in other
    #: processes.
    on_revoked: Callable[[Revoke], None] | None = None

    #: Number of messages delivered to consumers.
    deliveries = 0

    implements = stock.Transport.implements.extend(batch_publish=True)
    supports_batch_publish = True

    def __init__(self, client: Any, **kwargs: Any) -> None:
        self._scheme = _describe(client)
        client.switch = types.MethodType(_switch, client)
        client.info = types.MethodType(_info, client)
        if self._scheme == "sentinel":
            self.Channel = SentinelChannel
            self.default_port = stock.SentinelTransport.default_port
        elif self._scheme in urls.CLUSTER:
            self.Channel = ClusterChannel
        super().__init__(client, **kwargs)
        if "flower" in sys.modules:
            from ..reports import flower  # imported here, because only Flower's process needs it
            from .app_api import fleet_on

            flower.install_in_flower(client, fleet_on)

    def _deliver(self, message: dict[str, Any], queue: str) -> None:
        self.deliveries += 1
        is_control = is_mailbox(queue)
        try:
            if is_control:
                inbox.check_control_message(message)
                if self.on_revoked is not None and (revoked := read_revoke(queue, message)) is not None:
                    self.on_revoked(revoked)
            super()._deliver(message, queue)
        except inbox.UnreadableError as exc:
            values.log_and_drop_untrusted(queue, message, exc)
        except LOST:
            raise
        except Exception as exc:
            if is_control and isinstance(exc, (ContentDisallowed, DecodeError)):
                values.log_and_drop_untrusted(queue, message, exc)  # other replies follow
            elif self.on_revoked is None:
                raise  # a client's consumer may raise on purpose, but this would end a worker
            else:
                logger.exception("A message from %r failed and is dropped: %s", queue, shown_bytes(message))
                self._refuse(message)

    def _refuse(self, message: dict[str, Any]) -> None:
        """Reject a message that no consumer received: kombu would redeliver an unacknowledged message repeatedly."""
        delivery_tag = message["properties"]["delivery_tag"]
        for channel in self.channels:
            if channel.qos.holds(delivery_tag):
                channel.basic_reject(delivery_tag, requeue=False)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, SingleWatch(loop, self.cycle._chan_to_sock.values))

    def driver_version(self) -> str:
        """Return the versions of this package and of redis-py, for `celery report`."""
        package_versions = versions()
        return f"{package_versions['celery_affinity']}, redis-py {package_versions['redis']}"

    def drain_events(self, connection: Any, timeout: float | None = None) -> Any:
        for channel in self.channels:
            if channel.inbox is not None:
                channel.inbox.loop_ran()
        if hasattr(self.cycle, "maybe_reauth"):  # kombu 5.7 and later, which has a timer for it only in event loops
            self.cycle.maybe_reauth()
        return super().drain_events(connection, timeout=timeout)

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the broker's URL as users write it. Flower connects to that URL."""
        if self._scheme == "socket":
            return uri if include_password else urls.mask_url(uri, mask)
        client = self.client
        return str(
            as_url(
                self._scheme,
                client.hostname,
                client.port,
                client.userid,
                client.password,
                client.virtual_host,
                sanitize=not include_password,
                mask=mask,
            )
        )


def _describe(client: Any) -> str:
    """Write the parts of a connection's URL into its fields, like kombu's own transports. Return the scheme.

    A clone of a connection has these fields, but no URL.
    """
    url = client.hostname or ""
    if "://" not in url:
        return str(client.transport_options.get(_SCHEME, "redis"))
    broker = urls.parse_broker_url(url)
    client.transport_options = {**client.transport_options, _SCHEME: broker.scheme}
    client.hostname = broker.host
    client.port = broker.port or client.port
    client.userid = broker.user or client.userid
    client.password = broker.password or client.password
    client.virtual_host = broker.virtual_host or client.virtual_host
    if broker.credential_provider is not None:
        if not hasattr(client, "credential_provider"):
            raise TransportError(
                f"credential_provider in broker_url needs kombu 5.6.1 or later, got: kombu {versions()['kombu']}"
            )
        client.credential_provider = broker.credential_provider
    if broker.ssl:
        app_options = client.ssl if isinstance(client.ssl, dict) else {}  # ``broker_use_ssl``
        client.ssl = {**broker.ssl, **app_options}
    return broker.scheme


def _switch(connection: Any, url: str) -> None:
    """Switch to the next URL of a failover list. Replaces `Connection.switch`, which would choose kombu's transport.

    On a cluster, each connection finds the nodes by itself, with the login of the first URL.
    """
    url = without_prefix(url)
    connection.close()
    connection.declared_entities.clear()
    connection._closed = False
    connection.port = connection.virtual_host = None
    params = connection._initial_params
    if connection.transport_options.get(_SCHEME) not in urls.CLUSTER:
        params = {**params, "hostname": url, "port": None, "virtual_host": None}
    connection._init_params(**params)


def _info(connection: Any) -> dict[str, Any]:
    """Return a connection's facts for `inspect stats`: `Connection.info` without the passwords in its URLs."""
    info = dict(connection._info())
    info["hostname"] = urls.mask_url(info["hostname"])
    info["alternates"] = [urls.mask_url(url) for url in info["alternates"]]
    return info


class ClusterChannel(AffinityChannel, stock.Channel):
    """A channel on a cluster. All its connections, including kombu's, lead to the node with the fleet's keys.

    Broadcasts are plain pub/sub, which each node forwards to all others.
    """

    from_transport_options = Channel.from_transport_options

    connection_class = ClusterConnection
    connection_class_ssl = ClusterSSLConnection

    def keys_of(self, options: Mapping[str, object]) -> Keys:
        return replace(super().keys_of(options), in_cluster=True)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        return {**super()._connparams(asynchronous), "cluster": cluster_of(tuple(self._start_nodes()), self.keys.base)}

    def _start_nodes(self) -> Iterator[ClusterNode]:
        """Yield the nodes of the broker's URLs, in the user's order, regardless of the connection's current URL."""
        client, default = self.connection.client, self.connection.default_port
        nodes = [(url.host, url.port) for url in map(urls.parse_broker_url, client.alt) if url.scheme in urls.CLUSTER]
        for host, port in nodes or [(client.hostname, client.port)]:
            yield ClusterNode(host or "localhost", port or default)
