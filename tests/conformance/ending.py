"""Moves by which jobs end without a worker, and what is done about those that have."""

from celery_affinity.rules.keys import encode

from . import draw
from .both import Both, as_found, often
from .mirror import KEYS
from .side_by_side import Named
from .vocabulary import (
    APPS,
    GONE,
    SECOND_US,
    STAMPS,
    some_indexes,
    types,
)


class Ending(Both):
    """Moves by which jobs end without a worker, and what is done about those that have."""

    @often(2, letter=draw.sampled_from("abem"), numbers=draw.lists(draw.integers(0, 2), min_size=1, max_size=2))
    def revoke(self, letter, numbers):
        self._revoke([f"task of {letter} {number}" for number in numbers])

    @often(1, stamps=draw.sampled_from([STAMPS[:1], STAMPS[:2], STAMPS[2:]]))
    def revoke_stamped(self, stamps):
        self._revoke_stamped(stamps)

    @often(
        8,
        app=draw.sampled_from(APPS),
        again_us=draw.sampled_from([0, 1, SECOND_US, 200 * SECOND_US]),
        leaves=draw.booleans(),
        some_indexes=some_indexes,
    )
    def announce(self, app, again_us, leaves, some_indexes):
        """Ask for an end, at times while others are being told, and leave the end to others at times."""
        untold = [*self.reference.untold, "no-job"]
        telling = [untold[index % len(untold)] for index in some_indexes if index >= GONE]
        ending = self.reference.announce(app=app, telling=telling, again_us=again_us, now_us=self.now_us)
        self.step("announce", as_found(ending), *telling, app=encode(app), again_us=again_us)
        if ending and leaves:
            left = self.reference.leave_to_others([ending.job_id], app=app, now_us=self.now_us)
            self.step("told", left, ending.job_id, how="left", app=encode(app))
        self.compare()

    @often(4, some_indexes=some_indexes)
    def tell(self, some_indexes):
        """Report some ends as told, and now and then another job's."""
        choices = [list(self.reference.untold), [*self.reference.jobs, "no-job"]]
        picks = [choices[0] if choices[0] and index < GONE else choices[1] for index in some_indexes]
        ids = [choice[index % len(choice)] for choice, index in zip(picks, some_indexes, strict=True)]
        self.told_at_us |= {job_id: self.now_us for job_id in ids if job_id in self.reference.untold}
        self.step("told", self.reference.told(ids), *ids, how="told", app="")
        self.compare()

    @often(1, type_=types, some_indexes=some_indexes)
    def purge(self, type_, some_indexes):
        known = [*self.reference.jobs, "no-job"]
        waiting = [job.id for job in self.reference.jobs.values() if job.state == "scheduled"] or known
        picks = [waiting if index < GONE else known for index in some_indexes]
        self._purge(type_, [choice[index % len(choice)] for choice, index in zip(picks, some_indexes, strict=True)])

    @often(2, indexes=some_indexes)
    def replay(self, indexes):
        ids = self.pick_dead(indexes)
        more, replayed = self.reference.replay(ids, now_us=self.now_us)
        self.step("replay", [Named(more), *replayed], *ids)
        self.compare(more)

    @often(1, indexes=some_indexes)
    def lose_a_message(self, indexes):
        """Delete the message of a dead letter, as somebody may."""
        for job_id in self.pick_dead(indexes):
            job = self.reference.jobs.get(job_id)
            if job and job.state == "dead" and job.message is not None:
                job.message = None
                self.call("UNLINK", KEYS.key("message", job_id), reply=1)
        self.compare()

    @often(1, indexes=some_indexes)
    def drop(self, indexes):
        ids = self.pick_dead(indexes)
        self.step("drop", self.reference.drop(ids), *ids)
        self.compare()
