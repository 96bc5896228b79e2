"""The queues in which stock Celery's producers of an app put messages."""

from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery
from kombu import Queue
from kombu.transport.redis import Channel

from ..errors import AffinityError
from ..rules.affinity import affinity_of
from ..rules.settings import Settings
from ..rules.stock_lists import StockLists
from .of_app import settings_of, tasks_of
from .options_in_app import options_in_routes

#: The queue of an app that names none.
_DEFAULT = "celery"


def stock_lists_of(app: Celery) -> StockLists:
    """Return the lists of the queues that settings and tasks of *app* name, and of Celery's default queue.

    A producer without the transport's setting ignores ``affinity=``: such calls go to the default queue.
    """
    options: Mapping[str, Any] = app.conf.broker_transport_options or {}
    try:
        settings = settings_of(app)
    except AffinityError:  # workers refuse to start, and `check` says why
        settings = Settings()
    declared = [each for each in app.conf.task_queues or () if isinstance(each, Queue)]
    exchanges = [app.conf.task_default_exchange, *(each.exchange.name for each in declared if each.exchange)]
    return StockLists(
        queues=_names(_queues(app, settings, declared)),
        exchanges=_names([*exchanges, app.conf.task_default_queue, _DEFAULT]),
        steps=tuple(options.get("priority_steps") or Channel.priority_steps),
        sep=options.get("sep") or Channel.sep,
        schedules=settings.schedules,
        ingests=settings.ingest,
    )


def _queues(app: Celery, settings: Settings, declared: list[Queue]) -> Iterator[object]:
    yield from (_DEFAULT, app.conf.task_default_queue)
    yield from (each.name for each in declared)
    for _, options in options_in_routes(app.conf):
        queue = options.get("queue")
        yield getattr(queue, "name", queue)
    yield from settings.task_types.values()
    for task in tasks_of(app).values():
        yield getattr(task, "queue", None)
        try:
            yield affinity_of(task).type
        except AffinityError:
            continue


def _names(found: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in found if isinstance(each, str) and each))
