"""The app of `celery_app`, for a worker whose scripts count no figures of types: what they cost is the difference."""

from benchmarks.apps.celery_app import app as app
from celery_affinity.server.scripts import assembling

_PART = "jobs/figures.lua"

_COUNTS_NOTHING = """
local figures = {}

-- RETURNS 2: the time is not the first one of its kind and size.
function figures.count()
    return 2
end
"""

# Scripts are assembled when they are called first, which is after this.
assembling._GENERATED[_PART] = lambda: _COUNTS_NOTHING
