"""configure: settings change at run time, or are reset to what app.conf says. In force for the next claim."""

from collections.abc import Mapping

from ..keyed import keyed
from ..model import Cohort
from ..placing.fill import fill
from ..replies import Configured
from ..types import type_changes


def configure(cohort: Cohort, changes: Mapping[str, str], *, now_us: int) -> Configured:
    """Change settings; "" resets one to what app.conf said last."""
    before = dict(cohort.settings.values)
    revision = cohort.settings.change(changes)
    type_changes.change(cohort, before)
    keyed.recheck(cohort, now_us)
    return Configured(revision, fill(cohort, (), now_us))
