"""Task options -> one message header: what a job needs, and the id under which it is published.

`on_before_task_publish` runs once per call of ``apply_async`` (and of a retry, of beat, of a canvas), before kombu's
own retries: the id that it stamps makes a repeated publish harmless. Precedence: an option of the call, the header of
the first try, the task's own ``affinity=``, a name pattern in ``affinity_task_types``, the queue.
"""

import base64
import fnmatch
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from celery import Celery, _state, current_app
from celery.signals import before_task_publish
from celery.utils.time import maybe_iso8601, maybe_make_aware

from . import settings as settings_module
from .affinity import NOTHING, Affinity, as_affinity, check_on_demand, check_priority
from .declaring import bind_once
from .errors import AffinityError, OptionError
from .lease import now_s
from .score import MAX_PRIORITY
from .settings import Settings

#: The message header that carries a stamp. A retry keeps headers, so it keeps what its first try had.
HEADER = "affinity"

Headers = dict[str, Any]


@dataclass(frozen=True)
class Stamp:
    """What a message says of its job. *type* None: the queue it is sent to.

    *due*, *expires*: Unix times in s, None for now and for never.
    """

    publish_id: str
    type: str | None
    priority: int
    on_demand: bool
    due: float | None
    expires: float | None = None

    def job_id(self, queue: str) -> str:
        """Return the id of the copy for *queue*: the same each time this publish is repeated."""
        return job_id(self.publish_id, queue)

    def delay_us(self) -> int:
        """Return how long the job has still to wait, by this host's clock: it also set the time, from a countdown."""
        return 0 if self.due is None else max(0, round((self.due - time.time()) * 1e6))

    def expires_us(self) -> int | None:
        """Return how long the job may wait before it expires, by the same clock; None for ever."""
        return None if self.expires is None else round((self.expires - time.time()) * 1e6)


def job_id(publish_id: str, queue: str) -> str:
    """Return the id of the job that a publish puts into *queue*."""
    digest = hashlib.blake2b(f"{publish_id} {queue}".encode(), digest_size=15).digest()
    return base64.urlsafe_b64encode(digest).decode()


def is_ours(broker_transport: object) -> bool:
    """Return whether a value of ``app.conf.broker_transport`` selects this transport."""
    module = broker_transport if isinstance(broker_transport, str) else getattr(broker_transport, "__module__", "")
    return module.partition(":")[0].partition(".")[0] == __package__


def is_job(headers: Mapping[str, Any]) -> bool:
    """Return whether a message is a task (not a reply to remote control)."""
    return "task" in headers or HEADER in headers


@before_task_publish.connect
def on_before_task_publish(
    sender: str | None = None,
    headers: Headers | None = None,
    properties: dict[str, Any] | None = None,
    declare: list[Any] | None = None,
    **_: Any,
) -> None:
    """Stamp the message about to be published, unless its app uses another transport.

    Celery swallows errors here, so a refusal travels with the message.
    """
    if headers is None or properties is None:
        return
    app = _publishing_app()
    if not is_ours(app.conf.broker_transport):
        return
    if isinstance(declare, list):
        bind_once(app, declare)
    try:
        headers[HEADER] = _stamp(app, sender or "", headers, properties)
    except AffinityError as exc:
        headers[HEADER] = {"refused": str(exc)}


def read(headers: Headers, properties: dict[str, Any]) -> Stamp:
    """Return the stamp of a message, and stamp one that came without (sent by other means than ``apply_async``).

    Raises OptionError if the message asks for what cannot be.
    """
    header = _stamped(headers, properties)
    if "refused" in header:
        raise OptionError(header["refused"])
    return Stamp(
        header["id"],
        header.get("type"),
        header["priority"],
        header.get("on_demand") or False,
        header.get("due"),
        header.get("expires"),
    )


def as_stock(queue: str, message: Headers) -> tuple[str, Headers] | None:
    """Return the queue and the message of a job that is not scheduled, as Celery alone would send it.

    None for one that is scheduled. A message that asks for what cannot be is refused by `read`, unless it is only its
    priority: outside of our queues kombu bends that to what it has.
    """
    header = _stamped(message["headers"], message["properties"])
    type_ = header.get("type") or queue
    if header.keys() == {"refused"} or settings_of(_publishing_app()).schedules(type_):
        return None
    headers = {name: value for name, value in message["headers"].items() if name != HEADER}
    properties = dict(message["properties"])
    if "given" in header:
        properties["priority"] = header["given"]
    if type_ != queue:  # kombu puts what is not acked back where this says
        properties["delivery_info"] = {"exchange": "", "routing_key": type_}
    return type_, {**message, "headers": headers, "properties": properties}


