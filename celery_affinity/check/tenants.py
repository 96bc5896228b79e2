"""Findings about tenants, about cohorts, whose keys are counted separately, and about preemption."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from ..errors import AffinityError
from ..options.call_options import resolve, resolve_source
from ..options.key_templates import ReadArguments, may_be_none, template_complaint
from ..options.keys import TenantKey
from ..options.type_names import misspelt_type
from ..publishing.cohort_keys import keys_in_several_cohorts
from ..publishing.option_checks import arguments_of, options_in_routes
from ..settings.table import PREFIX
from . import jobs, server, workers
from .facts import AppFacts, Facts, FleetFacts
from .finding import (
    Finding,
    Level,
    Problem,
    Problems,
    Rule,
    all_facts,
    app_of,
    finding,
    fleet_of,
    join_names,
    rules_of,
    with_full_stop,
)


@finding("tenants-promised-too-much", Level.WARNING, fleet_of)
def minima_of_tenants(fleet: FleetFacts) -> Problems:
    """The minima in `affinity_tenants` add up to more slots than live workers have. Lower one, or start more workers:
    while the tenants have work for their minima, jobs of others wait.
    """
    promised, slots = sum(fleet.minima.values()), sum(worker.slots for worker in fleet.status.workers)
    if fleet.members and promised > slots:
        yield Problem(
            f"affinity_tenants promises {promised:,} slots in all (min), and the fleet has {slots:,}: while the "
            f"tenants with a minimum ({join_names(tuple(sorted(fleet.minima)))}) have work for them, jobs of others "
            "can wait without a time limit.",
            "Lower a minimum (`celery -A ... affinity tenants set NAME --min N`), or start more workers.",
        )


@finding("tenant-misspelt", Level.WARNING, fleet_of)
def tenant_misspelt(fleet: FleetFacts) -> Problems:
    """`affinity_tenants` names a tenant without any job, and a tenant with a similar name has jobs and no quota of its
    own.
    """
    tenants = sorted(fleet.status.tenants, key=lambda tenant: tenant.name)
    others = [tenant.name for tenant in tenants if not tenant.is_named]
    for tenant in tenants:
        meant = misspelt_type(tenant.name, others)
        if tenant.is_named and not tenant.held and not tenant.waiting and meant is not None:
            yield Problem(
                f"affinity_tenants has a quota for {tenant.name!r}, which has no waiting or running job; did you mean "
                f"{meant!r}, which has jobs and no quota of its own?",
                "Use the spelling of the jobs, or remove the quota.",
            )


@finding("tenant-not-filled", Level.ERROR, app_of)
def tenant_not_filled(app: AppFacts) -> Problems:
    """A route has `Affinity(tenant=...)` with a template, and a task of its pattern has no such argument: calls of the
    task fail. Name the tasks in the route, or write a route with `tenant=False` for the others before it.
    """
    for name, where, template, arguments in _tenant_templates(app):
        complaint = template_complaint(TenantKey.option, template, name, arguments)
        # The template of a task or of its name that no call can fill is one of the app's complaints.
        if complaint and where.startswith("task_routes"):
            yield Problem(
                f"{where}: {complaint}. Its calls fail, unless they name a tenant themselves.",
                "Give the task that argument, narrow the pattern of the route, or say `tenant=False` in a route of the "
                "task before it.",
            )


@finding("tenant-without-value", Level.NOTE, app_of)
def tenant_without_value(app: AppFacts) -> Problems:
    """The template of a task's tenant names an argument whose default is `None`. Calls that leave the argument out have
    no tenant, and no quota counts them.
    """
    for name, where, template, arguments in _tenant_templates(app):
        if template_complaint(TenantKey.option, template, name, arguments):
            continue
        fields = may_be_none(TenantKey.option, template, arguments)
        left_out = join_names(f"{{{field}}}" for field in fields)
        if fields:
            yield Problem(
                f'{where}: tenant "{template}" has no value in calls of task {name} that leave {left_out} out: it is '
                "None then. Such a call has no tenant, so no quota counts it.",
                f"Take the default None of {left_out} away, or name the tenant of those calls with tenant=.",
            )


def _tenant_templates(app: AppFacts) -> Iterator[tuple[str, str, str, ReadArguments]]:
    """Yield the tasks with a tenant template, its place, the template, and the task's arguments.

    Tenants made by functions are unknown.
    """
    for name, task, sources in app.sources:
        with suppress(AffinityError):  # reported by `settings`
            source, tenant = resolve_source("tenant", sources)
            if isinstance(tenant, TenantKey) and isinstance(tenant.key, str) and not name.startswith("celery."):
                places = {"task_affinity": f"task {name}", "named": f"{PREFIX}task_rules"}
                where = places.get(source) or next(where for where, _ in options_in_routes(app.conf, name))
                yield name, where, tenant.key, arguments_of(task)


_ONE_COHORT = "Put the types of these jobs into one cohort, or give the keys different names."


@finding("key-in-cohorts", Level.ERROR, app_of)
def key_in_cohorts(app: AppFacts) -> Problems:
    """Tasks whose types are in several cohorts have keys, or tenants with quotas, by one template, function or name.
    Cohorts count separately, so calls of these tasks are refused.
    """
    for made_by, uses in keys_in_several_cohorts(app.celery) if app.settings.cohorts else ():
        cohorts = {use.task: use.cohort for use in uses}
        users = join_names(f"{task} ({cohort})" for task, cohort in cohorts.items())
        yield Problem(
            f"Tasks of several cohorts have keys such as {made_by!r}: {users}. Each cohort counts separately, so a "
            "limit of 1 would let one job run in each of them: calls of these tasks are refused.",
            _ONE_COHORT,
        )


@finding("key-used-in-cohorts", Level.WARNING, all_facts)
def key_used_in_cohorts(facts: Facts) -> Problems:
    """Jobs of several cohorts wait for, or hold, a key of one name, or are of one tenant with a quota. Calls gave them
    these keys, which no task declares.
    """
    fleets = {"default": facts.fleet, **{name: cohort.fleet for name, cohort in facts.cohorts.items()}}
    users: dict[str, list[str]] = {}
    for cohort, fleet in fleets.items():
        for key in () if fleet is None else fleet.keys_in_use:
            users.setdefault(key, []).append(cohort)
    shared = join_names(f"{key!r} ({', '.join(names)})" for key, names in sorted(users.items()) if len(names) > 1)
    if shared:
        yield Problem(f"Jobs of several cohorts have these keys: {shared}. Each cohort counts by itself.", _ONE_COHORT)


def _findings_per_cohort(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about server, workers and jobs of each cohort other than `default`, with its name."""
    for name, cohort in facts.cohorts.items():
        if cohort.down is not None:
            yield Finding(
                *("cohort-down", Level.ERROR),
                f"Cohort {name!r} does not answer correctly: {with_full_stop(cohort.down)}",
                "Check that its server runs, that this machine can reach it, and that user and password are right. "
                "Jobs of its types wait, and calls of them fail. Nothing else of it was checked.",
            )
            continue
        rules = [rule for rule in rules_of(workers, jobs) if rule.in_cohorts]
        for rule in (*rules, *(rules_of(server) if cohort.server != facts.server else ())):
            yield from (replace(finding, what=f"Cohort {name!r}: {finding.what}") for finding in rule.findings(cohort))


