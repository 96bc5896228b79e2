"""Moves of a worker with jobs."""

from celery_affinity.policy.slot_math import NOTHING

from . import draw
from .both import Both, often
from .vocabulary import (
    held_ahead,
    indexes,
    outcomes,
    some_indexes,
    some_types,
)


class Working(Both):
    """Moves of a worker with jobs."""

    @often(2, given=some_types, as_told=draw.booleans())
    def claim(self, given, as_told):
        self.go_on(self.owed if as_told else given)

    @often(3, index=indexes, number=draw.integers(1, 3))
    def read(self, index, number):
        for _ in range(number):
            self._read(self.pick_worker(index))
        self.compare()

    @often(
        8,
        index=indexes,
        number=draw.integers(1, 4),
        early=draw.booleans(),
        may_hold=held_ahead,
        outcomes=draw.lists(outcomes, min_size=4, max_size=4),
    )
    def work(self, index, number, early, may_hold, outcomes):
        """Act as a worker: read a job, ack it early or late, release its slot, and continue with the following jobs."""
        worker = self.pick_worker(index)
        for outcome in outcomes[:number]:
            self._read(worker)
            held = self.reference.workers[worker].claims if worker in self.reference.workers else {}
            if not held:
                return
            claim = next(iter(held.items()))
            if early:
                self._ack(worker, [claim])
            self.released = worker, str(next(self.sequences)), [(*claim, outcome)], True, may_hold
            self._release(*self.released)

    @often(3, indexes=some_indexes)
    def ack(self, indexes):
        self._ack(*self.pick_claims(indexes))

    @often(8, indexes=some_indexes, outcome=outcomes, inline=draw.booleans(), may_hold=held_ahead)
    def release(self, indexes, outcome, inline, may_hold=NOTHING):
        worker, claims = self.pick_claims(indexes)
        self.released = worker, str(next(self.sequences)), [(*claim, outcome) for claim in claims], inline, may_hold
        self._release(*self.released)

    @often(3, lost=draw.booleans())
    def release_again(self, lost):
        """Repeat an invocation whose reply was lost, and with it perhaps a claimed job."""
        if not self.released:
            return
        worker, sequence, *rest = self.released
        known = self.reference.workers.get(worker)
        jobs = map(self.reference.jobs.get, known.claims if known else ())
        carried = [(job.id, job.fence) for job in jobs if job.by == sequence]
        if lost and carried:
            self._requeue(worker, carried[:1], counted=False)
        self._release(worker, f"-{sequence}", *rest)

    @often(4, indexes=some_indexes, counted=draw.booleans())
    def requeue(self, indexes, counted):
        self._requeue(*self.pick_claims(indexes), counted)
