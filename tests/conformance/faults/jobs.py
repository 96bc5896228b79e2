"""Faults in the life of jobs: entry, claim, return, end and search."""

from .fault import Fault

_ENDED = "tests/server/test_ended.py::"
_TOO_MANY = _ENDED + "test_of_too_many_the_oldest_go"
_IN_PARTS = _ENDED + "test_very_many_too_many_go_in_parts"
_DROPPED = "tests/server/test_revoked_tasks.py::test_a_task_stays_revoked_whose_dead_letter_is_dropped"
_REFUSED = "tests/server/test_job_fields.py::test_client_and_script_refuse_the_same_and_of_that_nothing_is_written"
_HOLDS = "tests/server/test_part.py::test_what_goes_waits_for_the_key_that_the_run_holds"
_REVOKED = "tests/server/test_revoked_tasks.py::test_a_task_stays_revoked_"
_HALF_WAY = "tests/server/test_revoked_tasks.py::test_a_publish_that_failed_half_way_finds_its_own_job_when_repeated"
_KEPT_NO_MORE = "tests/server/test_keyed.py::test_a_key_is_kept_no_more_for_a_retry_that_is_revoked_before_its_time"

_PAUSES = "tests/server/test_requeue_pauses.py::test_"
_EACH_PAUSE = _PAUSES + "each_pause_is_twice_as_long_as_the_last_one_up_to_the_setting"
_YOUNGER_FIRST = _PAUSES + "a_requeued_job_lets_younger_jobs_go_first_and_keeps_its_enqueue_time"
_KEEPS_PLACE = _PAUSES + "a_job_whose_worker_died_after_a_pause_keeps_the_place_that_the_pause_gave"
_MOVED = _PAUSES + "a_job_that_moves_after_a_pause_keeps_the_place_that_the_pause_gave"
_PARTS = _PAUSES + "calls_that_leave_a_run_after_a_pause_wait_by_the_end_of_that_pause"
_NOTHING_AMISS = _PAUSES + "a_repair_finds_nothing_amiss_in_jobs_that_wait_after_a_pause"
_PUT_OFF = "tests/server/test_recurring.py::test_a_call_that_ends_in_its_pause_has_put_nothing_off_since_it_came"
_WAITS_BY_THE_END = _PAUSES + "a_job_that_was_paused_waits_by_the_end_of_its_pause"
_TOO_MANY_REQUEUES = _PAUSES + "a_requeue_too_many_makes_a_dead_letter_that_names_the_setting"
_NO_CALL_JOINS = _PAUSES + "no_call_joins_a_batch_or_a_call_after_a_requeue"
_KEPT = _PAUSES + "a_key_with_keep_order_is_kept_for_a_paused_job_until_its_pause_ends"
_DAMAGED_COUNTS = _PAUSES + "damaged_counts_of_requeues_count_as_none"
_DAMAGED_RANK = _PAUSES + "a_claim_with_a_damaged_rank_is_as_old_as_its_job"
_REPAIRED = _PAUSES + "a_repair_gives_a_paused_job_the_end_of_its_pause_back"

