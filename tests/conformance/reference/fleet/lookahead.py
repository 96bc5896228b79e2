"""Jobs that a worker holds beyond its slots (``affinity_lookahead``), to start them when its slots are free."""

from celery_affinity.rules.keys import encode
from celery_affinity.rules.protocol import MARK, MOST_MOVES
from celery_affinity.rules.slot import free_slots

from ..jobs import claims
from ..model import Cohort, Delivery, Worker
from ..placing import which_job
from ..types import type_rules


def fill(cohort: Cohort, worker: Worker, most: int, now_us: int, inline: list[Delivery]) -> None:
    """Give *worker* pending jobs of its types, until it holds *most* jobs beyond its slots."""
    free = free_slots(worker.slots, worker.other, len(worker.claims))
    room = free + most if worker.takes_jobs else 0
    by_free = cohort.settings.get("rarity") == "free"
    types = {type_ for type_ in worker.types if type_rules.open(cohort, type_)}
    has_choice = which_job.has_choice(cohort, types)
    size = 0
    for _ in range(MOST_MOVES):
        fits = {type_: 1 if by_free else which_job.slots_that_fit(cohort, type_) for type_ in types}
        job = which_job.first(cohort, fits, now_us, counts=has_choice, is_ahead=True) if room > 0 else None
        if job is None or job.id.endswith(MARK) or type_rules.limit_of(cohort, job.type) is not None:
            return  # a job ahead would hold its key, or count, while it waits for a slot
        delivery = claims.grant(cohort, job, worker, now_us)
        if delivery is not None:
            inline.append(delivery)
            cohort.ahead[job.type] = worker.id
            room -= 1
            size += delivery.size
        if size > cohort.most_bytes:
            return


def gave_back(cohort: Cohort, worker: Worker, again: set[str]) -> None:
    """Have *worker*, which gave back jobs of the types in *again*, be asked once more if it holds too many still."""
    if free_slots(worker.slots, worker.other, len(worker.claims)) < 0:
        cohort.ahead |= {type_: worker.id for type_ in again if cohort.capacity(type_)}


def ask(cohort: Cohort, worker: Worker) -> None:
    """Ask who took jobs of the types of *worker* ahead last for as many as it has free slots."""
    if not worker.free:
        return
    for type_ in sorted(worker.types & cohort.ahead.keys(), key=encode):
        holder = cohort.workers.get(cohort.ahead.pop(type_))
        if holder and holder is not worker:
            types = " ".join(sorted(map(encode, worker.types)))
            holder.inbox.append(f"\nback {worker.free} {types}")
            return
