"""Faults in the bounds of queues."""

from .fault import Fault

_ONE_PUBLISH = "tests/server/test_bounds.py::test_calls_of_one_publish_that_fill_a_run_make_room_for_no_more"

FAULTS = (
    Fault("jobs/bounds", "keys[#keys + 1] = is_kept and key.kept_back(type, names[nth]) or nil", ""),
    Fault("jobs/bounds", "pending = pending + redis", "pending = redis"),
    Fault(
        "jobs/bounds",
        "opened[field] = { calls = found.calls + 1,",
        "opened[field] = { calls = found.calls,",
        _ONE_PUBLISH,
    ),
    Fault("jobs/bounds", "opened[field] = { calls = 1, bytes = #job.message }", "", _ONE_PUBLISH),
    Fault("jobs/bounds", "if fields.bad(job) or seen[job.id] or", "if fields.bad(job) or"),
    Fault(
        "jobs/bounds",
        "has_expired or find_by",
        "find_by",
        "tests/server/test_bounds.py::test_a_job_that_has_expired_when_it_is_published_takes_no_room",
    ),
    Fault("jobs/bounds", " or find_by.is_revoked(job.task_id) then", " then"),
    Fault("jobs/bounds", "if tonumber(job.delay_us) > 0 or", "if"),
    Fault("jobs/bounds", 'not joins(job, opened) and not merges("would_wait"', 'not merges("would_wait"'),
    Fault("jobs/bounds", "more[type] = (more[type] or 0) + 1", "more[type] = 1"),
    Fault("jobs/bounds", "more[type] > bound.most then", "more[type] >= bound.most then"),
    Fault("jobs/bounds", "bound.pending + count > bound.most)", "bound.pending + count > bound.most + 1)"),
    Fault("jobs/bounds", "protocol.MOST_DROPPED_FROM - 1,", "0,"),
    Fault("jobs/bounds", "marks.of(id) ~= protocol.BATCH and is_older", "is_older"),
    Fault("jobs/bounds", "bound.pending = bound.pending + 1", ""),
    Fault("jobs/bounds", "if bound.pending <= bound.most", "if bound.pending < bound.most"),
    Fault("jobs/bounds", "    bound.pending = bound.pending - 1\n", ""),
    Fault("jobs/bounds", "return dropped == job.id and protocol.HAS_ENDED or state", "return state"),
    Fault("arrows/publish", "is_first = is_first and state ~= protocol.HAS_ENDED", ""),
    Fault("arrows/announce", "how = is_dropped and protocol.DROPPED or how", ""),
)
