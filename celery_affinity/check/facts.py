"""What the rules look at: plain facts of an app, of its server and of its fleet. None: could not be had."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Backend:
    """A result backend on the broker's own server. *expires_s*: None for never."""

    url: str
    expires_s: float | None


@dataclass(frozen=True)
class App:
    """What the app says. URLs are without passwords. Not *schedules_all*: some queues are left to kombu.

    *transport_fails*: why ``broker_transport`` is no transport at all. *keys_refused*: why Redis keys cannot be made of
    the options of the broker's transport. *misspelt*: options that are ours but for a letter, with where they stand.

    *declared*: type that is scheduled -> who says so, such as ``task shop.render``. *priorities*: who uses Celery's
    own priority. *void*: Celery's settings that were changed and do nothing here, with their values. *hiredis*: whether
    redis-py has its fast parser.
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
    """What the server says. Sizes are bytes. *kind*: "redis", "valkey", or what else it calls itself.

    *save*: its setting for snapshots, "" for none. *failing*: which kind of writing to the disk failed last.
    *clock_here_s*: how far this host's clock is ahead of the server's.
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
    """What the server said if this user may not ask it: all but schema and clock are unknown then."""


@dataclass(frozen=True)
class Answer:
    """A worker that answered over remote control. Not *ours*: it has another transport.

    *id*, *namespace* and what follows are known of ours alone, and of new enough ones.
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
    """A worker that is alive by what stands on the server. *stalled*: its event loop stands still."""

    id: str
    name: str
    types: tuple[str, ...]
    last_beat_s: float = 0.0
    stalled: bool = False


@dataclass(frozen=True)
class Setting:
    """A setting that can be changed at run time: in force, as an app.conf said last, and as this one says."""

    name: str
    value: object
    conf: object
    own: object


@dataclass(frozen=True)
class Fleet:
    """Workers and jobs.

    *pending*: type -> jobs that wait. *stock_messages*: queue -> messages in stock Celery's own lists.
    *ticked_s*: since a dispatcher last worked. *not_asked*: why the workers could not be asked.
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
    """All that could be learnt. *away*: why there is no *server*. No *fleet*: it was not to be looked at."""

    app: App
    server: Server | None = None
    fleet: Fleet | None = None
    away: str | None = None