def _stamped(headers: Headers, properties: dict[str, Any]) -> dict[str, Any]:
    header = headers.get(HEADER)
    if not isinstance(header, dict) or not {"id", "refused"} & header.keys():
        header = headers[HEADER] = _stamp(_publishing_app(), headers.get("task") or "", headers, properties)
    return header


def _publishing_app() -> Celery:
    """Return the app that publishes in this thread, as far as can be known.

    Celery's current app is one for each thread, and in a thread where none was made or set it is the default app, which
    knows nothing. Then it is the app that uses this transport, if there is just one.
    """
    current: Celery = current_app._get_current_object()
    if _state._tls.current_app is None and not is_ours(current.conf.broker_transport):
        ours = [app for app in tuple(_state._get_active_apps()) if is_ours(app.conf.broker_transport)]
        if len(ours) == 1:
            return ours[0]
    return current


def _stamp(app: Celery, name: str, headers: Headers, properties: dict[str, Any]) -> dict[str, Any]:
    settings = settings_of(app)
    first_try = headers.get(HEADER) or {}
    task = app.tasks.get(name)
    sources = [
        as_affinity(properties.pop("affinity", None)),
        _from_first_try(first_try),
        as_affinity(getattr(task, "affinity", None)),
        as_affinity(type_by_name(name, settings)),
    ]
    on_demand = properties.pop("on_demand", None)
    on_demands = [source.on_demand for source in sources]
    if on_demand is not None:
        on_demands.insert(0, check_on_demand(on_demand))
    given = properties.get("priority")
    type_ = _first(source.type for source in sources)
    try:
        priority = _priority(sources, properties, getattr(task, "priority", None), settings)
    except OptionError as exc:
        return {"refused": str(exc), "type": type_}
    said = {
        "type": type_,
        "on_demand": _first(on_demands),
        "due": moment(headers.get("eta"), app),
        "expires": _kept(headers.get("expires"), first_try) or moment(headers.get("expires"), app),
        "given": None if properties["priority"] == (given or 0) else given or 0,
    }
    stamp = {name: value for name, value in said.items() if value is not None}
    return {"id": secrets.token_hex(16), "priority": priority, **stamp}


class Until(NamedTuple):
    """When a job expires, for its retry. *expires*: what its message says. *until_s*: by this machine's `now_s`."""

    expires: object
    until_s: float


def _kept(expires: object, first_try: Mapping[str, Any]) -> float | None:
    """Return when a message expires that keeps what its first try had, by this host's clock; None if it does not."""
    until = first_try.get("until")
    if not isinstance(until, Until) or until.expires != expires:
        return None
    return time.time() + until.until_s - now_s()


def _from_first_try(header: Mapping[str, Any]) -> Affinity:
    """Return what the header of a message's first try says; its priority is in the message's own properties."""
    return NOTHING if not header else Affinity(header.get("type"), None, header.get("on_demand"))


def _priority(sources: list[Affinity], properties: dict[str, Any], of_task: int | None, settings: Settings) -> int:
    """Return the priority, 10 highest, and leave it as the app counts it in *properties*, where a retry finds it.

    ``priority=`` of the call comes after ``affinity=`` of the call and before that of the task; Celery does not tell
    it from the task's own ``priority``, so one that equals that comes last.
    """
    option, *rest = [source.priority for source in sources]
    given = properties.get("priority")
    order = [option, *rest, given] if given == of_task else [option, given, *rest]
    chosen = check_priority(_first(order) or 0)
    properties["priority"] = chosen
    return as_counted(chosen, settings)


def as_counted(priority: int, settings: Settings) -> int:
    """Return a priority as the scripts count it, 10 highest, of one as the app does."""
    return MAX_PRIORITY - priority if settings.priority_order == "lower-first" else priority


def _first(values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def moment(given: object, app: Celery) -> float | None:
    """Return the time of a header. One that cannot be read is the worker's to refuse, as in stock Celery."""
    if not given:
        return None
    try:
        when: datetime = maybe_make_aware(maybe_iso8601(given), app.timezone)
    except (ValueError, TypeError, AttributeError):
        return None
    return when.timestamp()


def type_by_name(name: str, settings: Settings) -> str | None:
    """Return the type that ``affinity_task_types`` has for the task *name*."""
    return _match(name, tuple(settings.task_types.items())) if settings.task_types else None


@lru_cache(maxsize=4096)
def _match(name: str, patterns: tuple[tuple[str, str], ...]) -> str | None:
    return next((type_ for pattern, type_ in patterns if fnmatch.fnmatchcase(name, pattern)), None)


_SETTINGS: "WeakKeyDictionary[Celery, Settings]" = WeakKeyDictionary()


def settings_of(app: Celery) -> Settings:
    """Return the settings of *app*, read once. Raises SettingError."""
    settings = _SETTINGS.get(app)
    if settings is None:
        settings = _SETTINGS[app] = settings_module.load(app.conf, app.conf.keys())
    return settings
