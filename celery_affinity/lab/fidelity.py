"""How true a replay is: which of the recorded claims it makes again, in the recorded order.

A claim is made again if the job gets a slot of the recorded profile (set of types), and if it does so in the recorded
order of that profile's claims: the largest number of claims that can be kept in order counts (the longest common
subsequence), so one job that comes late is one claim, and not all that follow. Claims of different profiles have no
order: their slots are not in each other's way.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .profiles import Profile, Profiles
from .schedule import Run, Schedule


@dataclass(frozen=True)
class Difference:
    """The first place where two schedules differ: the claims of *profile* that are the *nth*, from 0, in each.

    None: that schedule has no such claim.
    """

    profile: Profile
    nth: int
    recorded: Run | None
    replayed: Run | None


@dataclass(frozen=True)
class Fidelity:
    """*claims*: those recorded; *kept*: those that the replay made again in their order."""

    claims: int
    kept: int
    first_difference: Difference | None = None

    @property
    def share(self) -> float:
        return self.kept / self.claims if self.claims else 1.0


def compared(recorded: Schedule, replayed: Schedule) -> Fidelity:
    ours, theirs = _by_profile(recorded), _by_profile(replayed)
    kept = sum(_kept([run.number for run in runs], theirs.get(profile, ())) for profile, runs in ours.items())
    return Fidelity(len(recorded.runs), kept, _first_difference(ours, theirs))


def _by_profile(schedule: Schedule) -> dict[Profile, list[Run]]:
    profiles = Profiles(schedule.scenario.workers)
    found: dict[Profile, list[Run]] = {}
    for run in schedule.runs:
        found.setdefault(profiles.of(run), []).append(run)
    return found


def _kept(recorded: Sequence[int], replayed: Iterable[Run]) -> int:
    """Return the length of the longest common subsequence. Each job is in both at most once."""
    place_of = {number: place for place, number in enumerate(recorded)}
    ends: list[int] = []  # the smallest last place of a subsequence of each length
    for run in replayed:
        place = place_of.get(run.number)
        if place is not None:
            length = bisect_left(ends, place)
            ends[length : length + 1] = [place]
    return len(ends)


def _first_difference(ours: dict[Profile, list[Run]], theirs: dict[Profile, list[Run]]) -> Difference | None:
    found = [
        _difference(profile, ours.get(profile, []), theirs.get(profile, [])) for profile in ours.keys() | theirs.keys()
    ]
    return min((each for each in found if each is not None), key=_when, default=None)


def _difference(profile: Profile, ours: Sequence[Run], theirs: Sequence[Run]) -> Difference | None:
    for nth, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.number != other.number:
            return Difference(profile, nth, one, other)
    nth = min(len(ours), len(theirs))
    if len(ours) == len(theirs):
        return None
    return Difference(profile, nth, ours[nth] if nth < len(ours) else None, theirs[nth] if nth < len(theirs) else None)


def _when(difference: Difference) -> tuple[int, Profile]:
    runs = (difference.recorded, difference.replayed)
    return min(run.claimed_us for run in runs if run is not None), difference.profile
