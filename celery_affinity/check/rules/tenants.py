"""Rules about tenants: what is promised to them, how they are spelt, and calls that have none."""

from collections.abc import Iterator

from ..facts import Facts, Fleet
from ..finding import Finding, listed
from .workers import rule_of_fleet


@rule_of_fleet
def minima_of_tenants(fleet: Fleet) -> Iterator[Finding]:
    promised = sum(fleet.minima.values())
    if fleet.members and promised > fleet.slots:
        yield Finding(
            "tenants-promised-too-much",
            f"affinity_tenants promises {promised:,} slots in all (min), and the fleet has {fleet.slots:,}: while the "
            f"tenants with a minimum ({listed(tuple(sorted(fleet.minima)))}) have work for theirs, jobs of others wait "
            "without a bound.",
            "Lower a minimum (`celery -A ... affinity tenants set NAME --min N`), or start more workers.",
        )


@rule_of_fleet
def tenant_misspelt(fleet: Fleet) -> Iterator[Finding]:
    for name, meant in sorted(fleet.tenants_misspelt.items()):
        yield Finding(
            "tenant-misspelt",
            f"affinity_tenants has a quota for {name!r}, of whom no job waits or runs; did you mean {meant!r}, who has "
            "jobs, and no quota of its own?",
            "Use the spelling of the jobs, or remove the quota.",
        )


def tenant_without_value(facts: Facts) -> Iterator[Finding]:
    for each in facts.app.no_tenant:
        if each.complaint is not None:
            yield Finding(
                "tenant-not-filled",
                f"{each.where}: {each.complaint}. Its calls fail, unless they name a tenant themselves.",
                "Give the task that argument, narrow the pattern of the route, or say `tenant=False` in a route of the "
                "task before it.",
            )
        else:
            left_out = listed(f"{{{name}}}" for name in each.left_out)
            yield Finding(
                "tenant-without-value",
                f'{each.where}: tenant "{each.template}" has no value in calls of task {each.task} that leave '
                f"{left_out} out: it is None then. Such a call has no tenant, so no quota counts it.",
                f"Take the default None of {left_out} away, or name the tenant of those calls with tenant=.",
            )


RULES = (minima_of_tenants, tenant_misspelt, tenant_without_value)
