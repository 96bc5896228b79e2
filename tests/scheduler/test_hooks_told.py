"""Which hook of a rule is called for a job that begins to wait: `enters` after a publish, otherwise `waits`."""

import pytest

from celery_affinity.lua import library
from celery_affinity.lua.library import assemble, library_of

#: A rule of merging calls whose hook counts its invocations.
COUNTING = """
function merge.waits(id)
    redis.call("HINCRBY", key.counters, "told", 1)
end
"""


@pytest.mark.parametrize("key", ["", " key=k limit=1"])
def test_waits_hook_runs_on_requeue_but_not_on_publish(fleet, key):
    def number_told():
        return int(fleet.scheduler.client.hget(fleet.scheduler.keys.key("counters"), "told") or 0)

    file = "merging/call_hooks"
    fleet.scheduler.way = library_of(assemble({file: library._files()[file] + COUNTING})).by_function
    job = f"job+{'!' if key else ''}"
    fleet.publish(job, "pdf", rules=f"merge=m most=3 bytes=2000{key}")
    assert number_told() == 0
    fleet.join("worker", "pdf")
    fleet.end("worker", *fleet.inbox("worker"), outcome="returned")
    assert number_told() == 1
