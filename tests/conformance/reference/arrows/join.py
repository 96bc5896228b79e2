"""join: a worker enters with its types and slots, or comes back with others; what it holds it keeps."""

from collections.abc import Collection, Mapping

from celery_affinity.rules.keys import SCHEMA

from ..fleet import lookahead, workers
from ..keyed import keyed
from ..model import Cohort, Worker
from ..placing import free_slots
from ..placing.fill import fill
from ..replies import Joined
from ..types import type_changes


def join(
    cohort: Cohort,
    worker_id: str,
    *,
    name: str,
    types: Collection[str],
    slots: int,
    other: int,
    app: str,
    settings: Mapping[str, str],
    now_us: int,
) -> Joined:
    """Enter a worker. *settings*: what its app.conf says, which counts when it is new."""
    cohort.schema = cohort.schema or SCHEMA
    worker = cohort.workers.get(worker_id)
    before = dict(cohort.settings.values)
    replaced = cohort.settings.adopt(app, settings) if worker is None else []
    type_changes.change(cohort, before)
    namesake = cohort.names.get(name)
    cohort.names[name] = worker_id
    void_up_to = 0 if worker and worker.accepting else cohort.fence
    if worker is None:
        worker = Worker(worker_id, name, frozenset(types), slots, other, joined_us=now_us, seen_us=now_us, app=app)
        cohort.workers[worker_id] = worker
    else:
        workers.detach(cohort, worker)
        worker.name, worker.types, worker.slots, worker.other = name, frozenset(types), slots, other
        worker.app = app
        worker.seen_us, worker.accepting, worker.stalled, worker.free = now_us, True, False, 0
    workers.say_what_is_kept(cohort, worker)
    free_slots.recount(worker, now_us)
    keyed.recheck(cohort, now_us)
    more = fill(cohort, worker.types, now_us)
    if not more:
        lookahead.ask(cohort, worker)
    return Joined(more, namesake if namesake != worker_id else None, replaced, void_up_to, now_us)
