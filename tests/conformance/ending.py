"""Moves that end jobs without a worker, and handle their reports."""

from celery_affinity.schema.values import DEMAND, QUEUED, encode_part

from . import draw
from .both import Both, as_found, often
from .mirror import KEYS
from .side_by_side import Named
from .vocabulary import (
    APPS,
    GONE,
    SECOND_US,
    STAMPS,
    TYPES,
    indexes,
    some_indexes,
    types,
)


class Ending(Both):
    """Moves that end jobs without a worker, and handle their reports."""

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
        """Request an unreported end, sometimes while others are being reported, and sometimes decline it."""
        unreported = [*self.reference.unreported, "no-job"]
        telling = [unreported[index % len(unreported)] for index in some_indexes if index >= GONE]
        ending = self.reference.next_report(app=app, telling=telling, again_us=again_us, now_us=self.now_us)
        self.step("next_report", as_found(ending), *telling, app=encode_part(app), again_us=again_us)
        if ending and leaves:
            left = self.reference.leave_to_others([ending.job_id], app=app, now_us=self.now_us)
            self.step("ack_report", left, ending.job_id, how="left", app=encode_part(app))
        self.compare()

    @often(4, some_indexes=some_indexes)
    def tell(self, some_indexes):
        """Acknowledge the reports of some ends, sometimes with another job's id."""
        choices = [list(self.reference.unreported), [*self.reference.jobs, "no-job"]]
        picks = [choices[0] if choices[0] and index < GONE else choices[1] for index in some_indexes]
        ids = [choice[index % len(choice)] for choice, index in zip(picks, some_indexes, strict=True)]
        self.step("ack_report", self.reference.ack_report(ids, now_us=self.now_us), *ids, how="told", app="")
        self.compare()

    def pick_batch(self, index, fence):
        """Return a batch with the fencing token of its claim, if any. Sometimes the token or the job is another."""
        batches = [job for job in self.reference.jobs.values() if job.callers]
        choice = batches if batches and index < GONE else [*self.reference.jobs.values()]
        if not choice:
            return "no-job", None
        batch = choice[index % len(choice)]
        return batch.id, batch.fence if index % 7 else fence

    @often(
        4, index=indexes, fence=draw.sampled_from([None, 1]), after=draw.integers(0, 3), max_calls=draw.integers(1, 3)
    )
    def callers(self, index, fence, after, max_calls):
        batch, fence = self.pick_batch(index, fence)
        page = self.reference.batch_calls(batch, fence=fence, after=after, max_calls=max_calls)
        wanted = [] if page is None else [page.after, str(page.primary_us)]
        for job_id, task_id, published_us, message in page.callers if page else ():
            wanted += [job_id, encode_part(task_id), str(published_us), message]
        self.step(
            "batch_calls", wanted, batch=batch, fence="" if fence is None else fence, after=after, max_calls=max_calls
        )
        self.compare()

    @often(
        6,
        index=indexes,
        fence=draw.sampled_from([None, 1]),
        some_indexes=some_indexes,
        outcome=draw.sampled_from(["acked", "acked", "failed", "failed ValueError: no such page"]),
    )
    def share(self, index, fence, some_indexes, outcome):
        """Acknowledge the reports to some calls of a batch, sometimes with other jobs."""
        batch, fence = self.pick_batch(index, fence)
        of_batch = [*self.reference.jobs[batch].callers] if batch in self.reference.jobs else []
        others = [*self.reference.jobs, "no-job"]
        picks = [of_batch if of_batch and each < GONE else others for each in some_indexes]
        self._share(
            batch, [choice[i % len(choice)] for choice, i in zip(picks, some_indexes, strict=True)], fence, outcome
        )

    @often(
        6,
        index=indexes,
        fence=draw.sampled_from([1, 2]),
        some_indexes=some_indexes,
        tail=draw.sampled_from([True, True, False]),
    )
    def part(self, index, fence, some_indexes, tail):
        """Split off the last calls of a batch, or some calls, sometimes with other jobs."""
        claimed = [job for job in self.reference.jobs.values() if job.callers and job.state == "claimed"]
        if claimed and index < GONE:
            batch = claimed[index % len(claimed)]
            batch, fence = batch.id, batch.fence if index % 7 else fence
        else:
            batch, fence = self.pick_batch(index, fence)
        of_batch = [*self.reference.jobs[batch].callers] if batch in self.reference.jobs else []
        ids = of_batch[1 + some_indexes[0] % 2 :]
        if not tail:
            others = [*of_batch, *self.reference.jobs, "no-job"]
            ids = [others[each % len(others)] for each in some_indexes]
        self._part(batch, ids, fence)

    def _part(self, batch, ids, fence):
        reply = self.reference.split_batch(batch, ids, fence=fence or 0, now_us=self.now_us)
        self.step("split_batch", [reply.calls, Named(reply.unfilled)], *ids, batch=batch, fence=fence or 0)
        self.compare(reply.unfilled)

    def _share(self, batch, ids, fence=None, outcome="acked"):
        left = self.reference.ack_batch_reports(batch, ids, fence=fence, outcome=outcome, now_us=self.now_us)
        self.step("ack_batch_reports", left, *ids, batch=batch, fence="" if fence is None else fence, outcome=outcome)
        self.compare()

    @often(1, type_=types, some_indexes=some_indexes)
    def purge(self, type_, some_indexes):
        known = [*self.reference.jobs, "no-job"]
        waiting = [job.id for job in self.reference.jobs.values() if job.state == "scheduled"] or known
        picks = [waiting if index < GONE else known for index in some_indexes]
        self._purge(type_, [choice[index % len(choice)] for choice, index in zip(picks, some_indexes, strict=True)])

    @often(
        6,
        some_indexes=some_indexes,
        type_=draw.sampled_from([None, None, *TYPES]),
        on_demand=draw.sampled_from([None, None, None, True, False]),
        priority=draw.sampled_from([None, None, 0, 5, 10]),
    )
    def move(self, some_indexes, type_, on_demand, priority):
        """Change the type, mode or priority of waiting jobs, sometimes of other jobs."""
        waiting = [job.id for job in self.reference.jobs.values() if job.state in ("pending", "scheduled", "merged")]
        others = [*self.reference.jobs, "no-job"]
        picks = [waiting if waiting and index < GONE else others for index in some_indexes]
        ids = [choice[index % len(choice)] for choice, index in zip(picks, some_indexes, strict=True)]
        given = {"type_": type_, "on_demand": on_demand, "priority": priority}
        reply = self.reference.move(ids, **given, now_us=self.now_us)
        self.step(
            "move",
            [Named(reply.unfilled), reply.served, *(part for each in reply.found for part in each)],
            *ids,
            new_type="" if type_ is None else encode_part(type_),
            new_mode="" if on_demand is None else DEMAND if on_demand else QUEUED,
            new_priority="" if priority is None else priority,
        )
        self.compare(reply.unfilled)

    @often(2, indexes=some_indexes)
    def replay(self, indexes):
        self._replay(self.pick_dead(indexes))

    def _replay(self, ids):
        more, replayed = self.reference.replay(ids, now_us=self.now_us)
        self.step("replay", [Named(more), 0, *replayed], *ids)
        self.compare(more)

    @often(1, indexes=some_indexes)
    def lose_a_message(self, indexes):
        """Delete the message of a dead letter, as another client could."""
        for job_id in self.pick_dead(indexes):
            job = self.reference.jobs.get(job_id)
            if job and job.state == "dead" and job.message is not None:
                job.message = None
                self.call("UNLINK", KEYS.key("message", job_id), reply=1)
        self.compare()

    @often(1, indexes=some_indexes)
    def drop(self, indexes):
        ids = self.pick_dead(indexes)
        self.step("drop", self.reference.drop(ids, now_us=self.now_us), *ids)
        self.compare()
