"""Faults in the choice of the job that goes first, and of the slot that gets the job."""

from .fault import Fault

_SET_BACK = "tests/server/test_placing.py::test_a_best_head_that_was_cached_is_not_believed_while_the_clock_is_set_back"
_CACHE_GOES = "tests/server/test_keyed.py::test_the_cached_best_head_of_a_type_goes_when_a_key_closes_all_of_its_lanes"

FAULTS = (
    Fault("placing/fill", "if may_start and fresh and not fresh[id] then", "if false then"),
    Fault("placing/fill", 'waiting.heads[type] and reply[1] .. type .. " " or reply[1]', 'reply[1] .. type .. " "'),
    Fault("placing/fill", "if moves == protocol.MOST_MOVES or", "if moves > protocol.MOST_MOVES or"),
    Fault("placing/fill", " or bytes > protocol.MOST_BYTES then", " then"),
    Fault("placing/fill", "for moves = 1, protocol.MOST_MOVES do", "for moves = 1, 9 do"),
    Fault("placing/fill", 'ends.record(id, "expired")', ""),
    Fault("placing/fill", "moves == protocol.MOST_MOVES or", "moves == protocol.MOST_MOVES and fence or"),
    Fault("placing/fill", "if worker == caller then", 'if caller ~= "" then'),
    Fault("placing/fill", '"LPUSH", key.inbox', '"RPUSH", key.inbox'),
    Fault("placing/candidates", "#waiting == 1 and string", "string"),
    Fault("placing/candidates", "if has_one_lane and not choice then", "if has_one_lane then"),
    Fault("placing/lanes", "if head_id == id then", "if head_id ~= id then"),
    Fault("placing/lanes", "id < head_id", "id > head_id"),
    Fault("placing/lanes", "enqueued_us < head_us", "enqueued_us <= head_us"),
    Fault("placing/lanes", "lane, enqueued, id)\nend\n", 'lane, enqueued and "1", id)\nend\n'),
    Fault("placing/lanes", 'if heads == "" then', "if false then"),
    Fault("placing/lanes", 'redis.call("HDEL", key.leaders, type)\n    else', "else", _CACHE_GOES),
    Fault("placing/lanes", 'if heads ~= "" and before ~= "" then', "if false then"),
    Fault("placing/lanes", "string.sub(heads, last + 2)", '""'),
    Fault("placing/lanes", "math.max(0, first - 2)", "first - 2"),
    Fault("placing/lanes", "elseif last == #heads then", "elseif false then"),
    Fault("placing/which_job", "view.free_for(types[nth]), settings)", "view.free_for(types[nth]) + 1, settings)"),
    Fault("placing/which_job", 'settings.rarity == "free"', 'settings.rarity ~= "free"'),
    Fault("placing/which_job", "its_points + rarest >= least", "its_points >= least"),
    Fault(
        "placing/which_job",
        "places[nth], oldest[nth], is_new[nth] = nil, nil, true",
        "places[nth], is_new[nth] = nil, true",
    ),
    Fault(
        "placing/which_job",
        "places[nth], oldest[nth], is_new[nth] = nil, nil, true",
        "oldest[nth], is_new[nth] = nil, true",
    ),
    Fault(
        "placing/which_job",
        "if by_age then\n            oldest",
        "if by_age and not places[nth] then\n            oldest",
    ),
    Fault(
        "placing/which_job",
        "if caches[nth] then\n                caches[nth] =",
        "if caches[nth] then\n                local _ =",
    ),
    Fault(
        "placing/which_job", "if settings.priority_percentage ~= 100 then", "if settings.priority_percentage > 0 then"
    ),
    Fault("placing/best_heads", "revision == settings.revision and", ""),
    Fault("placing/best_heads", "made_us <= clock.now_us and", "", _SET_BACK),
    Fault("placing/best_heads", " and clock.now_us <= until_us", ""),
    Fault("placing/best_heads", "    if had_one then", "    if false then"),
    Fault("placing/best_heads", "local group = is_fast and fast or slow", "local group = slow"),
    Fault("placing/best_heads", "if enqueued_us > clock.now_us then", "if false then"),
    Fault("placing/best_heads", "elseif points > group.next then", "elseif false then"),
    Fault(
        "placing/best_heads",
        "group.points, group.next, group.place = points, group.points, place",
        "group.points, group.place = points, place",
    ),
    Fault(
        "placing/best_heads",
        "fast == slow and best_heads.is_older(heads, fast_place, heads, slow_place)",
        "fast == slow",
    ),
    Fault("placing/best_heads", "next_lane == lane and", "next_lane and"),
    Fault("placing/best_heads", "place == fast_place and points > next_fast", "place == fast_place"),
    Fault("placing/best_heads", "place == slow_place and points > next_slow", "place == slow_place"),
    Fault("placing/best_heads", "slow, next_slow = slow + gained, next_slow + gained", ""),
    Fault("placing/heads", "#job.id + 1", "#job.id"),
    Fault("placing/score", "min(age_us, settings.on_demand_age_cap_us)", "age_us"),
    Fault("placing/score", "* MICRO / slots_that_fit", "* MICRO * slots_that_fit"),
    Fault("placing/score", "if age_us < 0 then", "if false then"),
    Fault("placing/score", "if settings.priority_reversed == 1 then", "if false then"),
    Fault("placing/score", ">= priority_percentage", "> priority_percentage"),
    Fault("placing/score", "enqueued_us < others_enqueued_us", "enqueued_us > others_enqueued_us"),
    Fault("placing/score", "id < others_id", "id > others_id"),
    Fault("placing/which_slot", "sum = sum + free_in(", "sum = free_in("),
    Fault("placing/which_slot", "if not changed[members[i]] then", "if true then"),
    Fault("placing/which_slot", "0, #others, ", "0, 0, "),
    Fault("placing/which_slot", "if each.left > 0\n", "if true\n"),
    Fault(
        "placing/which_slot", "since == best_since and each.worker < best", "since == best_since and each.worker > best"
    ),
    Fault("placing/which_slot", "        slot.left = slot.left - 1\n", ""),
    Fault("placing/which_slot", "        occupied[slot.profile] = (occupied[slot.profile] or 0) + 1\n", ""),
    Fault("placing/which_slot", "if best and size > best_size or", "if best and size >= best_size or"),
    Fault(
        "placing/which_slot",
        "if not best or since < best_since or (since",
        "if not best or since > best_since or (since",
    ),
    Fault("placing/which_slot", "since == best_since and worker < best", "since == best_since and worker > best"),
    Fault(
        "placing/free_slots",
        "    elseif was > 0 then\n        redis.call",
        "    elseif was > 1 then\n        redis.call",
    ),
    Fault("placing/free_slots", "if profile and free ~= was then", "if profile then"),
    Fault("placing/free_slots", "if profile and (taken or view.left ~= was) then", "if profile and taken then"),
    Fault(
        "placing/free_slots", "return free_slots.free_for(type) + view.left - was", "return free_slots.free_for(type)"
    ),
    Fault("placing/free_slots", "        view.left, taken = view.left - 1, true", "        taken = true"),
    Fault("placing/free_slots", "sum = sum + (tonumber(free) or 0)", "sum = tonumber(free) or 0"),
    Fault("placing/free_slots", "math.max(0, free_slots", "math.max(-9, free_slots"),
    Fault("placing/free_slots", " - tonumber(row[OTHER])", ""),
)
