"""The checks of `celery affinity check`: `gather` collects facts, and rules derive findings from facts.

The rules do no I/O; only `gather` queries the server and the workers. Read `facts` and `finding` first, then a rule,
such as `jobs.type_waits`.
"""

from collections.abc import Iterable

from . import app, jobs, results, server, tenants, workers
from .facts import Facts, FleetFacts
from .finding import Finding, Level, rules_of

#: All rules, in the display order of findings with equal level.
RULES = rules_of(app, results, server, workers, jobs, tenants)

#: Level of every possible finding, by id.
LEVELS = {rule.id: rule.level for rule in RULES}

_ORDER = list(Level)


def check(facts: Facts) -> list[Finding]:
    """Return the findings of all rules, the most severe first."""
    findings = (finding for rule in RULES for finding in rule.findings(facts))
    return sorted(findings, key=lambda finding: _ORDER.index(finding.level))


__all__ = ["LEVELS", "RULES", "Facts", "Finding", "Level", "check"]


def findings_as_json(facts: Facts, findings: Iterable[Finding]) -> dict[str, object]:
    """Return the outcome of a check for `json.dumps`: app, broker, the queried workers, and the findings."""
    return {
        "app": facts.app.name,
        "broker": facts.app.broker,
        "server": facts.server is not None,
        "workers": None if facts.fleet is None else _worker_names(facts.fleet),
        "findings": [
            {"id": finding.id, "level": finding.level, "what": finding.what, "todo": finding.todo}
            for finding in findings
        ],
    }


def _worker_names(fleet: FleetFacts) -> list[str]:
    return sorted({*(worker.name for worker in fleet.members), *(worker.name for worker in fleet.answers)})
