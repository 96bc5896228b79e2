"""The findings of `celery affinity check`. `gather` collects facts; `rules` make findings of facts.

The rules do no I/O; only `gather` asks server and workers.
Read `facts` and `finding` first, then a rule, such as `rules.jobs.type_waits`.

The outcome of a check for other programs: the app, broker and workers that were asked, and the findings.
"""

from collections.abc import Iterable

from . import app, cohorts, jobs, results, server, tenants, workers
from .facts import Facts, FleetFacts
from .finding import LEVELS, Finding, Level

#: All rules, in the order in which findings of one level are shown.
RULES = (
    *app.RULES,
    *results.RULES,
    *server.RULES,
    *workers.RULES,
    *jobs.RULES,
    *tenants.TENANT_RULES,
    *cohorts.RULES,
    *tenants.PREEMPTION_RULES,
)

_ORDER = list(Level)


def check(facts: Facts) -> list[Finding]:
    """Return the findings of all rules, the worst first."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.level))


__all__ = ["LEVELS", "RULES", "Facts", "Finding", "Level", "check"]


def findings_as_json(facts: Facts, found: Iterable[Finding]) -> dict[str, object]:
    """Return the outcome of a check as `json.dumps` takes it."""
    return {
        "app": facts.app.name,
        "broker": facts.app.broker,
        "server": facts.server is not None,
        "workers": None if facts.fleet is None else _names(facts.fleet),
        "findings": [{"id": each.id, "level": each.level, "what": each.what, "todo": each.todo} for each in found],
    }


def _names(fleet: FleetFacts) -> list[str]:
    return sorted({*(each.name for each in fleet.members), *(each.name for each in fleet.answers)})
