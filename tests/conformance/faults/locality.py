"""Faults in what is known of hints, and in the bonus of locality."""

from .fault import Fault

_LOCALITY = "tests/server/test_locality.py"
_REPAIRED = f"{_LOCALITY}::test_near_lanes_and_holders_that_somebody_deleted_are_made_again"
_REPAIRED_ROW = f"{_LOCALITY}::test_hints_that_somebody_wrote_into_a_worker_s_row_are_made_again"
_DELETED_LANE = f"{_LOCALITY}::test_a_near_head_whose_lane_somebody_deleted_is_no_job"

FAULTS = (
    Fault("placing/near", '            redis.call("ZREM", key.holders(oldest), worker)\n', ""),
    Fault("placing/near", '"hints", near.words(hints))', '"hints", hint)'),
    Fault("placing/near", "    table.sort(hints)\n", ""),
    Fault("placing/near", "> protocol.MOST_HINTS then", "> protocol.MOST_HINTS + 1 then"),
    Fault("placing/near", 'is_new and "locality_misses" or', "is_new and"),
    Fault("placing/near", '        redis.call("ZREM", key.holders(hint), worker)\n', ""),
    Fault("placing/near", '    redis.call("UNLINK", key.hints(worker))\n', ""),
    Fault("placing/near", "most = most + math.floor(waiting.bonus * 1000000)", "most = most + 0"),
    Fault("placing/near", "math.floor(waiting.bonus * 1000000)", "math.floor(waiting.bonus) * 1000000"),
    Fault("placing/near", "        if not best then\n", "        if true then\n"),
    Fault("placing/near", "if not best or points > most or", "if not best or points < most or"),
    Fault("placing/near", "        leave(best.near.hint, best.id", "        tostring(best.id", _DELETED_LANE),
    Fault("placing/candidates", "        hooks.leaves_lane(job.id, type, job.lane, job.near)\n", ""),
    Fault("placing/fill", "waiting:pop(job, is_marked)", "waiting:pop(job, is_ruled)"),
    Fault("jobs/hooks", "        hooks.enters_lane(id, type, lane, enqueued)\n        lanes.add", "        lanes.add"),
    Fault("jobs/enter", "            hooks.enters_lane(id, type, lane, due)\n", ""),
    Fault("jobs/enter", "            hooks.enters_lane(alone.id, alone.type, alone.lane, alone.enqueued)\n", ""),
    Fault("placing/candidates", "if preferred and not kept_back then", "if preferred then"),
    Fault("placing/candidates", "waiting.hints and not goes_by_age then", "waiting.hints then"),
    Fault("placing/placement", 'values[3] ~= "share" and', ""),
    Fault("placing/placement", "(holders[worker] and weights.locality or 0)", "0"),
    Fault("placing/placement", "    add_holders(found, holders, profiles)\n", ""),
    Fault("keyed/key_steps", "    hooks.leaves_lane(id, type, lane)\n", ""),
    Fault("keyed/key_steps", "    hooks.enters_lane(wanted, type, lane, enqueued)\n", ""),
    Fault("arrows/purge", "            hooks.leaves_lane(id, type, lane)\n", ""),
    Fault("fleet/workers", "        hooks.worker_goes(worker)\n", ""),
    Fault("repair/repair_near", 'derived.one("zset", key.near_lane(hint, type, lane), id, time)', "false", _REPAIRED),
    Fault("repair/repair_near", "return fix_heads(hint, place) or differs", "return differs", _REPAIRED),
    Fault("repair/repair_near", "#words > 0 and near.words(words)", "#words > 0 and 1", _REPAIRED_ROW),
    Fault("repair/repair_near", "return found or hints[i + 1]", "return found", _REPAIRED),
)
