"""Jobs that match filters: cancelled, or given another type, priority or mode, up to 5,000 in a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from ...errors import OptionError
from ...observe.jobs import Job
from ...operate import many_jobs
from ...operate.choosing import Choice, choose_in, together
from ...operate.filters import Filters
from ...operate.many_jobs import Done
from ...operate.moving import Move, check_cohort
from ...rules.numbers import LONGEST_S
from ...server.scheduler import Scheduler
from ..described import errors, replies
from ..replies import RefusedError, reply
from ..site import Site
from ..values import check
from .jobs import Moving, wish_of

#: Largest number of jobs on which a request acts, and of pages of 1,000 jobs that it reads of a state: about 2 s and
#: 5 s, of the 10 s after which a request is given up.
_MOST, _MOST_PAGES = 5_000, 50

#: States of jobs that can be moved, and cancelled.
_WAIT = ("pending", "scheduled")
_HAVE_NOT_ENDED = (*_WAIT, "claimed", "running")


@dataclass(frozen=True)
class Acted:
    """How many jobs were *found*, how many *calls* they are, and the first ones, *shown*; *more*: there may be others.

    *done*: jobs that were changed, or calls that were cancelled; *left*: how many others there are of each state.
    *down*: why nothing was done in cohorts.
    """

    found: int
    calls: int
    more: bool
    shown: list[Job]
    done: int
    left: dict[str, int]
    warning: str | None
    down: dict[str, str] | None = None


class Which:
    """The jobs that are meant, as the query says: at least one filter, beside the cohort."""

    def __init__(
        self,
        state: str | None = None,
        type: str | None = None,
        task: str | None = None,
        stamp: str | None = None,
        key: str | None = None,
        older_than_s: Annotated[float | None, Query(gt=0, le=LONGEST_S)] = None,  # 0 would mean all jobs
        newer_than_s: Annotated[float | None, Query(gt=0, le=LONGEST_S)] = None,
        argument: str | None = None,
        cohort: str | None = None,
        dry_run: bool = False,
    ) -> None:
        self.state, self.cohort, self.dry_run = state, cohort, dry_run
        self.filters = Filters(None, type, task, stamp, key, older_than_s, newer_than_s, argument)
        if state is None and self.filters.is_empty:
            names = ", ".join(each.name for each in fields(Filters))
            raise RefusedError(400, f"name at least one filter: {names}")

    def states(self, accepted: Sequence[str]) -> Sequence[str]:
        if self.state is None:
            return accepted
        if self.state not in accepted:
            raise RefusedError(400, f"state must be one of {', '.join(accepted)}, got: {self.state[:100]!r}")
        return (self.state,)


_Which = Annotated[Which, Depends()]


def add(api: APIRouter, site: Site) -> None:
    acted = {**replies(Acted, 409, text="With dry_run: nothing was changed."), **replies(Acted, status=202)}

    @api.delete(
        "/api/jobs", summary="Revoke the jobs that match; with dry_run say how many", status_code=202, responses=acted
    )
    async def cancel(request: Request, which: _Which, terminate: bool = False) -> Response:
        check(site, request, which.filters.argument is not None)
        states = which.states(_HAVE_NOT_ENDED)
        if which.state is None and not terminate:
            states = states[:-1]

        def act(scheduler: Scheduler, choice: Choice) -> Done:
            with site.broker.connection() as connection:
                return many_jobs.cancel(site.app, scheduler, choice.chosen, terminate, connection=connection)

        return reply(await site.foreign(_act, site, which, states, act), 200 if which.dry_run else 202)

    @api.patch(
        "/api/jobs",
        summary="Give the waiting jobs that match another type, priority or mode",
        status_code=202,
        responses={**acted, **errors(422)},
    )
    async def move(request: Request, which: _Which, moving: Moving) -> Response:
        check(site, request, which.filters.argument is not None)
        states = which.states(_WAIT)
        try:
            wish = wish_of(moving)
        except OptionError as exc:
            raise RefusedError(422, str(exc)) from exc

        def act(scheduler: Scheduler, choice: Choice) -> Done:
            return many_jobs.move(site.app, scheduler, choice.chosen, wish)

        return reply(await site.foreign(_act, site, which, states, act, wish), 200 if which.dry_run else 202)


def _act(
    site: Site,
    which: Which,
    states: Sequence[str],
    act: Callable[[Scheduler, Choice], Done],
    wish: Move | None = None,
) -> Acted:
    filters = which.filters
    with site.broker.reach() as fleet:
        names = fleet.serving(filters.type, which.cohort)
        asked = choose_in(fleet, lambda reader: filters.of(site.app, reader), names, states, _MOST, _MOST_PAGES)
        choice = together(asked, fleet.is_split)
        if choice.more and not choice.chosen:
            raise RefusedError(
                409, f"none of the first {_MOST_PAGES * 1000:,} jobs matches: name the type, or the state"
            )
        check_cohort(site.app, wish, [name for name, each in asked.answers.items() if each.chosen])
        done, lost = (Done(0, {}), {}) if which.dry_run else many_jobs.in_each(fleet, asked, act)
    return Acted(
        len(choice.chosen), choice.calls, choice.more, choice.shown, *done, down={**asked.down, **lost} or None
    )
