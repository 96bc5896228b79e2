"""Which workers can end a task that runs: not those whose pool runs tasks in threads, or in the worker itself."""

from collections.abc import Iterable

from celery import Celery
from kombu import Connection

#: Pools without a way to end a task, by the names that workers give them.
_CANNOT = {"celery.concurrency.thread:TaskPool": "threads", "celery.concurrency.solo:TaskPool": "solo"}

#: Time, s, for which workers are waited for. One whose pool is solo does not answer while a task runs.
_ANSWER_S = 1.0


def ability(app: Celery, workers: Iterable[str | None], connection: Connection | None = None) -> dict[str, str | None]:
    """Return, for each of *workers* (node names) that answers, its pool if that cannot end a task; else None."""
    names = sorted({name for name in workers if name})
    if not names:
        return {}
    inspect = app.control.inspect(destination=names, timeout=_ANSWER_S, connection=connection)
    found: dict[str, str | None] = {}
    for name, stats in (inspect.stats() or {}).items():
        pool = stats.get("pool") if isinstance(stats, dict) else None
        implementation = pool.get("implementation") if isinstance(pool, dict) else None
        if isinstance(implementation, str):
            found[name] = _CANNOT.get(implementation)
    return found
