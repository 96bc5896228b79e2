"""Rules about tasks that may be stopped for another tenant: those that never are."""

from collections.abc import Iterator

from ..facts import App, Facts, Fleet
from ..finding import Finding, listed
from .workers import rule_of_fleet_and_app


def preemptible_without_tenant(facts: Facts) -> Iterator[Finding]:
    for task, has_tenant in facts.app.preemptible.items():
        if not has_tenant:
            yield Finding(
                "preemptible-without-tenant",
                f"Task {task} says preemptible=True, and no tenant: this has no effect on its jobs, unless their calls "
                "name a tenant.",
                'Give the task a tenant, such as Affinity(tenant="batch", preemptible=True).',
            )


@rule_of_fleet_and_app
def preemptible_not_stopped(fleet: Fleet, app: App) -> Iterator[Finding]:
    if not fleet.minima:
        return  # nothing is stopped for anybody
    for task in app.preemptible:
        types = {type_ for type_, who in app.declared.items() if f"task {task}" in who}
        unable = [each.name for each in fleet.members if types.intersection(each.types) and not each.can_stop(task)]
        if unable:
            yield Finding(
                "preemptible-not-stopped",
                f"Task {task} says preemptible=True, and is not stopped on {listed(sorted(unable))}: no task can be "
                "stopped by force there, and this one has not called preempted() there yet.",
                "Let the task call preempted() and raise Preempted, or run the worker with another pool than threads "
                "and solo.",
            )


RULES = (preemptible_without_tenant, preemptible_not_stopped)
