"""Gather which tasks of an app may be stopped, and whether somebody names a tenant for them."""

from collections.abc import Iterator
from contextlib import suppress

from celery import Celery

from ..client.of_app import rules_by_name
from ..client.options_in_app import options_in_routes
from ..errors import AffinityError
from ..rules.affinity import affinity_of, as_affinity
from ..rules.settings import Settings


def preemptible(app: Celery, own: Settings) -> Iterator[tuple[str, bool]]:
    """Yield each task whose calls may be stopped, and whether a route, the task or its name says a tenant."""
    for name, task in sorted(app.tasks.items()):
        with suppress(AffinityError):  # said by `gather_app`
            routes = [options for _, options in options_in_routes(app.conf, name)]
            affinities = [as_affinity(options.get("affinity")) for options in routes]
            affinities += [affinity_of(task), rules_by_name(name, own)]
            said = [options.get("preemptible") for options in routes] + [each.preemptible for each in affinities]
            if next((each for each in said if each is not None), False):
                tenants = [options.get("tenant") for options in routes] + [each.tenant for each in affinities]
                yield name, any(tenants)
