"""configure: settings change at run time, or are reset to what app.conf says. In force for the next claim."""

from collections.abc import Mapping

from ..model import Cohort


def configure(cohort: Cohort, changes: Mapping[str, str]) -> int:
    """Change settings; "" resets one to what app.conf said last. Return the revision of the settings."""
    return cohort.settings.change(changes)
