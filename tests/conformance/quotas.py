"""Moves of tenants: one has a maximum and more waiting jobs; several take turns by shares of their use."""

from itertools import count

from celery_affinity.policy.slot_math import NOTHING
from celery_affinity.scheduler.messages import TypeMetricsDelta

from . import draw
from .both import Both, often, rules_of
from .vocabulary import SECOND_US, TYPES, WORKERS

_quotas = draw.sampled_from(
    ["*=max:6", "*=max:6", "*=max:4", "*=max:3", "*=max:none", "*=max:6,min:1", "*=max:none,min:2"]
)
_turns = draw.sampled_from(["age", "age", "share"])


#: Usual run time of a type in µs, and the deviation of a job.
_USUAL_US = 4 * SECOND_US
_took_us = draw.sampled_from([0, 1, SECOND_US, SECOND_US, 3 * SECOND_US, _USUAL_US, 9 * SECOND_US])


class Quotas(Both):
    """Moves of tenants with more waiting jobs than they may run."""

    @often(
        4,
        index=draw.integers(0, len(WORKERS) - 1),
        slots=draw.integers(1, 4),
        lanes=draw.lists(
            draw.tuples(draw.sampled_from(TYPES[:2]), draw.sampled_from([0, 0, 5])), min_size=5, max_size=9
        ),
        quotas=draw.lists(_quotas, min_size=2, max_size=2),
        turns=draw.lists(_turns, min_size=2, max_size=2),
        mark=draw.sampled_from(["$", "$", "$", "~$"]),
        pause=draw.sampled_from([False, False, False, True]),
        inline=draw.booleans(),
    )
    def fill_a_tenant(self, index, slots, lanes, quotas, turns, mark, pause, inline):
        """A tenant's jobs wait and get slots; then quotas or a pause change, and jobs are published and end."""
        worker, given = WORKERS[index], self._of_one_tenant(mark)
        self._begin_anew()
        self._configure({"limits": "", "reserve": "", "tenants": quotas[0], "tenant_turns": turns[0]})
        for type_, priority in lanes:
            self._publish(next(given), type_, False, priority, 0)
        self.compare()
        self._join(worker, TYPES[:2], slots, 0, {})
        self._end_one(worker, inline=inline)
        if pause:
            self.pause("key:tenant%3Aa", SECOND_US)
        self._configure({"tenants": quotas[1], "tenant_turns": turns[1]})
        self._end_one(worker, inline=inline)
        for type_, priority in lanes[:3]:
            self._publish(next(given), type_, False, priority, 0)
        self.compare()
        self._end_one(worker, inline=inline)

    @often(
        3,
        index=draw.integers(0, len(WORKERS) - 1),
        slots=draw.integers(1, 3),
        half_life_us=draw.sampled_from([0, 0, 0, 5 * SECOND_US]),
        jobs=draw.integers(4, 10),
        takes_us=draw.lists(_took_us, min_size=3, max_size=8),
        mark=draw.sampled_from(["$", "$", "&"]),
        priority_percentage=draw.sampled_from([100, 100, 50]),
        late=draw.integers(0, 3),
    )
    def account_for_tenants(self, index, slots, half_life_us, jobs, takes_us, mark, priority_percentage, late):
        """Jobs of several tenants take longer or shorter than usual; turns follow the use of each."""
        worker = WORKERS[index]
        self._begin_anew()
        shares = {"tenants": "", "tenant_turns": "share", "tenant_half_life_us": str(half_life_us)}
        self._configure({"limits": "", "reserve": "", "priority_percentage": str(priority_percentage), **shares})
        self._join(worker, TYPES[:2], slots, 0, {})
        self._count(worker, next(self.pages), [TypeMetricsDelta(TYPES[0], {}, 10, 10 * _USUAL_US, f"{_USUAL_US} 10 1")])
        given = [f"t{next(self.job_numbers)}{mark}" for _ in range(jobs + late)]
        for job_id in given[:jobs]:
            self._publish(job_id, TYPES[0], False, 0, 0)
        self.compare()
        for nth, took_us in enumerate(takes_us):
            self.pass_time(took_us)
            if nth < late:
                self.compare(self._publish(given[jobs + nth], TYPES[0], False, 0, 0))  # it may end next
            self._end_one(worker, inline=True)

    def _begin_anew(self):
        """Remove all workers and pauses, and the waiting jobs of two types."""
        for what in [*self.reference.pauses]:
            self._resume(what)
        for other in [*self.reference.workers]:
            self._leave(other)
        for type_ in TYPES[:2]:
            self._purge(type_)

    def _of_one_tenant(self, mark):
        ids = (f"t{next(self.job_numbers)}{mark}" for _ in count())
        return (job_id for job_id in ids if "tenant%3Aa " in rules_of(job_id))

    def _end_one(self, worker, *, inline):
        claim = next(iter(self.reference.workers[worker].claims.items()), None)
        if claim is not None:
            self.released = worker, str(next(self.sequences)), [(*claim, "acked")], inline, NOTHING
            self._release(*self.released)
