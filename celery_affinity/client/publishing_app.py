"""The app that publishes: recorded where a publish begins, since nothing later names the app.

Celery's current app is a guess: each thread has one, the app that was made or set last. But a publish begins in one of
two places that belong to one app, in any thread, greenlet or process:

- ``app.amqp.send_task_message``, a function of each app's own. ``delay``, ``apply_async``, ``send_task``, signatures,
  canvas, retries and celery beat all call it, with whatever producer; ``before_task_publish`` is sent from within, and
  does not name the app.
- a connection that the app made (``app.connection()``, its pools), for code that publishes with kombu alone.

Both are made by methods of Celery's classes, which are wrapped (`celery_methods.apps`).
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from weakref import WeakValueDictionary

from celery import Celery, _state
from kombu import Connection

from ..errors import SettingError
from ..rules.cohorts import SETTING, as_map
from . import under_way
from .celery_methods import apps
from .of_app import is_ours

#: The transport option by which the connections of a second, third ... live app are told from those of the first. kombu
#: keeps a pool for each set of options, so the first app has the pools of stock kombu, and each other app has pools of
#: its own.
_OPTION = "celery_affinity_app"

#: Apps by number. A new app gets the number of one that is gone, with the pools that were opened for that one, if both
#: have the same cohorts: the channels of these pools go by the cohorts of the app for which they were opened.
_apps: "WeakValueDictionary[int, Celery]" = WeakValueDictionary()

#: Number -> the cohorts of the app that has it, or had it, as they were when it connected first. Not as a text, which
#: masks passwords.
_cohorts: dict[int, object] = {}
_lock = threading.Lock()


def that_made(connection: Connection) -> Celery:
    """Return the app that made *connection*; if none did, the first app, or the current one."""
    return _apps.get(connection.transport_options.get(_OPTION, 0)) or current()


def current() -> Celery:
    """Return Celery's current app; in a thread where no app was made or set, the only one that uses this transport.

    Celery's own answer there is its default app, which knows nothing.
    """
    current: Celery = _state.get_current_app()
    if _state._tls.current_app is None and not is_ours(current.conf.broker_transport):
        ours = [app for app in tuple(_state._get_active_apps()) if is_ours(app.conf.broker_transport)]
        if len(ours) == 1:
            return ours[0]
    return current


def _number_of(app: Celery) -> int:
    with _lock:
        number = next((number for number, each in _apps.items() if each is app), None)
        if number is None:
            cohorts = _as_they_are_now(app.conf.get(SETTING))
            number = next(each for each in count() if each not in _apps and _cohorts.get(each, cohorts) == cohorts)
            _apps[number], _cohorts[number] = app, cohorts
        return number


def _as_they_are_now(cohorts: object) -> object:
    """Return the cohorts of a setting, which the app may change in place later, or a wrong setting as it is."""
    if isinstance(cohorts, Mapping):
        with suppress(SettingError, AttributeError, TypeError):  # said by whoever publishes, or works
            return as_map(cohorts)
    return cohorts


def _number_the_first() -> None:
    """Number the app for whose connection this module is imported: the connection is half made, too late to mark."""
    app = next((call.values["self"] for call in under_way.calls() if call.function == "Celery._connection"), None)
    if app is not None:
        _number_of(app)


def _mark(app: Celery, connection: Connection) -> None:
    """Have a connection bear the number of its app: a channel knows its connection only."""
    if is_ours(connection.transport_cls) and (number := _number_of(app)):
        connection.transport_options[_OPTION] = number


_number_the_first()
apps.on_connection(_mark)
