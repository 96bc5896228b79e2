"""Two jobs that might have got one slot: what each of them was worth at that moment, in a schedule."""

from dataclasses import dataclass

from ..clock import SECOND_US
from ..rules.score import MICRO, score
from ..rules.shared_settings import complete, weights
from .scenario import Arrival, Scenario
from .schedule import Run, Schedule


@dataclass(frozen=True)
class Candidate:
    """A job at a moment. *state*: "chosen", "waiting", "not here yet", "claimed before" or "never claimed".

    *score*: None unless it was chosen or waiting; its four terms follow, in points.
    """

    number: int
    type: str
    on_demand: bool
    priority: int
    state: str
    waited_s: float
    score: float | None = None
    of_priority: float = 0.0
    of_age: float = 0.0
    of_rarity: float = 0.0
    of_on_demand: float = 0.0


def at(schedule: Schedule, number: int, now_us: int, *, is_chosen: bool) -> Candidate:
    """Return the job *number* as it was in *schedule* at *now_us*, just before the claim of that moment."""
    scenario = schedule.scenario
    job = next(each for each in scenario.arrivals if each.number == number)
    run = next((each for each in schedule.runs if each.number == number), None)
    state = "chosen" if is_chosen else _state(job, run, now_us)
    waited_s = max(0, now_us - job.since_us) / SECOND_US
    if state not in ("chosen", "waiting"):
        return Candidate(number, job.type, job.on_demand, job.priority, state, waited_s)
    fit = _slots_that_fit(scenario, job.type, now_us)
    found = score(job.priority, job.on_demand, now_us - job.enqueued_us, fit, weights(complete(scenario.settings)))
    terms = (found.total, found.priority, found.age, found.rarity, found.on_demand)
    return Candidate(
        number, job.type, job.on_demand, job.priority, state, waited_s, *(micro / MICRO for micro in terms)
    )


def _state(job: Arrival, run: Run | None, now_us: int) -> str:
    if job.since_us > now_us:
        return "not here yet"
    return "claimed before" if run is not None and run.claimed_us <= now_us else "waiting"


def _slots_that_fit(scenario: Scenario, type_: str, now_us: int) -> int:
    """Return the slots of live workers that serve *type_*, at least 1. With ``rarity=free`` this is not what counts."""
    live = (
        each.slots
        for each in scenario.workers
        if type_ in each.types and each.joined_us <= now_us and (each.left_us is None or now_us < each.left_us)
    )
    return max(1, sum(live))
