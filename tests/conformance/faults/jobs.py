"""Faults in the life of jobs: entry, claim, return, end and search."""

from .fault import Fault

_ENDED = "tests/server/test_ended.py::"
_TOO_MANY = _ENDED + "test_of_too_many_the_oldest_go"
_IN_PARTS = _ENDED + "test_very_many_too_many_go_in_parts"
_REFUSED = "tests/server/test_job_fields.py::test_client_and_script_refuse_the_same_and_of_that_nothing_is_written"
_HOLDS = "tests/server/test_part.py::test_what_goes_waits_for_the_key_that_the_run_holds"
_REVOKED = "tests/server/test_revoked_tasks.py::test_a_task_stays_revoked_"
_ENDED_AGAIN = "tests/server/test_revoked_tasks.py::test_an_ended_job_is_known_whatever_is_left_of_its_task"
_HALF_WAY = "tests/server/test_revoked_tasks.py::test_a_publish_that_failed_half_way_finds_its_own_job_when_repeated"
_KEPT_NO_MORE = "tests/server/test_keyed.py::test_a_key_is_kept_no_more_for_a_retry_that_is_revoked_before_its_time"

FAULTS = (
    # What the end of an id says, and the text of rules.
    Fault("jobs/marks", "return OF_KEYS[string.sub(id, -1)] == true\n", "return false\n", _HOLDS),
    Fault("jobs/marks", "OF_KEYS[last] and string.sub(id, -2, -2) or last", "last", _HOLDS),
    Fault("jobs/marks", ".. protocol.BATCH .. mark", ".. protocol.BATCH", _HOLDS),
    Fault("jobs/job_check", 'most ~= "1"', "true", _REFUSED),
    Fault("jobs/job_check", 'string.find(a_period_us, "^[1-9]")', "true", _REFUSED),
    Fault("jobs/job_check", "not its_key or #its_key > protocol.LONGEST_KEY", "not its_key", _REFUSED),
    Fault("jobs/enter", 'redis.call("EXISTS", key.job(id)) == 0', 'redis.call("EXISTS", key.message(id)) == 0'),
    Fault("jobs/enter", "delay_us > 0 and enqueued_us + delay_us or enqueued_us", "enqueued_us + delay_us"),
    Fault("jobs/enter", "fitting = fitting + free_slots.free_for(type)", "fitting = free_slots.free_for(type)"),
    Fault("jobs/enter", "1, not heads or", "1, true or"),
    Fault("jobs/enter", "local bad = job_check.bad(job)", "local bad"),
    Fault("jobs/enter", "is_first or alone or next(call.gained) then", "is_first or alone then"),
    Fault("jobs/enter", "is_first or alone or next(call.gained) then", "is_first or next(call.gained) then"),
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
    Fault("jobs/enter", "(call.published[type] or 0) + 1", "1"),
    Fault("jobs/enter", '"published", "1")', '"published", "2")'),
    Fault("jobs/come_back", 'if why and why ~= "" then', "if why then"),
    Fault("jobs/come_back", 'ends.count(reason ~= "failed" and type, reason)', "ends.count(type, reason)"),
    Fault("jobs/come_back", '"max_deliveries", settings, why)', '"max_deliveries", settings)'),
    Fault(
        "jobs/come_back",
        "if dead_reasons.ARE_ANNOUNCED[reason] then",
        'if reason ~= "unreadable" and reason ~= "failed" then',
    ),
    Fault("jobs/come_back", 'if redis.call("ZSCORE", key.untold, id) then', "if false then"),
    Fault("jobs/come_back", 'deliveries", 1) >= settings.max_deliveries', 'deliveries", 1) > settings.max_deliveries'),
    Fault("jobs/come_back", 'if acked == "1" and ended ~= "revoked" then', "if false then"),
    Fault("jobs/come_back", 'acked == "1" and ended ~= "revoked"', 'acked == "1"'),
    Fault("jobs/come_back", 'acked == "1" and ended ~= "revoked"', 'acked == "1" and not ended'),
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
    Fault("jobs/ends", '    redis.call("UNLINK", key.message(id))\n    ends.remember', "    ends.remember"),
    Fault("jobs/ends", "key.job(id), seconds", "key.job(id), 20"),
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
    Fault("jobs/claims", '"expires", "moved", "lane", "preemptions"))', '"tries", "moved", "lane", "preemptions"))'),
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
    Fault("jobs/find_by", "elseif keep_s ~= 0 and not left then", "elseif not left then"),
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
    Fault("jobs/enter", "    if is_known(id) then\n        return", "    if false then\n        return", _ENDED_AGAIN),
    Fault("jobs/job_check", 'priority ~= "10" and not', "not"),
    Fault("jobs/job_check", 'expires_us ~= "" and', ""),
    Fault("jobs/job_check", "#id > protocol.LONGEST_ID or", ""),
)
