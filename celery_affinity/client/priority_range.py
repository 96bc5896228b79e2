"""The publisher's warning about a priority outside of 0 to 10, which counts as the nearest one."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain

from celery import Celery

from ..errors import OptionError
from ..log_limit import limited_logger
from ..rules.affinity import as_affinity, whole_priority
from ..rules.protocol import MAX_PRIORITY
from .options import Options
from .options_in_app import options_in_annotations, options_in_beat_schedule, options_in_routes

logger = limited_logger(__name__)

#: Maximum number of warnings that are remembered: a program that makes up numbers must not fill its memory.
_MOST = 10_000

_warned: set[tuple[str, int]] = set()


def warn(app: Celery, task_name: str, headers: Mapping[str, object], given: int, counted: int) -> None:
    """Log that a call of a task with the priority *given* is published with *counted*, once for each place."""
    place = _place(app, task_name, headers, given)
    if (place, given) in _warned or len(_warned) >= _MOST:
        return
    _warned.add((place, given))
    logger.warning("%s: priority %d is outside of 0 to %d, and counts as %d", place, given, MAX_PRIORITY, counted)


def _place(app: Celery, task_name: str, headers: Mapping[str, object], given: int) -> str:
    """Return the place that has the priority *given*, in words: an entry of celery beat, a route, or else the call."""
    periodic = headers.get("periodic_task_name")  # django-celery-beat writes it
    if isinstance(periodic, str):
        return f"Periodic task {periodic[:200]!r}"
    configured = chain(
        options_in_beat_schedule(app.conf, task_name),
        options_in_routes(app.conf, task_name),
        options_in_annotations(app.conf, task_name),
    )
    return next(
        (where for where, options in configured if given in priorities_in(options)), f"Call of task {task_name}"
    )


def priorities_in(options: Options) -> Iterator[int]:
    """Yield the priorities that *options* name as they were given: Celery's own, and that of ``affinity=``."""
    with suppress(OptionError):  # of a value: `wrong_in_app` has it
        yield from (whole_priority(each) for each in (options.get("priority"),) if each is not None)
    with suppress(OptionError):
        yield from (each for each in (as_affinity(options.get("affinity")).priority,) if each is not None)
