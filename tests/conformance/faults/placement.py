"""Faults in the choice among equally specialised workers."""

from .fault import Fault

_MANY = "tests/server/test_open_profiles.py::test_the_most_specialised_free_slot_is_found_among_many_profiles"
_SAMPLED = "tests/server/test_open_profiles.py::test_of_many_alike_workers_a_sample_is_compared"
_COSTS = "tests/server/test_open_profiles.py::test_many_types_of_many_profiles_cost_about_a_command_each"

FAULTS = (
    Fault("placing/open_profiles", "size == least and #found < protocol", "#found < protocol", _MANY),
    Fault("placing/open_profiles", "its.largest > size then", "its.largest >= size then", _MANY),
    Fault("placing/open_profiles", "page.largest = before + most,", "page.largest = before + most + 9,", _MANY),
    Fault("placing/open_profiles", "one[1] == other[1] and one[2] < other[2]", "false", _MANY),
    Fault("placing/open_profiles", "        if slots_free > 0 then", "        if slots_free > 1 then", _MANY),
    Fault("placing/open_profiles", "#unknown > ASKED_TOGETHER then", "#unknown > 9999 then", _COSTS),
    Fault(
        "placing/open_profiles",
        "#open.all <= FEW_OPEN and read_few(open, type) or read_page(open, type, 0)",
        "read_page(open, type, 0)",
        _COSTS,
    ),
    Fault("placing/which_slot", "            open.rows[worker] = nil\n", ""),
    Fault("placing/placement", 'values[1] == "weighted" and has_weights', "has_weights"),
    Fault("placing/placement", "if words ~= redis.call(", "if words and words ~= redis.call("),
    Fault("placing/placement", "* weights.priority +", "* 0 +"),
    Fault("placing/placement", "* weights.free\n", "* 0\n"),
    Fault("placing/placement", "most > 0 and first + left - 1 or -1", "-1"),
    Fault("placing/placement", "nth == begin and rank or 0", "rank", _SAMPLED),
    Fault("placing/placement", "local begin = number % #profiles", "local begin = 0", _SAMPLED),
    Fault("placing/placement", "rank = math.floor(number / #profiles) %", "rank = 0 *", _SAMPLED),
    Fault("placing/placement", "    if rank > 0 then", "    if false then", _SAMPLED),
    Fault("placing/placement", "since < best_since or (since", "since > best_since or (since"),
    Fault("placing/placement", "worker < best)))", "worker > best)))"),
    Fault("placing/which_slot", "            write_occupied()\n", ""),
    Fault("placing/open_profiles", "open.free[profile] and open.free[profile] - slots", "open.free[profile]"),
    Fault("placing/candidates", "        view.weights = preferred and preferred.weights\n", ""),
    Fault("arrows/join", 'priority ~= "0" and priority', "priority"),
)
