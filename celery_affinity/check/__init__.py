"""The findings of `celery affinity check`. `gather` collects facts; `rules` make findings of facts.

The rules do no I/O; only `gather` asks server and workers.
Read `facts` and `finding` first, then a rule, such as `rules.jobs.type_waits`.
"""

from .facts import Facts
from .finding import LEVELS, Finding, Level
from .rules import app, cohorts, jobs, preemption, results, server, tenants, workers

#: All rules, in the order in which findings of one level are shown.
RULES = (
    *app.RULES,
    *results.RULES,
    *server.RULES,
    *workers.RULES,
    *jobs.RULES,
    *tenants.RULES,
    *cohorts.RULES,
    *preemption.RULES,
)

_ORDER = list(Level)


def check(facts: Facts) -> list[Finding]:
    """Return the findings of all rules, the worst first."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.level))


__all__ = ["LEVELS", "RULES", "Facts", "Finding", "Level", "check"]
