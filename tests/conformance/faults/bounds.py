"""Faults in the bounds of queues."""

from .fault import Fault

_TESTS = "tests/server/test_bounds.py::"
_ONE_PUBLISH = _TESTS + "test_calls_of_one_publish_that_fill_a_run_make_room_for_no_more"
_NO_ROOM = _TESTS + "test_a_job_that_does_not_wait_when_it_is_published_takes_no_room"
_ALL_LANES = _TESTS + "test_jobs_that_wait_in_all_lanes_count"
_TOGETHER = _TESTS + "test_jobs_of_one_publish_are_counted_together"
_AFTER_A_RUN = _TESTS + "test_a_run_of_several_calls_is_not_dropped_but_the_oldest_job_after_it"
_EACH = _TESTS + "test_each_one_too_many_of_one_publish_is_dropped"
_ITS_PLACE = "tests/server/test_bounds.py::test_a_job_that_takes_the_place_of_the_only_one_that_waited_starts_at_once"

FAULTS = (
    # What waits counts.
    Fault(
        "jobs/bounds",
        "keys[#keys + 1] = is_kept and key.kept_back(type, names[nth]) or nil",
        "",
        _TESTS + "test_jobs_that_a_key_keeps_back_count",
    ),
    Fault("jobs/bounds", "pending = pending + redis", "pending = redis", _ALL_LANES),
    # What a publish brings.
    Fault(
        "merging/merging",
        "opened[field] = { calls = found.calls + 1,",
        "opened[field] = { calls = found.calls,",
        _ONE_PUBLISH,
    ),
    Fault("merging/merging", "opened[field] = { calls = 1, bytes = #job.message }", "", _ONE_PUBLISH),
    Fault(
        "jobs/bounds",
        "if job_check.bad(job) or seen[job.id] or",
        "if job_check.bad(job) or",
        _TESTS + "test_a_job_that_one_publish_has_twice_takes_room_once",
    ),
    Fault("jobs/bounds", "has_expired or find_by", "find_by", _NO_ROOM),
    Fault("jobs/bounds", " or find_by.is_revoked(job.task_id) then", " then", _NO_ROOM),
    Fault("jobs/bounds", "if tonumber(job.delay_us) > 0 or", "if", _NO_ROOM),
    Fault(
        "merging/call_hooks",
        "merging.will_join(job, opened)\n        or patience",
        "patience",
        _ONE_PUBLISH,
    ),
    Fault(
        "merging/call_hooks",
        "        or patience.of_first(lanes.name(job.mode, job.priority), enqueued, job.rules, #job.message)\n",
        "",
        _TESTS + "test_calls_that_wait_for_others_take_no_room",
    ),
    Fault("jobs/bounds", "more[type] = (more[type] or 0) + 1", "more[type] = 1", _TOGETHER),
    Fault("jobs/bounds", "more[type] > bound.most then", "more[type] >= bound.most then", _NO_ROOM),
    Fault("jobs/bounds", "bound.pending + count > bound.most)", "bound.pending + count > bound.most + 1)", _ALL_LANES),
    # What is dropped.
    Fault("jobs/bounds", "protocol.MOST_DROPPED_FROM - 1,", "0,", _AFTER_A_RUN),
    Fault("jobs/bounds", "is_older and not hooks.of(id).STANDS_FOR_CALLS", "is_older", _AFTER_A_RUN),
    Fault(
        "jobs/bounds",
        "score.is_older(enqueued_us, id, oldest_us, oldest)",
        "score.is_older(oldest_us, oldest, enqueued_us, id)",
        _AFTER_A_RUN,
    ),
    Fault("jobs/bounds", "bound.pending = bound.pending + 1 --", "--", _EACH),
    Fault(
        "jobs/bounds",
        "if bound.pending <= bound.most",
        "if bound.pending < bound.most",
        _EACH,
    ),
    Fault("jobs/bounds", "return protocol.HAS_ENDED, false", "return state, false"),
    Fault("jobs/bounds", "return state, true", "return state, false", _ITS_PLACE),
    Fault(
        "arrows/announce",
        "        return protocol.DROPPED\n",
        "        return state\n",
        _TESTS + "test_whoever_tells_the_caller_learns_that_the_job_was_dropped",
    ),
)
