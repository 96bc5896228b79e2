"""The plain facts that the rules judge: of an app, of its server and of its fleet. None: unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Backend:
    """A result backend on the broker's own server. *expires_s*: None for never."""

    url: str
    expires_s: float | None


@dataclass(frozen=True)
class App:
    """What the app says. URLs are without passwords.

    *transport_fails*: why ``broker_transport`` is no transport at all. *keys_refused*: why the options of the broker's
    transport give no Redis keys. *refused*: errors in settings and options. *misspelt*: options one letter away from
    ours, with their places. *not_imported*: why the tasks' modules cannot be imported. *schedules_all*: False if some
    queues are left to kombu.

    *declared*: scheduled type -> its declarations, such as ``task shop.render``. *priorities*: the places that use
    Celery's own priority. *void*: Celery's settings without effect here that were changed, with their values.
    *hiredis*: whether redis-py has its fast parser.
    """

    broker: str = "redis://localhost:6379/0"
    transport: str = "'celery_affinity:Transport'"
    transport_is_ours: bool = True
    transport_fails: str | None = None
    keys_refused: str | None = None
    url_refused: str | None = None
    refused: tuple[str, ...] = ()
    misspelt: tuple[str, ...] = ()
    not_imported: str | None = None
    options: tuple[str, ...] = ()
    known_options: tuple[str, ...] = ()
    schedules_all: bool = True
    priority_order_is_set: bool = True
    priorities: tuple[str, ...] = ()
    void: Mapping[str, object] = field(default_factory=dict)
    cancels_on_connection_loss: bool = False
    guard: bool = True
    tls_unverified: bool = False
    backend: Backend | None = None
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    hiredis: bool = True


@dataclass(frozen=True)
class Server:
    """What the server says. Sizes are in bytes.

    *kind*: "redis", "valkey", or the server's other name for itself. *save*: its setting for snapshots, "" for none.
    *failing*: the kind of writing to the disk that failed last. *clock_here_s*: lead of this host's clock over the
    server's.
    """

    kind: str = "valkey"
    version: tuple[int, ...] = (9, 0)
    cluster: bool = False
    replica: bool = False
    schema: str | None = None
    policy: str = "noeviction"
    used: int = 1
    maxmemory: int = 0
    of_machine: int = 0
    aof: bool = True
    save: str | None = None
    failing: str | None = None
    clients: int = 1
    max_clients: int = 10_000
    clock_here_s: float = 0.0
    refused: str | None = None
    """The server's answer to a user without the right to ask: all but schema and clock are unknown then."""


@dataclass(frozen=True)
class Answer:
    """A worker that answered over remote control. *ours*: whether it has this transport.

    *id* and all fields after it are known of our workers alone.
    """

    name: str
    queues: tuple[str, ...]
    ours: bool = True
    id: str | None = None
    app: str | None = None
    namespace: str | None = None
    guard: bool | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    clock_ahead_s: float | None = None


@dataclass(frozen=True)
class Member:
    """A worker that is alive according to the server. *stalled*: its event loop stands still."""

    id: str
    name: str
    types: tuple[str, ...]
    last_beat_s: float = 0.0
    stalled: bool = False


@dataclass(frozen=True)
class Setting:
    """A setting that can be changed at run time.

    *value* is in force; *conf* is what the app.conf of the worker that joined last says, *own* what this one says.
    """

    name: str
    value: object
    conf: object
    own: object


@dataclass(frozen=True)
class Fleet:
    """Workers and jobs.

    *pending*: type -> number of pending jobs. *stock_messages*: queue -> number of messages in stock Celery's lists.
    *ticked_s*: time since the last tick of a dispatcher. *not_asked*: why the workers could not be asked.
    """

    answers: tuple[Answer, ...] = ()
    members: tuple[Member, ...] = ()
    pending: Mapping[str, int] = field(default_factory=dict)
    stock_messages: Mapping[str, int] = field(default_factory=dict)
    scheduled: int = 0
    dead: int = 0
    unserved: int = 0
    ticked_s: float | None = None
    settings: tuple[Setting, ...] = ()
    heartbeat_s: float = 5.0
    namespace: str = "affinity"
    not_asked: str | None = None

    @property
    def served(self) -> frozenset[str]:
        """Types that a live worker of ours serves."""
        return frozenset(type_ for member in self.members for type_ in member.types)


@dataclass(frozen=True)
class Facts:
    """All that could be learnt. *away*: why there is no *server*. *fleet*: None if nobody asked for it."""

    app: App
    server: Server | None = None
    fleet: Fleet | None = None
    away: str | None = None
