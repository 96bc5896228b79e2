"""The methods of Celery's apps that are wrapped: what each app makes to publish, a sender and its connections.

Celery has no hook that each app passes: an app may be made before this import or long after it, and publishes without
ever being finalized.
"""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import Celery, _state
from celery.app.amqp import AMQP

from ..of_app import is_ours

#: A function that sends a message: ``send_task_message`` of one app.
Sender = Callable[..., object]

#: The scheme of a cluster's URL.
_CLUSTER = re.compile(r"\b(redis|valkey)(s?)\+cluster://")


def on_send(wrap: Callable[[Celery, Sender], Sender]) -> None:
    """Replace each app's ``send_task_message``, now or when the app first publishes, by what *wrap* returns for it."""
    create: Callable[[AMQP], Sender] = AMQP._create_task_sender

    @wraps(create)
    def _create_task_sender(amqp: AMQP) -> Sender:
        return wrap(amqp.app, create(amqp))

    AMQP._create_task_sender = _create_task_sender
    for app in tuple(_state._get_active_apps()):
        amqp = vars(app).get("amqp")  # ``app.amqp`` would make one, and read the app's configuration
        if amqp is not None and "send_task_message" in vars(amqp):
            amqp.send_task_message = wrap(app, amqp.send_task_message)


def on_connection(mark: Callable[[Celery, Any], None]) -> None:
    """Have *mark* called with each app and each connection that the app makes from now on."""
    connect: Callable[..., Any] = Celery._connection

    @wraps(connect)
    def _connection(app: Celery, url: Any, *args: Any, **kwargs: Any) -> Any:
        if "+cluster://" in str(url) and is_ours(kwargs.get("transport") or app.conf.broker_transport):
            url = _without_plus(url)
        connection = connect(app, url, *args, **kwargs)
        mark(app, connection)
        return connection

    Celery._connection = _connection


def _without_plus(url: Any) -> Any:
    """Return *url*, or a list of URLs, spelt so that kombu leaves it to our transport.

    Of ``redis+cluster://``, kombu would take ``redis`` for the transport, whatever transport the app names.
    """
    if isinstance(url, str):
        return _CLUSTER.sub(r"redis\2-cluster://", url)
    return [_without_plus(each) for each in url]
