"""The faults that the conformance test must notice, by the folder of the Lua file that they break."""

from . import (
    arrows,
    base,
    batches,
    bounds,
    counted,
    fleet,
    jobs,
    keyed,
    locality,
    merging,
    placement,
    placing,
    preemption,
    recurring,
    repair,
    reserves,
    tenants,
)
from .fault import LUA, ROOT, Fault

FAULTS = (
    *arrows.FAULTS,
    *jobs.FAULTS,
    *placing.FAULTS,
    *placement.FAULTS,
    *fleet.FAULTS,
    *base.FAULTS,
    *repair.FAULTS,
    *keyed.FAULTS,
    *locality.FAULTS,
    *merging.FAULTS,
    *batches.FAULTS,
    *counted.FAULTS,
    *recurring.FAULTS,
    *reserves.FAULTS,
    *bounds.FAULTS,
    *tenants.FAULTS,
    *preemption.FAULTS,
)

__all__ = ["FAULTS", "LUA", "ROOT", "Fault"]
