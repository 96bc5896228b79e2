"""Faults in what reserves keep back, and in what lets it go on."""

from .fault import Fault

_OF = "tests/server/test_reserves.py::test_"
_BY_AGE = f"{_OF}by_age_the_oldest_goes_of_those_that_no_reserve_keeps_back"
_SPECIALISED = f"{_OF}a_job_goes_to_the_most_specialised_of_the_slots_that_were_kept_free"
_SHRINKS = f"{_OF}fewer_live_slots_are_a_smaller_share_so_that_the_waiting_start"
_RARE = f"{_OF}a_rare_type_goes_first_with_those_of_its_jobs_that_no_reserve_keeps_back"
_PATIENCE = "tests/server/test_reserves.py::test_a_patient_job_ignores_reserves_from_some_age_on"

FAULTS = (
    Fault("placing/lanes", "and protocol.MAX_PRIORITY + 1 or 0", "and 0 or 0"),
    Fault("types/reserves", "{ 0, on_demand - 1 }", "{ 0, on_demand - 2 }"),
    Fault("types/reserves", "{ on_demand, 2 * on_demand - 1 }", "{ 0, on_demand - 1 }"),
    Fault("types/reserves", "tonumber(last) or tonumber(first)", "tonumber(first)"),
    Fault("types/reserves", "last, on_demand + first, on_demand + last }", "last }"),
    Fault("types/reserves", "number <= reserve.ranges[i + 1]", "number < reserve.ranges[i + 1]"),
    Fault("types/reserves", "math.ceil(", "math.floor("),
    Fault("types/reserves", "math.max(of_type.most, each.slots)", "each.slots"),
    Fault("types/reserves", "free > reserve.slots\n", "free >= reserve.slots\n"),
    Fault("types/reserves", "reserve.slots >= live and", "reserve.slots > live and"),
    Fault("types/reserves", "reserve.slots >= live and", ""),
    Fault("types/reserves", 'redis.call("EXISTS", key.recount) == 0', "true"),
    Fault("types/reserves", "and not runs(type, reserve)", ""),
    Fault("types/reserves", "reserve.runs or #found > 0", "#found > 0"),
    Fault("types/reserves", "patience_us > 0 and", "false and"),
    Fault("types/reserves", ">= patience_us", "> patience_us", _PATIENCE),
    Fault("types/reserves", "(is_ahead or not allows", "(not allows"),
    Fault("types/reserves", "free > count_slots(type, of_type) then", "free > 1 and count_slots(type, of_type) then"),
    Fault("types/reserves", "each.runs = nil", "each.runs = each.runs"),
    Fault("types/type_rules", "    if reserve then\n", "    if false then\n"),
    Fault(
        "types/type_rules",
        "if #reserves.concerning(text, type) > 0 then",
        "if false then",
        "tests/server/test_reserves.py::test_the_last_of_a_class_may_end_on_a_worker_that_serves_its_type_no_more",
    ),
    Fault("types/type_changes", 'if (before or "") == (now or "") then', "if false then"),
    Fault("types/type_changes", 'say_in_heads()\n        redis.call("SET", key.recount, 0)', "say_in_heads()"),
    Fault("types/type_changes", "== 1 then\n        type_rules.say_in_heads()", "== 1 then"),
    Fault("types/type_changes", "    fill_all()\nend\n\n-- Pauses", "end\n\n-- Pauses"),
    Fault("types/type_changes", "or reserves.covers(reserves.concerning(text, type), lane)", ""),
    Fault("types/type_changes", "== 1 then\n        fill_all()", "== 1 then"),
    Fault("jobs/hooks", 'elseif name == "reserve" then', "elseif false then"),
    Fault("jobs/enter", "or has_type_rules == protocol.HAS_RESERVES", ""),
    Fault("fleet/workers", '"!") == protocol.HAS_RESERVES then', '"!") == 0 then', _SHRINKS),
    Fault("placing/candidates", "kept_back and view.of_all and view:of_all() or view", "view", _SPECIALISED),
    Fault("placing/candidates", "(kept_back and kept_back.covers(job.type, job.lane))", "false"),
    Fault("placing/candidates", "kept_back.counted(job.type)", ""),
    Fault("placing/candidates", 'and not (kept_back and kept_back.open(one, heads[one], view) == "")', ""),
    Fault("placing/which_job", "kept_back and kept_back.open(type, its_heads, view) or its_heads", "heads[type]"),
    Fault("placing/which_job", "place, its_points = best_heads.oldest(open), 0", "place, its_points = 1, 0", _BY_AGE),
    Fault(
        "placing/which_job",
        "        its_points = its_points + which_job.rarity(choice, nth)\n    end\n    return lanes",
        "    end\n    return lanes",
        _RARE,
    ),
    Fault("placing/free_slots", "write = own.write, of_all = own.of_all,", "write = own.write,", _SPECIALISED),
    Fault("arrows/release", "reply, view = fill", "reply = fill"),
)
