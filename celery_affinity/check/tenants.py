"""Facts and rules about tenants: minimums, misspelt names, calls without a tenant, and tasks that are not preempted."""

from collections.abc import Iterator
from contextlib import suppress

from celery import Celery
from celery.app.task import Task

from ..errors import AffinityError
from ..options.affinity import affinity_of, as_affinity
from ..options.key_templates import may_be_none, template_complaint
from ..options.keys import TenantKey, as_tenant
from ..publishing.app_config import rules_by_name
from ..publishing.option_checks import arguments_of, options_in_routes
from ..settings.table import PREFIX, Settings
from .facts import AppFacts, Facts, FleetFacts, TaskWithoutTenant
from .finding import Finding, join_names
from .workers import rule_of_fleet, rule_of_fleet_and_app


def without_tenant(app: Celery, own: Settings) -> Iterator[TaskWithoutTenant]:
    """Yield the tasks whose tenant template is empty for some calls, or cannot be filled by any call.

    If no call can fill the template of the task or of its name, `validation.app_complaints` reports the error. Tenants
    made by functions are unknown.
    """
    for name, task in sorted(app.tasks.items()):
        if name.startswith("celery."):
            continue
        with suppress(AffinityError):  # reported by `gather_app`
            where, tenant = _effective_tenant(app, name, task, own)
            if tenant is None or not isinstance(tenant.key, str):
                continue
            arguments = arguments_of(task)
            if complaint := template_complaint(tenant.option, tenant.key, name, arguments):
                if where.startswith("task_routes"):
                    yield TaskWithoutTenant(name, where, tenant.key, complaint=complaint)
            elif left_out := may_be_none(tenant.option, tenant.key, arguments):
                yield TaskWithoutTenant(name, where, tenant.key, left_out=left_out)


def _effective_tenant(app: Celery, name: str, task: Task, own: Settings) -> tuple[str, TenantKey | None]:
    """Return the place that sets a task's tenant first, as text, and its rule, or None if there is no template.

    ``tenant=`` of a route is the tenant's name, or disables the tenant.
    """
    for where, options in options_in_routes(app.conf, name):
        if options.get(TenantKey.option) is not None:
            return where, None
        if (of_route := as_tenant(as_affinity(options.get("affinity")).tenant)) is not None:
            return where, of_route
    of_task = as_tenant(affinity_of(task).tenant)
    if of_task is not None:
        return f"task {name}", of_task
    return f"{PREFIX}task_rules", as_tenant(rules_by_name(name, own).tenant)


def preemptible(app: Celery, own: Settings) -> Iterator[tuple[str, bool]]:
    """Yield each preemptible task, and True if a route, the task or a rule for its name sets a tenant."""
    for name, task in sorted(app.tasks.items()):
        with suppress(AffinityError):  # reported by `gather_app`
            routes = [options for _, options in options_in_routes(app.conf, name)]
            affinities = [as_affinity(options.get("affinity")) for options in routes]
            affinities += [affinity_of(task), rules_by_name(name, own)]
            flags = [options.get("preemptible") for options in routes] + [one.preemptible for one in affinities]
            if next((flag for flag in flags if flag is not None), False):
                tenants = [options.get("tenant") for options in routes] + [one.tenant for one in affinities]
                yield name, any(tenants)


@rule_of_fleet
def minima_of_tenants(fleet: FleetFacts) -> Iterator[Finding]:
    promised = sum(fleet.minima.values())
    if fleet.members and promised > fleet.slots:
        yield Finding(
            "tenants-promised-too-much",
            f"affinity_tenants promises {promised:,} slots in all (min), and the fleet has {fleet.slots:,}: while the "
            f"tenants with a minimum ({join_names(tuple(sorted(fleet.minima)))}) have work for theirs, jobs of others "
            "wait without a bound.",
            "Lower a minimum (`celery -A ... affinity tenants set NAME --min N`), or start more workers.",
        )


@rule_of_fleet
def tenant_misspelt(fleet: FleetFacts) -> Iterator[Finding]:
    for name, meant in sorted(fleet.tenants_misspelt.items()):
        yield Finding(
            "tenant-misspelt",
            f"affinity_tenants has a quota for {name!r}, of whom no job waits or runs; did you mean {meant!r}, who has "
            "jobs, and no quota of its own?",
            "Use the spelling of the jobs, or remove the quota.",
        )


def tenant_without_value(facts: Facts) -> Iterator[Finding]:
    for task in facts.app.no_tenant:
        if task.complaint is not None:
            yield Finding(
                "tenant-not-filled",
                f"{task.where}: {task.complaint}. Its calls fail, unless they name a tenant themselves.",
                "Give the task that argument, narrow the pattern of the route, or say `tenant=False` in a route of the "
                "task before it.",
            )
        else:
            left_out = join_names(f"{{{name}}}" for name in task.left_out)
            yield Finding(
                "tenant-without-value",
                f'{task.where}: tenant "{task.template}" has no value in calls of task {task.task} that leave '
                f"{left_out} out: it is None then. Such a call has no tenant, so no quota counts it.",
                f"Take the default None of {left_out} away, or name the tenant of those calls with tenant=.",
            )


TENANT_RULES = (minima_of_tenants, tenant_misspelt, tenant_without_value)


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
def preemptible_not_stopped(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    if not fleet.minima:
        return  # no task is preempted
    for task in app.preemptible:
        types = {type_ for type_, who in app.declared.items() if f"task {task}" in who}
        unable = [
            member.name for member in fleet.members if types.intersection(member.types) and not member.can_stop(task)
        ]
        if unable:
            yield Finding(
                "preemptible-not-stopped",
                f"Task {task} says preemptible=True, and is not stopped on {join_names(sorted(unable))}: no task can "
                "be stopped by force there, and this one has not called preempted() there yet.",
                "Let the task call preempted() and raise Preempted, or run the worker with another pool than threads "
                "and solo.",
            )


PREEMPTION_RULES = (preemptible_without_tenant, preemptible_not_stopped)
