"""Gather the tasks of an app whose template of a tenant leaves calls without one."""

from collections.abc import Iterator
from contextlib import suppress

from celery import Celery
from celery.app.task import Task

from ..client.of_app import rules_by_name
from ..client.options import arguments_of
from ..client.options_in_app import options_in_routes
from ..errors import AffinityError
from ..rules.affinity import affinity_of, as_affinity
from ..rules.keyed.key_rules import TenantKey, as_tenant
from ..rules.keyed.template import complaint, may_be_none
from ..rules.settings import PREFIX, Settings
from .facts import NoTenant


def without_tenant(app: Celery, own: Settings) -> Iterator[NoTenant]:
    """Yield the tasks with a template of a tenant that some calls fill with nothing, or that no call fills.

    A task's own template, or that of its name, which no call fills, is an error of the app: `wrong_in_app` has it. What
    a function makes is not known.
    """
    for name, task in sorted(app.tasks.items()):
        if name.startswith("celery."):
            continue
        with suppress(AffinityError):  # said by `gather_app`
            where, tenant = _first_said(app, name, task, own)
            if tenant is None or not isinstance(tenant.key, str):
                continue
            arguments = arguments_of(task)
            if found := complaint(tenant.option, tenant.key, name, arguments):
                if where.startswith("task_routes"):
                    yield NoTenant(name, where, tenant.key, complaint=found)
            elif left_out := may_be_none(tenant.option, tenant.key, arguments):
                yield NoTenant(name, where, tenant.key, left_out=left_out)


def _first_said(app: Celery, name: str, task: Task, own: Settings) -> tuple[str, TenantKey | None]:
    """Return the place, in words, that says first whose calls of a task are, and its rule; None if calls inherit it.

    ``tenant=`` of a route is the name itself, or says that there is none.
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
