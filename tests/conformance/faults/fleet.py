"""Faults in the liveness of workers, and in the jobs that workers hold beyond their slots."""

from .fault import Fault

FAULTS = (
    Fault("fleet/workers", "rank < protocol.TICKERS", "rank <= protocol.TICKERS"),
    Fault("fleet/workers", "ticked > protocol.TICKED_LATELY_US", "ticked >= protocol.TICKED_LATELY_US"),
    Fault("fleet/lookahead", "free_slots.left(worker, row) + most or", "most or"),
    Fault("fleet/lookahead", "    view.left = view.left - 1\n", ""),
    Fault("fleet/lookahead", "free_slots.takes_jobs(row)", "true"),
    Fault("fleet/lookahead", "if holder ~= worker and", "if"),
    Fault("fleet/lookahead", '            redis.call("HDEL", key.ahead, types[i])\n', ""),
    Fault("fleet/lookahead", "if free == 0 or #types == 0 or", "if #types == 0 or"),
    Fault("fleet/lookahead", "free_slots.left(worker, row) < 0", "free_slots.left(worker, row) <= 0"),
    Fault("fleet/lookahead", 'if redis.call("HEXISTS", key.capacity, type) == 1 then', "if true then"),
    Fault("fleet/workers", 'accepting == "1" and not stalled then', 'accepting == "1" then'),
    Fault("fleet/workers", 'redis.call("HDEL", key.ahead, type)', ""),
    Fault("fleet/workers", '"types", table.concat(types, " ")', '"types", types[1] or ""'),
    Fault("fleet/workers", "#types, profile)", "1, profile)"),
    Fault("fleet/workers", "now_slots - was", "was - now_slots"),
    Fault("fleet/workers", 'redis.call("HDEL", key.free_slots, profile)', ""),
    Fault("fleet/workers", 'redis.call("HDEL", key.durations, type)', ""),
    Fault("fleet/workers", 'if name and redis.call("HGET", key.names, name) == worker then', "if true then"),
    Fault("fleet/dead_workers", "if recovered == max then", "if recovered > max then"),
    Fault(
        "fleet/dead_workers", "come_back.put(worker, id, true, settings)", "come_back.put(worker, id, false, settings)"
    ),
    Fault("fleet/dead_workers", 'redis.call("ZADD", key.beats, protocol.GIVEN_UP_US, worker)', ""),
)
