"""What holds back whole types changes: limits, pauses, reserves. Claims from before a limit are counted."""

from collections.abc import Mapping

from celery_affinity.rules.keys import decode, encode

from ..keyed import standing as key_standing
from ..model import Cohort
from . import reserves, type_rules


def change(cohort: Cohort, before: Mapping[str, str]) -> None:
    """The settings were *before*. A new limit is closed until claims from before it are counted."""
    now = cohort.settings.values
    _change_limits(cohort, before.get("limits", ""), now.get("limits", ""))
    if before.get("reserve", "") != now.get("reserve", ""):
        cohort.recounts = cohort.recounts or reserves.in_force(cohort)
        _gain_all(cohort)


def _change_limits(cohort: Cohort, before: str, now: str) -> None:
    old, new = type_rules.limits_in(before), type_rules.limits_in(now)
    for name in old.keys() | new.keys():
        type_ = decode(name)
        if old.get(name) == new.get(name):
            continue
        was_open = "*" not in cohort.pauses and f"type:{name}" not in cohort.pauses and type_ not in cohort.counting
        was_open = was_open and (name not in old or len(cohort.limited.get(type_, ())) < old[name])
        if name not in new:
            cohort.counting.discard(type_)
        elif name not in old:
            cohort.counting.add(type_)
            cohort.recounts = True
        type_rules.gain(cohort, type_, was_open=was_open)


def pause(cohort: Cohort, what: str, words: str | None) -> None:
    """Write the pause of *what* ("type:T" or "*"); None ends it."""
    was_open = {type_: type_rules.open(cohort, type_) for type_ in cohort.types()}
    cohort.pauses.pop(what, None)
    if words is None:
        cohort.pause_ends.pop(what, None)
    else:
        cohort.pauses[what] = words
    for type_ in was_open:
        if what == f"type:{encode(type_)}":
            type_rules.gain(cohort, type_, was_open=was_open[type_])
    if what == "*" and words is None:
        _gain_all(cohort)


def recount(cohort: Cohort) -> None:
    """Count claims from before a limit, or a reserve."""
    if not cohort.recounts:
        return
    for worker in cohort.workers.values():
        for job_id in worker.claims:
            type_rules.hold(cohort, cohort.jobs[job_id])
    counting, cohort.counting, cohort.recounts = cohort.counting, set(), False
    for type_ in counting:
        type_rules.gain(cohort, type_, was_open=False)
    if reserves.in_force(cohort):
        _gain_all(cohort)


def _gain_all(cohort: Cohort) -> None:
    cohort.gained |= {job.type for job in key_standing.standing(cohort, cohort.types())}
