"""A worker's places in several cohorts: what Celery does once is done by each of them, or by the one concerned."""

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

from ..log_limit import limited_logger
from ..membership.held import Held, tag_of
from ..membership.membership import Membership
from ..membership.reporting import Reporting
from ..rules.redis_keys import Keys
from ..rules.settings import Settings
from ..server.replies import Claim
from .seat import Seat

logger = limited_logger(__name__)


class Seats:
    """The *seats* of a worker, by cohort: the inbox of the channel that Celery consumes on.

    Nothing comes to that inbox: each seat reads its own (`inbox_reader`).
    """

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self.by_cohort: dict[str, Seat] = {}
        self.worker = uuid.uuid4().hex
        self.key = keys.key("inbox", self.worker)
        self.schedules = settings.schedules
        self._settings = settings

    def members(self) -> dict[str, Membership | None]:
        """Return the membership in each cohort; None: its server has not answered yet."""
        return {name: seat.members for name, seat in tuple(self.by_cohort.items())}

    @property
    def taken(self) -> list[Membership]:
        """The memberships of all seats that were taken."""
        return [each for each in self.members().values() if each is not None]

    def of(self, tag: str) -> Membership | None:
        """Return the membership that holds a claim."""
        return next((each for each in self.taken if each.claims.find(tag) is not None), None)

    # -- the channel's inbox

    @property
    def drained(self) -> bool:
        return any(each.claims.drained for each in self.taken)

    def reporting_of(self, tag: str) -> Reporting:
        found = self.of(tag)
        return (self.taken[0] if found is None else found).reporting

    def serve(self, queue: str, serves: bool) -> None:
        cohort = self._settings.cohort_of(queue)
        seat = self.by_cohort.get(cohort)
        if seat is None:
            logger.error("Queue %r is not served: this worker was started without types of cohort %r", queue, cohort)
        elif seat.following is not None:
            seat.following.serve(queue, serves)

    def receive(self, claim: Claim) -> None:
        raise AssertionError("no server knows this inbox")

    def obey(self, sign: list[str]) -> None:
        raise AssertionError("no server knows this inbox")

    def loop_ran(self) -> None:
        for each in self.taken:
            each.loop_ran()

    # -- as `rate_limits` and `fleet_consumer` see one membership

    @property
    def claims(self) -> "Seats":
        return self

    @property
    def recalled(self) -> "RecalledOfAny":
        return RecalledOfAny(self.taken)

    def find(self, tag: str) -> Held | None:
        found = self.of(tag)
        return None if found is None else found.claims.find(tag)

    def lend(self, waiting: Counter[str], avoided: frozenset[str] = frozenset()) -> None:
        for each in self.taken:
            types = each.capacity.types
            each.lend(
                Counter({type_: n for type_, n in waiting.items() if type_ in types}), avoided.intersection(types)
            )

    def give_back(self, tags: Sequence[str]) -> None:
        for each in self.taken:
            its = [tag for tag in tags if each.claims.find(tag) is not None]
            if its:
                each.give_back(its)

    def room(self) -> int:
        """Return how many jobs the pool could start beside those that have a slot or wait for a rate limit."""
        return sum(seat.following.room() for seat in self.by_cohort.values() if seat.following is not None)

    def ask(self) -> None:
        for each in self.taken:
            each.ask()

    @property
    def reporting(self) -> SimpleNamespace:
        """What `reconnecting` asks of: the times that a server came back."""
        return SimpleNamespace(returns=sum(each.reporting.returns for each in self.taken))

    def wake(self) -> bool:
        have_loops = [seat.host.wake() for seat in self.by_cohort.values()]
        return any(have_loops)


class RecalledOfAny:
    """The pauses that concern claims of *members*."""

    def __init__(self, members: Iterable[Membership]) -> None:
        self._members = [each for each in members if each.recalled]

    def __bool__(self) -> bool:
        return bool(self._members)

    def has(self, job_id: str, type_: str, fence: str) -> bool:
        return any(
            each.recalled.has(job_id, type_, fence)
            for each in self._members
            if each.claims.find(tag_of(job_id, fence)) is not None
        )
