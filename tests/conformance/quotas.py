"""Moves of a tenant with a maximum for which more jobs wait, and that has room for several, or just none."""

from itertools import count

from celery_affinity.rules.ahead import NOTHING

from . import draw
from .both import Both, often, rules_of
from .vocabulary import SECOND_US, TYPES, WORKERS

_quotas = draw.sampled_from(
    ["*=max:6", "*=max:6", "*=max:4", "*=max:3", "*=max:none", "*=max:6,min:1", "*=max:none,min:2"]
)
_turns = draw.sampled_from(["age", "age", "share"])


class Quotas(Both):
    """Moves of a tenant for which more jobs wait than may run at once."""

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
        """Jobs of a tenant wait and get slots; then other quotas or a pause are in force, and jobs come and end."""
        worker, given = WORKERS[index], self._of_one_tenant(mark)
        for what in [*self.reference.pauses]:
            self._resume(what)
        for other in [*self.reference.workers]:
            self._leave(other)
        for type_ in TYPES[:2]:
            self._purge(type_)
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

    def _of_one_tenant(self, mark):
        ids = (f"t{next(self.job_numbers)}{mark}" for _ in count())
        return (job_id for job_id in ids if "tenant%3Aa " in rules_of(job_id))

    def _end_one(self, worker, *, inline):
        claim = next(iter(self.reference.workers[worker].claims.items()), None)
        if claim is not None:
            self.released = worker, str(next(self.sequences)), [(*claim, "acked")], inline, NOTHING
            self._release(*self.released)
