"""The app of `celery_app`, for a worker whose scripts count figures of types for every other turn of tasks."""

from functools import wraps

from benchmarks.apps.celery_app import app as app
from benchmarks.systems import TASKS_A_TURN
from celery_affinity.server import calls
from celery_affinity.server.scripts import assembling

_PART = "jobs/figures.lua"

_COUNTS_NOTHING = """
local figures = {}

-- RETURNS 2: the time is not the first one of its kind and size.
function figures.count()
    return 2
end
"""

_ended = 0
_telling = calls.telling


def _uncounted(name):
    """Return the script of an arrow, without that part."""
    generated = assembling._GENERATED
    counting = assembling.load(name)
    _read_anew({**generated, _PART: lambda: _COUNTS_NOTHING})
    found = assembling.load(name)
    _read_anew(generated)
    assert found.source != counting.source, "the part has moved"
    return found


def _read_anew(generated):
    assembling._GENERATED = generated
    assembling._read.cache_clear()
    assembling.load.cache_clear()


_UNCOUNTED = {"release": _uncounted("release")}


@wraps(_telling)
def telling(worker, acks, ends, *others):
    """Return the calls; of the first turn, and of every other one after it, without figures."""
    global _ended
    counts = _ended // TASKS_A_TURN % 2
    _ended += len(ends)
    found = _telling(worker, acks, ends, *others)
    return found if counts else [(_UNCOUNTED.get(script.name, script), arguments) for script, arguments in found]


calls.telling = telling
