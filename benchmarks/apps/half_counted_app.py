"""The app of `celery_app`, for a worker whose releases count figures of types for every other turn of tasks."""

from contextlib import suppress
from functools import wraps

from redis.exceptions import ResponseError

from benchmarks.apps.celery_app import app as app
from benchmarks.systems import TASKS_A_TURN
from celery_affinity.lua.library import library
from celery_affinity.server import calls
from celery_affinity.server.running import Runner

_COUNTS = "function figures.count("
_COUNTS_NOTHING = """function figures.count()
    return 2
end

function figures.count_not("""

_ended = 0
_telling, _command, _load = calls.telling, Runner.command, Runner._load


def _without_figures(text):
    assert _COUNTS in text, "the function has moved"
    return text.replace(_COUNTS, _COUNTS_NOTHING)


_UNCOUNTED = library().changed(_without_figures)


@wraps(_telling)
def telling(worker, acks, ends, *others):
    """Return the calls; of the first turn, and of every other one after it, without figures."""
    global _ended
    counts = _ended // TASKS_A_TURN % 2
    _ended += len(ends)
    found = _telling(worker, acks, ends, *others)
    return found if counts else [(_Uncounted(*call), call[1]) for call in found]


class _Uncounted:
    """An arrow that is called in the library without figures."""

    def __init__(self, arrow, _):
        self.name = arrow.name


@wraps(_command)
def command(self, call):
    """Return the command of *call*."""
    if isinstance(call[0], _Uncounted):
        return _UNCOUNTED.by_function.command(call[0].name, self.keys.base, call[1])
    return _command(self, call)


@wraps(_load)
def load(self, name):
    """Load both libraries."""
    _load(self, name)
    with suppress(ResponseError):  # it is there
        self.client.execute_command(*_UNCOUNTED.by_function.loading(name))


calls.telling, Runner.command, Runner._load = telling, command, load
