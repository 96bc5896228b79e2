"""The type that an app declares for a task: that of a call which says nothing of its place."""

from typing import Any

from celery import Celery

from ..rules.affinity import affinity_of, as_affinity
from .of_app import settings_of, type_by_name


def declared_type(app: Celery, name: str, task: Any) -> str | None:
    """Return the type of a call without options. Whatever may name the type is asked in the order of publishing.

    Raises OptionError for an ``affinity`` that is not accepted.
    """
    given = {name: value for name, value in task._get_exec_options().items() if value is not None}
    try:
        options = app.amqp.router.route(given, name, (), {}, task)
    except Exception:  # a router of the user's may look at arguments, or want a queue that is not declared
        options = {}
    affinities = [as_affinity(options.get("affinity")), affinity_of(task)]
    queue = options.get("queue")
    of_queue = queue if isinstance(queue, str) else getattr(queue, "name", None)
    types = [*(each.type for each in affinities), type_by_name(name, settings_of(app)), of_queue]
    return next((type_ for type_ in types if type_), None)
