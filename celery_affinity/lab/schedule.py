"""What an engine returns: which worker ran which job, when."""

from dataclasses import dataclass

from .scenario import Scenario


@dataclass(frozen=True, slots=True)
class Run:
    """A claim. *number*: that of the `Arrival`. *ended_us*: None if it had not ended when the last job was claimed."""

    number: int
    worker: str
    claimed_us: int
    ended_us: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """*runs*, in the order of the claims. Arrivals without a run were never claimed: no worker serves their type."""

    scenario: Scenario
    runs: tuple[Run, ...]
