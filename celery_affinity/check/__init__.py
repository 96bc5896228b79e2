"""What `celery affinity check` finds wrong or risky: rules from plain facts to findings, without any I/O."""

from .facts import Facts
from .finding import LEVELS, Finding, Level
from .rules import app, jobs, server, workers

#: In the order in which findings of one level are shown.
RULES = (*app.RULES, *server.RULES, *workers.RULES, *jobs.RULES)

_ORDER = list(Level)


def check(facts: Facts) -> list[Finding]:
    """Return what is wrong or risky, the worst first."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.level))


__all__ = ["LEVELS", "RULES", "Facts", "Finding", "Level", "check"]
