"""The checks of `celery affinity check`: `gather` collects facts, and rules derive findings from facts.

The rules do no I/O; only `gather` queries the server and the workers. Read `facts` and `finding` first, then a rule,
such as `jobs.type_waits`.
"""

from . import app, due_times, jobs, results, server, tenants, workers
from .facts import Facts
from .finding import Finding, Level, rules_of

#: All rules, in the display order of findings with equal level.
RULES = rules_of(app, results, server, workers, jobs, due_times, tenants)

#: Level of every possible finding, by id.
LEVELS = {rule.id: rule.level for rule in RULES}

_ORDER = list(Level)


def check(facts: Facts) -> list[Finding]:
    """Return the findings of all rules, the most severe first."""
    findings = (finding for rule in RULES for finding in rule.findings(facts))
    return sorted(findings, key=lambda finding: _ORDER.index(finding.level))


__all__ = ["LEVELS", "RULES", "Facts", "Finding", "Level", "check"]
