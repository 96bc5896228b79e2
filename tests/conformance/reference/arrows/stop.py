"""stop: recurring calls are made no more."""

from collections.abc import Iterable

from ..model import Cohort


def stop(cohort: Cohort, names: Iterable[str], *, app: str = "") -> int:
    """Forget recurring calls. *app*: that whose app.conf has them no more; "": a person asks for it.

    What another app, or somebody at run time, declared since goes on. Return how many calls there were.
    """
    stopped = 0
    for name in names:
        if app:
            cohort.recurring_of.get(app, {}).pop(name, None)
        if name in cohort.recurring and (not app or cohort.recurring[name].app == app):
            del cohort.recurring[name]
            stopped += 1
    return stopped