findings_per_cohort = Rule(
    "cohort-down",
    Level.ERROR,
    _findings_per_cohort,
    about="The server of a cohort does not answer: its jobs wait, and calls of its types fail. "
    "Other findings about a cohort begin with its name.",
)


@finding("preemptible-without-tenant", Level.NOTE, app_of)
def preemptible_without_tenant(app: AppFacts) -> Problems:
    """A task has `preemptible=True`, and neither the task, a route nor `affinity_task_rules` gives it a tenant. Unless
    its calls name one, its jobs are never stopped.
    """
    for task, has_tenant in _preemptible_tasks(app):
        if not has_tenant:
            yield Problem(
                f"Task {task} has preemptible=True, but no tenant: this has no effect on its jobs, unless their calls "
                "name a tenant.",
                'Give the task a tenant, such as Affinity(tenant="batch", preemptible=True).',
            )


@finding("preemptible-not-stopped", Level.NOTE, fleet_of)
def preemptible_not_stopped(fleet: FleetFacts) -> Problems:
    """Some tenant has a minimum, and a task with `preemptible=True` may run on a worker that cannot stop it: the pool
    is threads or solo, and the task has not called `preempted()` there yet.
    """
    for task, _ in _preemptible_tasks(fleet.app) if fleet.minima else ():  # without minimums, no task is preempted
        types = {type_ for type_, places in fleet.app.declared.items() if f"task {task}" in places}
        unable = [one.name for one in fleet.members if types.intersection(one.types) and not one.can_stop(task)]
        if unable:
            yield Problem(
                f"Task {task} has preemptible=True, but cannot be stopped on {join_names(sorted(unable))}: no task can "
                "be stopped by force there, and this one has not called preempted() there yet.",
                "Let the task call preempted() and raise Preempted, or run the worker with another pool than threads "
                "and solo.",
            )


def _preemptible_tasks(app: AppFacts) -> Iterator[tuple[str, bool]]:
    """Yield each preemptible task, and True if a route, the task or a rule for its name sets a tenant."""
    for name, _, sources in app.sources:
        with suppress(AffinityError):  # reported by `settings`
            if resolve("preemptible", sources):
                yield name, bool(resolve("tenant", sources))
