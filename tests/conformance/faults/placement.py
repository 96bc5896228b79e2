"""Faults in the choice among equally specialised workers."""

from .fault import Fault

FAULTS = (
    Fault("placing/placement", "if #found > 0 and size > found_size or", "if #found > 0 and size >= found_size or"),
    Fault("placing/placement", 'values[1] == "weighted" and has_weights', "has_weights"),
    Fault("placing/placement", "if words ~= redis.call(", "if words and words ~= redis.call("),
    Fault("placing/placement", "* weights.priority +", "* 0 +"),
    Fault("placing/placement", "* weights.free\n", "* 0\n"),
    Fault("placing/placement", "if most == 0 or sum <= most then", "if true then"),
    Fault("placing/placement", "        before = before + sizes[nth]\n", ""),
    Fault("placing/placement", ", 16) % sum", ", 16) % 1"),
    Fault("placing/placement", "    ranked(profiles, sizes, 0, first + most - 1 - sum, found)", "    "),
    Fault("placing/placement", "since < best_since or (since", "since > best_since or (since"),
    Fault("placing/placement", "worker < best)))", "worker > best)))"),
    Fault("placing/which_slot", "            write_occupied()\n", ""),
    Fault("placing/which_slot", "free[profile] and free[profile] - slots", "free[profile]"),
    Fault("placing/candidates", "        view.weights = preferred and preferred.weights\n", ""),
    Fault("arrows/join", 'priority ~= "0" and priority', "priority"),
)
