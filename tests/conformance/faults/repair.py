"""Faults in the repair of spoiled keys."""

from .fault import Fault

FAULTS = (
    Fault("repair/sums", "left > 0 or nil", "true"),
    Fault("repair/made_again", 'not (may_lack and value == "0" and not found[field])', "true"),
)
