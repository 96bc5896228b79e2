"""fill: pending -> inbox. The one place where a job meets a slot: the best job first, then its best slot."""

from collections.abc import Collection, Set

from celery_affinity.rules.protocol import MOST_MOVES

from ..jobs import claims
from ..keyed import standing as key_standing
from ..model import Cohort, Delivery, Worker
from ..replies import NONE
from ..types import reserves, type_rules
from . import which_job, which_slot


def fill(
    cohort: Cohort,
    types: Collection[str],
    now_us: int,
    caller: Worker | None = None,
    inline: list[Delivery] | None = None,
    *,
    alone: bool = False,
    only: Collection[str] | None = None,
) -> Set[str]:
    """Place the best job of *types*, and of those that a rule let go on, on its best slot until none fits.

    Return `more`: types this call did not get to.

    A job that has expired, and that no tick has seen yet, ends when it is chosen, and takes no slot.

    The jobs that *caller* gets are added to *inline* instead of its inbox. *alone*: only the caller's slots are filled,
    since every other free slot was offered to the pending jobs when the slot became free, or when the jobs came; unless
    a reserve kept these back. *only*: ids of the jobs that may be moved, none but those just published, since whoever
    publishes may have no right to read messages.
    """
    types = {*types, *cohort.gained}
    cohort.gained = set()
    types = {job.type for job in key_standing.standing(cohort, types) if type_rules.open(cohort, job.type)}
    alone = alone and not any(reserves.concerning(cohort, job.type) for job in key_standing.standing(cohort, types))
    has_choice = which_job.has_choice(cohort, types)
    size = 0
    for _ in range(MOST_MOVES):
        is_over = alone and not (caller and caller.free)
        types = {type_ for type_ in types if type_rules.open(cohort, type_)}
        fitting = [type_ for type_ in types if not is_over and which_slot.best(cohort, type_)]
        fits = {type_: which_job.slots_that_fit(cohort, type_) for type_ in fitting}
        job = which_job.first(cohort, fits, now_us, counts=has_choice)
        worker = caller if alone else which_slot.best(cohort, job.type) if job else None
        if job is None or worker is None:
            return NONE
        if only is not None and job.id not in only:
            break
        delivery = claims.grant(cohort, job, worker, now_us)
        if delivery is None:
            continue
        if worker is caller and inline is not None:
            inline.append(delivery)
        else:
            worker.inbox.append(delivery)
        size += delivery.size
        if size > cohort.most_bytes:
            break
    return {job.type for job in key_standing.standing(cohort, types) if type_rules.open(cohort, job.type)}
