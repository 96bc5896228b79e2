"""Faults in the choice of the job that goes first, and of the slot that gets the job."""

from .fault import Fault

_SET_BACK = "tests/server/test_placing.py::test_a_comparison_of_heads_is_not_believed_while_the_clock_is_set_back"
_NO_DEMAND = "tests/server/test_placing.py::test_an_id_that_looks_like_a_job_on_demand_keeps_nobody_from_looking_ahead"
_LANES_CROSS = "tests/server/test_placing.py::test_points_that_grew_between_two_claims_count_when_lanes_cross"

FAULTS = (
    Fault("placing/fill", "if may_start and fresh and not fresh[id] then", "if false then"),
    Fault("placing/fill", 'waiting.heads[type] and left .. type .. " " or left', 'left .. type .. " "'),
    Fault("placing/fill", "if moves == protocol.MOST_MOVES or", "if moves > protocol.MOST_MOVES or"),
    Fault("placing/fill", " or bytes > protocol.MOST_BYTES then", " then"),
    Fault("placing/fill", "for moves = 1, protocol.MOST_MOVES do", "for moves = 1, 9 do"),
    Fault("placing/fill", 'ends.record(id, "expired")', ""),
    Fault("placing/fill", "moves == protocol.MOST_MOVES or", "moves == protocol.MOST_MOVES and fence or"),
    Fault("placing/fill", "if worker == caller then", 'if caller ~= "" then'),
    Fault("jobs/claims", '"LPUSH", key.inbox', '"RPUSH", key.inbox'),
    Fault("placing/candidates", "#waiting.types == 1 and lanes", "lanes"),
    Fault("placing/candidates", "not waiting.choice and #waiting.types == 1", "#waiting.types == 1"),
    Fault("placing/lanes", "if head_id == id then", "if head_id ~= id then"),
    Fault("placing/lanes", "id, tonumber(others_enqueued), others_id)", "others_id, tonumber(others_enqueued), id)"),
    Fault("placing/lanes", "is_earlier(enqueued, id, head_enqueued, head_id)", "false"),
    Fault("placing/lanes", "lane, enqueued, id), enqueued\n", 'lane, enqueued and "1", id), enqueued\n'),
    Fault("placing/lanes", 'if heads == "" then', "if false then"),
    Fault("placing/lanes", "string.sub(heads, last + 2)", '""'),
    Fault("placing/lanes", "math.max(0, first - 2)", "first - 2"),
    Fault("placing/lanes", "elseif last == #heads then", "elseif false then"),
    Fault("placing/which_job", "choice.view:free_for(type), settings)", "choice.view:free_for(type) + 1, settings)"),
    Fault("placing/which_job", 'settings.rarity == "free"', 'settings.rarity ~= "free"'),
    Fault("placing/which_job", "its_points + settings.most_rarity >= least", "its_points >= least"),
    Fault(
        "placing/which_job",
        "choice.settings)\n    choice.places[nth], choice.oldest[nth] = nil, nil",
        "choice.settings)\n    choice.places[nth] = nil",
    ),
    Fault(
        "placing/which_job",
        "choice.settings)\n    choice.places[nth], choice.oldest[nth] = nil, nil",
        "choice.settings)\n    choice.oldest[nth] = nil",
    ),
    Fault(
        "placing/which_job",
        "if by_age then\n        choice.oldest",
        "if by_age and not choice.places[nth] then\n        choice.oldest",
    ),
    Fault(
        "placing/which_job", "if settings.priority_percentage ~= 100 then", "if settings.priority_percentage > 0 then"
    ),
    Fault("placing/best_heads", " and found.settings == settings", ""),
    Fault("placing/best_heads", "found.heads == heads and ", ""),
    Fault("placing/best_heads", "found.made_us <= now_us and", "", _SET_BACK),
    Fault("placing/best_heads", " and now_us <= found.until_us", ""),
    Fault("placing/best_heads", "found.heads, found.made_us = after, call.now_us", "found.heads = after"),
    Fault("placing/best_heads", "local group = is_fast and fast or slow", "local group = slow"),
    Fault("placing/best_heads", "if enqueued_us > call.now_us then", "if false then"),
    Fault("placing/best_heads", "elseif points > group.next then", "elseif false then"),
    Fault(
        "placing/best_heads",
        "group.points, group.next, group.place = points, group.points, place",
        "group.points, group.place = points, place",
    ),
    Fault(
        "placing/best_heads",
        "fast == slow and best_heads.is_older(heads, found.fast_place, heads, found.slow_place)",
        "fast == slow",
    ),
    Fault("placing/lanes", "id), enqueued\n", "id), enqueued or call.now\n"),
    Fault("placing/best_heads", "place == found.fast_place and points > next_fast", "place == found.fast_place"),
    Fault("placing/best_heads", "place == found.slow_place and points > next_slow", "place == found.slow_place"),
    Fault(
        "placing/best_heads",
        "slow, fast = found.slow + gained, found.fast + gained_fast",
        "slow, fast = found.slow, found.fast",
        _LANES_CROSS,
    ),
    Fault("placing/lanes", "#job.id + 1", "#job.id"),
    Fault("placing/lanes", 'string.find(heads, "^demand%.") or', ""),
    Fault("placing/lanes", '" demand%.%d+ %d"', '"demand%."', _NO_DEMAND),
    Fault("placing/score", "min(age_us, settings.on_demand_age_cap_us)", "age_us"),
    Fault("placing/score", "* MICRO / slots_that_fit", "* MICRO * slots_that_fit"),
    Fault("placing/score", "if age_us < 0 then", "if false then"),
    Fault("placing/score", "if settings.priority_reversed == 1 then", "if false then"),
    Fault("placing/score", ">= priority_percentage", "> priority_percentage"),
    Fault("placing/score", "enqueued_us < others_enqueued_us", "enqueued_us > others_enqueued_us"),
    Fault("placing/score", "id < others_id", "id > others_id"),
    Fault("placing/which_slot", "sum = sum + free_in(", "sum = free_in("),
    Fault("placing/which_slot", "if not changed[members[i]] then", "if true then"),
    Fault("placing/which_slot", '"0", #others, ', '"0", 0, '),
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
    Fault(
        "placing/free_slots",
        "view.profile and (view.is_taken or view.left ~= view.was)",
        "view.profile and view.is_taken",
    ),
    Fault(
        "placing/free_slots",
        "return free_slots.free_for(type) + view.left - view.was",
        "return free_slots.free_for(type)",
    ),
    Fault("placing/free_slots", "    view.left, view.is_taken = view.left - 1, true", "    view.is_taken = true"),
    Fault("placing/free_slots", "sum = sum + (tonumber(free) or 0)", "sum = tonumber(free) or 0"),
    Fault("placing/free_slots", "free > 0 and free or 0, tonumber", "free > -9 and free or 0, tonumber"),
    Fault("placing/free_slots", " - row[OTHER]", ""),
)
