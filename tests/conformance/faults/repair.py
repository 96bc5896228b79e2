"""Faults in the repair of spoiled keys."""

from .fault import Fault

_MANY_TYPES = "tests/server/test_costs.py::test_repair_goes_through_very_many_types_some_at_a_time"

FAULTS = (
    Fault("repair/lanes", "        if looks >= MOST_LOOKS then", "        if false then", _MANY_TYPES),
    Fault("repair/sums", "left > 0 or nil", "true"),
    Fault("repair/made_again", 'not (may_lack and value == "0" and not found[field])', "true"),
)
