"""The moves of a server and the reference, from an empty fleet to a fleet without workers and jobs."""

from celery_affinity.schema.constants import MAX_PURGED

from . import draw
from .both import moves
from .stories import Stories
from .vocabulary import (
    SECOND_US,
    WORKERS,
    preferences,
    slots,
    some_settings,
    some_types,
    turns_of_tenants,
)

STEPS_IN_A_RUN = 100  # the state grows with the steps, and with it the cost of a step


class Conformance(Stories):
    """The moves of the server and the reference."""

    moves = moves

    def begin(self, choices):
        """Return the first move, which creates a fleet."""
        fleet = draw.lists(draw.tuples(some_types, slots), min_size=2, max_size=5)
        return "enter", {
            "fleet": fleet(choices),
            "goes_on": draw.booleans()(choices),
            "has_bursts": draw.sampled_from([False, False, True])(choices),
            "is_full": draw.sampled_from([False, False, False, True])(choices),
            "given_settings": some_settings(choices) | turns_of_tenants(choices) | preferences(choices),
        }

    def enter(self, fleet, goes_on, has_bursts, is_full, given_settings):
        self.goes_on, self.is_full = goes_on, is_full
        self.has_bursts = has_bursts  # bursts exceed one invocation, and slow down every later step
        for worker, (given, number) in zip(WORKERS, fleet, strict=False):
            self._join(worker, given, number, 0, given_settings)

    def see_all_end(self):
        self.full_next = self.is_full = self.goes_on = False
        self._configure({"limits": " ", "reserve": " ", "tenants": " ", "tenant_turns": "age", "keep_us": "60000000"})
        self._configure({"placement": "idle", "locality_bonus": "0", "stretch": "0", "target_wait_us": "256000000"})
        for what in [*self.reference.pauses]:
            self._resume(what)
        for worker in sorted(self.reference.workers):
            self._leave(worker)
        for list_, waiting in self.reference.lists.items():
            if waiting:
                self.call("UNLINK", list_, reply=1)
                waiting.clear()
        for type_ in sorted({job.type for job in self.reference.jobs.values()}):
            self._purge(type_, self._scheduled(type_))
            # There may be hundreds, or calls that became due in between may have formed a batch.
            while self._scheduled(type_):
                self._purge(type_, self._scheduled(type_))
        for app in [*self.reference.recurring_of]:
            self._stop([*self.reference.recurring_of[app]], app)
        self._stop([*self.reference.recurring])
        for batch in [each for each in self.reference.unreported if self.reference.jobs[each].callers]:
            self._share(batch, [*self.reference.jobs[batch].callers])
        self._tell_all()
        ids = list(self.reference.jobs)
        self.step("drop", self.reference.drop(ids, now_us=self.now_us), *ids)
        known_us = max([0, *(job.forgotten_us or 0 for job in self.reference.jobs.values())]) - self.now_us
        self.pass_time(max(0, known_us) + 64 * SECOND_US)
        if self.reference.rates or self.reference.recounts or self.reference.ended:
            self.pass_time(max(0, *self.reference.rates.values(), self.now_us) - self.now_us)
            self.tick()
        self.compare()

    def _scheduled(self, type_):
        jobs = self.reference.jobs.values()
        return [job.id for job in jobs if job.type == type_ and job.state == "scheduled"][:MAX_PURGED]

    def _tell_all(self):
        while self.reference.unreported:  # each invocation deletes some calls of a batch
            ids = [each for each in self.reference.jobs if each in self.reference.unreported]
            self.step("ack_report", self.reference.ack_report(ids, now_us=self.now_us), *ids, how="told", app="")
