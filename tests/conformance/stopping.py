"""Moves in which running jobs are preempted for tenants below their minimum."""

from itertools import count

from celery_affinity.policy.slot_math import NOTHING
from celery_affinity.schema.rules_codec import decode_rules

from . import draw
from .both import Both, often, rules_of
from .mirror import KEYS, payload
from .vocabulary import SECOND_US, TYPES, WORKERS, indexes, stops

#: The preemption delays of the longer moves.
_SOON = {"preemption_delay_us": "1000000", "preemption_grace_us": "1000000"}


class Stopping(Both):
    """Moves in which running jobs are preempted for tenants below their minimum."""

    @often(2, index=indexes, said=stops)
    def say_what_stops(self, index, said):
        """A worker reports which tasks it can stop."""
        worker = self.reference.workers.get(self.pick_worker(index))
        if worker is not None:
            self._say_what_stops(worker, said)
            self.compare()

    def _say_what_stops(self, worker, said):
        worker.stops = said
        name = KEYS.key("worker", worker.id)
        self.call("HSET", name, "stops", said) if said else self.call("HDEL", name, "stops")

    def _all_run(self, worker):
        """A worker syncs, with all its jobs running, each since another time."""
        held = [(*each, number * 1_000) for number, each in enumerate(worker.claims.items())]
        self._sync(worker.id, held, worker.slots, 0, draining=False)

    @often(2, index=indexes)
    def run_all(self, index):
        worker = self.reference.workers.get(self.pick_worker(index))
        if worker is not None and worker.accepting:
            self._all_run(worker)

    @often(
        4,
        type_=draw.sampled_from(TYPES[:2]),
        slots=draw.integers(1, 3),
        minimum=draw.integers(1, 3),
        priorities=draw.lists(draw.sampled_from([0, 0, 5]), min_size=4, max_size=4),
        said=draw.sampled_from(["force", "force", "force", "t0"]),
        settings=draw.sampled_from(
            [{}, {}, {"preemption_exempt_us": "0"}, {"preemption_max": "1"}, {"preemption_max": "0"}]
        ),
        kinds=draw.sampled_from(["stoppable", "stoppable", "stoppable", "any", "acked", "beside a reserve"]),
        turns=draw.sampled_from(["age", "age", "share"]),
        then=draw.sampled_from(["nothing", "stop", "stop", "stop", "need none"]),
    )
    def begin_to_need_slots(self, type_, slots, minimum, priorities, said, settings, kinds, turns, then):
        """All slots of a type run preemptible jobs; then a tenant falls below its minimum, and waits.

        *kinds*: variants in which some jobs are not preemptible, the first was acked, or a slot is kept free.
        """
        worker = self._place_for(type_)
        if worker is None:
            return
        quotas = f"d=max:none,min:{minimum} b=max:none,min:1"
        self._configure({"tenants": quotas, "tenant_turns": turns, "limits": ""} | _SOON | settings)
        self._configure({"reserve": "*:on_demand=1" if kinds == "beside a reserve" else ""})
        for what in [*self.reference.pauses]:
            self._resume(what)
        for other in [each for each in self.reference.workers.values() if type_ in each.types]:
            self._leave(other.id)
        self._purge(type_)
        self._join(worker, (type_,), slots, 0, {})
        given = _first(
            self._ids(),
            lambda rules: (kinds == "any" or decode_rules(rules).is_preemptible) and "tenant%3Ad " not in rules,
            4,
        )
        for number, (job_id, priority) in enumerate(zip(given, priorities, strict=True)):
            self._publish(job_id, type_, number == 3 and kinds != "beside a reserve", priority, 0)
        self.compare()
        if kinds == "acked":
            self._ack(worker, [*self.reference.workers[worker].claims.items()][:1])
        self._all_run(self.reference.workers[worker])
        self._say_what_stops(self.reference.workers[worker], said)
        for job_id in _first(self._ids(), lambda rules: "tenant%3Ad " in rules, 2):
            self._publish(job_id, type_, False, 0, 0)
        self.compare()
        self.pass_time(SECOND_US)
        self.tick()
        if then == "need none":
            self._purge(type_)
            self.tick()
        for stop in [*self.reference.stop_orders.values()] if then == "stop" else ():
            self._answer(stop, "preempted 41000000", inline=False)

    def _place_for(self, type_):
        """Return a worker that may join once the workers of *type_* have left, or None if all others are there."""
        others = {each.id for each in self.reference.workers.values() if type_ not in each.types}
        return next((each for each in WORKERS if each not in others), None)

    def _ids(self):
        return (f"d{next(self.job_numbers)}$" for _ in count())

    @often(6, index=indexes, how=draw.sampled_from(["preempted 41000000"] * 4 + ["returned", "acked", "unread"]))
    def answer_a_stop(self, index, how):
        """A worker reads a stop order and reports how the job ended, or leaves the message unread."""
        orders = [*self.reference.stop_orders.values()]
        if not orders:
            return
        stop = orders[index % len(orders)]
        if how == "unread":
            self.tick()
        else:
            self._answer(stop, how, inline=bool(index % 2))

    def _answer(self, stop, how, *, inline):
        worker = self.reference.workers[stop.worker]
        while stop.sign in worker.inbox:
            self.call("RPOP", KEYS.key("inbox", worker.id), reply=payload(worker.inbox.pop(0)))
        self.released = worker.id, str(next(self.sequences)), [(stop.job_id, stop.fence, how)], inline, NOTHING
        self._release(*self.released)

    @often(3, later_us=draw.sampled_from([SECOND_US, 6 * SECOND_US, 15 * SECOND_US, 60 * SECOND_US]))
    def tick_while_jobs_are_stopped(self, later_us):
        if self.reference.stop_orders:
            self.pass_time(later_us)
            self.tick()


def _first(ids, wanted, number):
    found = []
    for job_id in ids:
        if wanted(rules_of(job_id)):
            found.append(job_id)
        if len(found) == number:
            return found
    raise AssertionError("there are ids without end")