FAULTS = (
    # What the end of an id says, and the text of rules.
    Fault("jobs/marks", "return OF_KEYS[string.sub(id, -1)] == true\n", "return false\n", _HOLDS),
    Fault("jobs/marks", "OF_KEYS[last] and string.sub(id, -2, -2) or last", "last", _HOLDS),
    Fault("jobs/marks", ".. protocol.BATCH .. mark", ".. protocol.BATCH", _HOLDS),
    Fault("jobs/job_check", 'most ~= "1"', "true", _REFUSED),
    Fault("jobs/job_check", 'string.find(a_period_us, "^[1-9]")', "true", _REFUSED),
    Fault("jobs/job_check", "not its_key or #its_key > protocol.LONGEST_KEY", "not its_key", _REFUSED),
    Fault("jobs/enter", 'redis.call("EXISTS", its) == 1 and', 'redis.call("EXISTS", key.message(id)) == 1 and'),
    Fault("jobs/enter", "delay_us > 0 and enqueued_us + delay_us or enqueued_us", "enqueued_us + delay_us"),
    Fault("jobs/enter", "fitting = fitting + free_slots.free_for(type)", "fitting = free_slots.free_for(type)"),
    Fault("jobs/enter", "1, not heads or", "1, true or"),
    Fault("jobs/enter", "local bad = job_check.bad(job)", "local bad"),
    Fault("jobs/enter", "is_first or alone or next(call.to_fill) then", "is_first or alone then"),
    Fault("jobs/enter", "is_first or alone or next(call.to_fill) then", "is_first or next(call.to_fill) then"),
    Fault("placing/lanes", "#its == #enqueued and its < enqueued", "#its == #enqueued"),
    Fault("jobs/enter", "if delay_us > 0 then", "if delay_us > 1 then"),
    Fault(
        "jobs/enter", "elseif heads or has_type_rules or not is_only then", "elseif has_type_rules or not is_only then"
    ),
    Fault("jobs/enter", "elseif heads or has_type_rules or not is_only then", "elseif heads or has_type_rules then"),
    Fault("jobs/enter", "    if alone then\n", "    if false then\n"),
    Fault("jobs/enter", "tonumber(expires_us) <= 0", "tonumber(expires_us) < 0"),
    Fault("jobs/enter", "is_revoked = find_by.is_revoked(job.task_id)", "is_revoked = false"),
    Fault("jobs/enter", 'is_revoked and "revoked" or "expired"', 'is_expired and "expired" or "revoked"'),
    Fault("jobs/enter", "find_by.add(id, job.task_id, job.stamps,", 'find_by.add(id, job.task_id, "",'),
    Fault("jobs/enter", "workers.tick_in_time(delay_us,", "workers.tick_in_time(0,"),
    Fault("fleet/workers", "[1] == member then", "[1] then"),
    Fault("jobs/ends", "string.sub(why, 1, protocol.MOST_WHY_BYTES)", "why"),
    Fault("jobs/ends", 'expired = "expired"', 'expired = "done"'),
    Fault("jobs/ends", 'if why ~= "" then', "if false then"),
    Fault("jobs/ends", 'redis.call("HEXISTS", key.capacity, type) == 1', "true"),
    Fault("jobs/enter", "(number or 0) + 1", "1"),
    Fault("jobs/enter", '"published", "1") > 1', '"published", "1") > 0'),
    Fault("jobs/enter", 'if not number and redis.call("HEXISTS", key.capacity, type) == 0 then', "if false then"),
    Fault("jobs/enter", 'redis.call("HDEL", key.metrics(type), "published")', ""),
    Fault("fleet/workers", "workers.note_served(type, true)", ""),
    Fault("fleet/workers", "workers.note_served(type, false)", ""),
    Fault("fleet/workers", 'redis.call("HDEL", its, from)', ""),
    Fault("jobs/enter", '"published", "1")', '"published", "2")'),
    Fault("jobs/come_back", 'if why and why ~= "" then', "if why then"),
    Fault("jobs/come_back", 'ends.count(reason ~= "failed" and type, reason)', "ends.count(type, reason)"),
    Fault("jobs/come_back", '"max_deliveries", settings, why)', '"max_deliveries", settings)'),
    Fault(
        "jobs/come_back",
        "if dead_reasons.ARE_ANNOUNCED[reason] and",
        'if reason ~= "unreadable" and reason ~= "failed" and',
    ),
    Fault("jobs/come_back", 'if redis.call("ZSCORE", key.untold, id) then', "if false then"),
    Fault("jobs/come_back", 'deliveries", 1) >= settings.max_deliveries', 'deliveries", 1) > settings.max_deliveries'),
    Fault("jobs/come_back", 'if acked == "1" and ended ~= "revoked" then', "if false then"),
    Fault("jobs/come_back", 'acked == "1" and ended ~= "revoked"', 'acked == "1"'),
    Fault("jobs/come_back", 'acked == "1" and ended ~= "revoked"', 'acked == "1" and not ended'),
    # A job that was requeued, or whose run was aborted, has a pause.
    Fault("jobs/come_back", "math.min(number - 2, MOST_DOUBLED)", "math.min(number - 1, MOST_DOUBLED)", _EACH_PAUSE),
    Fault("jobs/come_back", "MOST_DOUBLED), settings.requeue_delay_max_us)", "MOST_DOUBLED), 1e12)", _EACH_PAUSE),
    Fault("jobs/come_back", "if number == 1 then", "if false then", _YOUNGER_FIRST),
    Fault("jobs/come_back", 'if how == "aborted" or how == "requeued" then', 'if how == "requeued" then', _EACH_PAUSE),
    Fault("jobs/come_back", "return number <= settings.max_requeues", "return true", _TOO_MANY_REQUEUES),
    Fault("jobs/come_back", "return number <= settings.max_requeues", "return number < settings.max_requeues"),
    Fault("jobs/come_back", '"max_requeues", settings, why)', '"max_requeues", settings)', _TOO_MANY_REQUEUES),
    Fault("jobs/come_back", "local since = lanes.order(enqueued, rank)", "local since = enqueued", _KEEPS_PLACE),
    Fault("jobs/come_back", "workers.tick_in_time(pause_us, key.scheduled, id)", ""),
    Fault("jobs/come_back", '    redis.call("HSET", key.job(id), "pauses", number)\n', "", _EACH_PAUSE),
    Fault("jobs/hooks", "hooks.of(id).is_paused(id)", "", _NO_CALL_JOINS),
    Fault("keyed/keyed", "if its and not its.retry and key_turns.is_open(type) then", "if false then", _KEPT),
    Fault("placing/lanes", '^%d+$") and rank or enqueued', '^%d+$") and enqueued or enqueued', _KEEPS_PLACE),
    Fault("placing/lanes", 'string.find(rank, "^%d+$") and rank', "rank", _DAMAGED_RANK),
    Fault("placing/fill", "enqueued or job.enqueued", "job.enqueued", _YOUNGER_FIRST),
    Fault("arrows/tick", "patient or rank or not hooks", "patient or not hooks"),
    Fault("arrows/tick", "lane, lanes.order(enqueued, rank))", "lane, enqueued)", _WAITS_BY_THE_END),
    Fault("arrows/move", "lanes.order(enqueued, rank)", "enqueued", _MOVED),
    Fault("arrows/replay", '"requeues", "pauses", "rank")', '"requeues")', _TOO_MANY_REQUEUES),
    Fault("repair/repair_keyed", "lanes.order(enqueued, rank)", "enqueued", _NOTHING_AMISS),
    Fault("repair/repair_single_keys", '"patient", "rank", "enqueued"', '"patient", "enqueued"', _REPAIRED),
    Fault("merging/call_hooks", "(patient or rank)", "patient", _PUT_OFF),
    Fault("merging/call_hooks", "or patient or rank then", "or patient then", _PUT_OFF),
    Fault("arrows/part", '"rank", rank, "claimed", "")', '"rank", rank)', _PARTS),
    Fault("jobs/claims", "    if requeues then\n", "    if false then\n", _YOUNGER_FIRST),
    Fault("base/texts", "value and #value <= 9 and", "value and", _DAMAGED_COUNTS),
    Fault("jobs/come_back", "if over > 0 then", "if over > 1 then"),
    Fault("jobs/come_back", 'redis.call("ZRANGE", key.dead', 'redis.call("ZREVRANGE", key.dead'),
    Fault("jobs/come_back", '"fence", "by", "started")', '"by", "started")'),
    Fault(
        "fleet/dead_workers",
        'until cursor == "0" or #ids > most',
        "until #ids >= 0",
        # Up to some hundred claims are one page of HSCAN.
        found_by="tests/server/test_costs.py::test_a_worker_of_very_many_claims_goes_in_parts",
    ),
    Fault("jobs/come_back", "math.min(over, protocol.MOST_MOVES) - 1", "math.min(over, 1) - 1"),
    Fault("jobs/ends", "math.huge) <= call.now_us", "math.huge) < call.now_us"),
    Fault(
        "jobs/ends",
        "hooks.leave(id, type, lane)\n    elseif",
        'redis.call("ZREM", key.lane(type, lane), id)\n    elseif',
    ),
    Fault("jobs/ends", "hooks.leave(id, type, lane) -- its key may be kept for it", "", _KEPT_NO_MORE),
    Fault("jobs/ends", "find_by.fade(id, stamps, expires)", ""),
    Fault("jobs/ends", 'and "revoked" or nil', "and nil or nil"),
    Fault("jobs/ends", '    redis.call("UNLINK", key.message(id))\n    local keep_us', "    local keep_us"),
    Fault("jobs/ends", "its, keep_s or ENDED_KEPT_S", "its, 20"),
    Fault(
        "jobs/ends",
        '"-inf", since',
        '"-inf", "(" .. since',
        _ENDED + "test_a_job_is_listed_no_more_from_the_moment_at_which_it_is_forgotten",
    ),
    Fault("jobs/ends", "if #gone < over then", "if false then", _TOO_MANY),
    Fault("jobs/ends", "over - 1)", "over)", _TOO_MANY),
    Fault("jobs/ends", "            find_by.remove(id, protocol.ENDED_KEPT_S)\n", "", _TOO_MANY),
    Fault("jobs/ends", '            redis.call("EXPIRE", key.job(id), protocol.ENDED_KEPT_S)\n', "", _TOO_MANY),
    Fault("jobs/ends", 'redis.call("ZREM", key.ended, unpack(gone))', "", _TOO_MANY),
    Fault(
        "jobs/ends",
        "math.min(number - settings.keep_max, protocol.MOST_TRIMMED)",
        "number - settings.keep_max",
        _IN_PARTS,
    ),
    Fault("jobs/ends", "return #gone == protocol.MOST_TRIMMED", "return false", _IN_PARTS),
    Fault(
        "jobs/spoiled",
        '    redis.call("LTRIM", key.spoiled, 0, protocol.MOST_SPOILED - 1)\n',
        "",
        "tests/server/test_spoiled.py::test_of_very_many_finds_some_are_told",
    ),
    Fault("jobs/claims", "key.claims(worker), id) == fence", "key.claims(worker), id)"),
    Fault("jobs/claims", "new_fields < 3", "false"),
    Fault("jobs/claims", "view:occupy(worker, type) --", "--"),
    Fault("jobs/claims", "math.huge) <= call.now_us", "math.huge) < call.now_us"),
    Fault("jobs/claims", 'redis.call("HDEL", key.job(id), "worker", "fence", "by")', ""),
    Fault("jobs/claims", '        facts = facts .. " " .. expires\n', ""),
    Fault(
        "jobs/claims",
        '"expires", "moved", "lane", "preemptions", "requ',
        '"tries", "moved", "lane", "preemptions", "requ',
    ),
    Fault("jobs/claims", "own_fence == fence --", "true --"),
    Fault(
        "jobs/claims",
        "local is_own = not own_fence or",
        "local is_own =",
        # Random steps delete no rows.
        found_by="tests/server/test_arrows.py::test_a_claim_whose_job_the_server_has_lost_ends_and_its_slot_is_free",
    ),
    Fault("jobs/find_by", "at and (tonumber(at) or 0) >= (tonumber(enqueued) or 0)", "at"),
    Fault("jobs/find_by", 'if task ~= "" and redis.call("EXISTS", key.revoked(task)) == 1 then', "if false then"),
    Fault("jobs/find_by", 'expires, "claimed", "")', "expires)"),
    Fault("jobs/find_by", "~= -1 then -- the job there has ended", "== 0 then"),
    Fault("jobs/find_by", "last + 1", "last"),
    Fault("jobs/find_by", "if #left == 1 then", "if false then"),
    Fault("jobs/find_by", "#ids == most, last", "false, last"),
    Fault("jobs/find_by", 'id, "NX") then', "id) then"),
    Fault("jobs/find_by", "elseif keep_s ~= 0 and not left then", "elseif not left then", _DROPPED),
    Fault("jobs/find_by", 'say_more(redis.call("GET", key.task(task)))', ""),
    Fault("jobs/find_by", 'protocol.NONE, "NX", "EX", keep_s) then', 'protocol.NONE, "EX", keep_s) then'),
    Fault("jobs/find_by", "return { id ~= protocol.NONE and id or nil }", "return { id or nil }"),
    Fault(
        "jobs/find_by",
        'redis.call("EXPIRE", key.task(task), keep_s, "GT")',
        "",
        _REVOKED + "whose_job_has_ended_while_it_is_revoked",
    ),
    Fault(
        "jobs/find_by",
        "and math.max(keep_s, revoked_s)",
        "and keep_s",
        _REVOKED + "whose_job_has_ended_while_it_is_revoked",
    ),
    Fault("jobs/find_by", "elseif revoked_s > 0 then", "elseif false then", _REVOKED + "whose_dead_letter_is_dropped"),
    Fault("jobs/find_by", "if other == id then", "if false then", _HALF_WAY),
    Fault("jobs/enter", "and is_known(id, its) then\n", "and false then\n"),
    Fault(
        "jobs/enter",
        "and is_known(id, its) then\n",
        'and is_known(id, its) and redis.call("EXISTS", key.task(job.task_id)) == 1 then\n',
    ),
    Fault("jobs/enter", 'return not place or redis.call("ZSCORE", place, id)', "return true", _HALF_WAY),
    Fault("jobs/job_check", 'priority ~= "10" and not', "not"),
    Fault("jobs/job_check", 'expires_us ~= "" and', ""),
    Fault("jobs/job_check", "#id > protocol.LONGEST_ID or", ""),
)
