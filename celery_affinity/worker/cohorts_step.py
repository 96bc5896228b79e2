"""The bootstep of a worker whose app has cohorts: a seat in the cohort of each type that the worker consumes."""

from typing import TYPE_CHECKING, Any

from kombu.asynchronous.hub import Hub

from ..client.revokes import Revoked
from ..log_limit import UNLIMITED, limited_logger
from ..membership.held import Held
from ..membership.membership import Membership
from ..membership.shared_slots import SharedSlots
from ..membership.slot_mover import SlotMover
from ..rules.cohorts import DEFAULT
from ..rules.redis_keys import Keys
from . import introduction
from .cohort_slots import CohortSlots
from .rate_limits import RateLimits
from .seat import Seat
from .seats import Seats
from .step import AffinityStep

if TYPE_CHECKING:
    from .fleet_consumer import FleetConsumer

logger = limited_logger(__name__)


class CohortsStep(AffinityStep):
    """Takes a seat in each cohort, as `AffinityStep` joins the fleet. Further cohorts need another start of the worker.

    ``members`` is the membership in the first cohort whose server has answered, for commands that want one.
    """

    _mover: SlotMover | None = None

    def __init__(self, consumer: "FleetConsumer", **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._seats = Seats(self.settings, Keys.of_options(consumer.app.conf.broker_transport_options or {}))

    # -- bootstep

    def start(self, consumer: "FleetConsumer") -> None:
        self._channel = channel = consumer.task_consumer.channel
        types: dict[str, list[str]] = {}
        for queue in consumer.task_consumer.queues:
            if self.settings.schedules(queue.name):
                types.setdefault(self.settings.cohort_of(queue.name), []).append(queue.name)
        if self._mover is None:
            self._take_seats(list(types) or [DEFAULT])
        self.limits.begin()
        channel.inbox = self._seats
        for cohort, seat in self._seats.by_cohort.items():
            seat.start(channel, types.get(cohort, []))

    def _take_seats(self, cohorts: list[str]) -> None:
        consumer, seats = self._consumer, self._seats
        slots = SharedSlots(self.slots, cohorts)
        for at, cohort in enumerate(cohorts):
            its = CohortSlots(consumer, self.slots, slots, cohort, counts_unclaimed=at == 0)
            seats.by_cohort[cohort] = Seat(consumer, cohort, its, self, seats)
        self._limits = RateLimits(consumer, seats, seats)
        self._have_parts(seats, seats)
        self._mover = SlotMover(slots, seats.members, self.settings.heartbeat_interval)
        if len(cohorts) > 1:
            self._mover.start()

    def register_with_event_loop(self, consumer: "FleetConsumer", hub: Hub) -> None:
        for seat in self._seats.by_cohort.values():
            seat.run_with(hub)

    def _pause(self) -> None:
        for seat in self._seats.by_cohort.values():
            seat.pause()

    def shutdown(self, consumer: "FleetConsumer") -> None:
        """Leave all cohorts, after the pool has drained."""
        if self._mover is not None:
            self._mover.stop()
        for seat in self._seats.by_cohort.values():
            seat.close_loop()
        if self._returned_before is None:
            self._returned_before = self._returned
        have_left = [seat.leave() for seat in self._seats.by_cohort.values()]
        if all(have_left):
            logger.info(introduction.line_on_leaving(self._returned - self._returned_before), extra=UNLIMITED)

    def info(self, consumer: "FleetConsumer") -> dict[str, object]:
        """Return the facts that `inspect stats` shows."""
        shown = super().info(consumer)["affinity"]
        assert isinstance(shown, dict), "it is"
        shown["slots"] = self.slots.size()
        shown["cohorts"] = {
            name: {"worker": each.id, "slots": each.capacity.slots, "claims": len(each.claims.held())}
            for name, each in self._seats.members().items()
            if each is not None
        }
        return {"affinity": shown}

    # -- remote control

    @property
    def members(self) -> Membership:
        assert self._seats.taken, "a server has answered"
        return self._seats.taken[0]

    @property
    def memberships(self) -> list[Membership]:
        return self._seats.taken

    def _give_up(self) -> list[Held]:
        found: list[Held] = []
        for seat in self._seats.by_cohort.values():
            if seat.following is not None and seat.members is not None:
                seat.following.drop()
                found += seat.members.pause()
        return found

    def _on_revoked(self, revoked: Revoked) -> None:
        for each in self._seats.taken if hasattr(self, "_seats") else ():
            each.revoke(revoked)
