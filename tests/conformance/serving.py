"""Moves in which workers join, live and leave."""

from . import draw
from .both import Both, often
from .vocabulary import (
    APPS,
    TYPES,
    WORKERS,
    indexes,
    others,
    slots,
    some_runs,
    some_settings,
    some_sums,
    some_types,
    worker_priorities,
)


class Serving(Both):
    """Moves in which workers join, live and leave."""

    @often(
        5,
        worker=draw.sampled_from(WORKERS),
        given=some_types,
        slots=slots,
        other=others,
        app=draw.sampled_from(APPS),
        given_settings=some_settings,
        as_before=draw.booleans(),
        priority=worker_priorities,
    )
    def join(self, worker, given, slots, other, app, given_settings, as_before, priority):
        if as_before:
            given_settings = self.reference.settings.conf_of.get(app, {}) | given_settings
        self._join(worker, given, slots, other, given_settings, app, priority)

    @often(
        1,
        worker=draw.sampled_from(WORKERS),
        said=draw.lists(draw.tuples(draw.sampled_from(APPS), draw.sampled_from(["1", "2"])), min_size=3, max_size=4),
    )
    def versions_alternate(self, worker, said):
        """Join and leave, like old and new versions of apps during a rollout."""
        for app, deliveries in said:
            self._leave(worker)
            self._join(worker, TYPES[:1], 1, 0, {"max_deliveries": deliveries}, app)

    @often(
        8,
        index=indexes,
        forgotten=draw.sampled_from([(), (0,), (1, 3), (0, 1, 2, 3, 4)]),
        stale=draw.lists(indexes, max_size=2),
        slots=draw.sampled_from([None, None, None, None, None, 0, 1, 2, 4]),
        other=others,
        draining=draw.sampled_from([False] * 4 + [True]),
    )
    def sync(self, index, forgotten, stale, slots, other, draining):
        worker = self.pick_worker(index)
        known = self.reference.workers.get(worker)
        held = [
            (*each, number * 1_000_000 - 1)
            for number, each in enumerate(known.claims.items() if known else ())
            if number % 5 not in forgotten
        ]
        held += [(*self.granted[-1 - index % len(self.granted)][1:], 0) for index in stale if self.granted]
        now_slots = slots if slots is not None or not known else known.slots
        self._sync(worker, held, now_slots or 0, other, draining)

    @often(2, index=indexes, beyond_us=draw.sampled_from([-1, 0, 1]))
    def sync_one_heartbeat_later(self, index, beyond_us):
        """Sync without claims when the worker's last claim is just old enough to be queried."""
        known = self.reference.workers.get(self.pick_worker(index))
        if known and known.claims:
            claimed_us = max(self.reference.jobs[job_id].claimed_us for job_id in known.claims)
            heartbeat_us = int(self.reference.settings.get("heartbeat_interval_us"))
            self.pass_time(max(0, claimed_us + heartbeat_us + beyond_us - self.now_us))
            self._sync(known.id, [], known.slots, known.other, draining=False)

    @often(5, index=indexes, sums=draw.lists(some_sums, max_size=3), runs=draw.lists(some_runs, max_size=2))
    def count(self, index, sums, runs):
        self.counted = self.pick_worker(index), next(self.pages), sums, runs
        self._count(*self.counted)

    @often(2, earlier=draw.sampled_from([0, 0, 1]))
    def count_again(self, earlier):
        """Repeat an invocation whose reply was lost, or an older one."""
        if self.counted:
            worker, number, sums, runs = self.counted
            self._count(worker, number - earlier, sums, runs)

    @often(5, index=indexes, loop_runs=draw.booleans())
    def heartbeat(self, index, loop_runs):
        self._heartbeat(self.pick_worker(index), loop_runs)

    @often(2, index=indexes)
    def recover(self, index):
        self._recover(self.pick_worker(index))

    @often(2, index=indexes)
    def leave(self, index):
        self._leave(self.pick_worker(index))
