"""Routes for rules at run time: tenants and quotas, settings, pauses, recurring calls and dead letters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from ..dispatcher.recurring import fire_call
from ..errors import CohortDownError, refuse
from ..options.did_you_mean import closest_question
from ..options.type_names import ACCEPTED, is_type_name
from ..publishing.app_config import settings_of
from ..reports.dead_letters import LetterDetails, LetterFilter, find_letters, shown_letter
from ..reports.recurring import RecurringRow, recurring_rows, without_arguments
from ..reports.report import rows_of_all
from ..reports.tenants import TenantStatus, tenants_of_cohort
from ..reports.type_limits import PauseInForce, has_no_pause, is_without_effect, pause_address, pauses_of_cohort
from ..scheduler import runtime_settings
from ..scheduler.cohorts import Cohorts
from ..scheduler.messages import DueCall
from ..scheduler.runtime_settings import RuntimeSetting
from ..scheduler.scheduler import Scheduler
from ..schema.keys import Kind
from ..schema.values import MAX_DURATION_S
from ..settings.cohorts import DEFAULT
from ..settings.tenants import Tenant
from .replies import (
    RefusedError,
    cohorts_down_header,
    error_responses,
    json_reply,
    model_of,
    reply_responses,
    rows_reply,
)
from .site import Site, values_hidden_reason


class QuotaChange(BaseModel, extra="forbid", strict=True):
    """The changes to a quota. Omitted values stay unchanged; null for *max* removes the maximum."""

    max: int | None = None
    min: int = 0
    weight: int = 1


def add_tenant_routes(api: APIRouter, site: Site) -> None:
    app_settings = settings_of(site.app)

    @api.patch(
        "/api/tenants/{name:path}",
        summary="Change the quota of a tenant; * is each tenant that is not named",
        responses=reply_responses(Tenant, 404, text="The quota in force."),
    )
    async def change(name: str, quota: QuotaChange) -> Response:
        fields = quota.model_dump(exclude_unset=True)
        if not fields:
            raise RefusedError(400, "give at least one of max, min and weight")
        outcome = await site.with_fleet(
            Cohorts.each, lambda one: runtime_settings.change_quota(one, app_settings, name, fields)
        )
        return json_reply(outcome.answers[DEFAULT][name], headers=cohorts_down_header(outcome.down))

    @api.delete(
        "/api/tenants/{name:path}",
        summary="Remove the quota that was set for a tenant: the quota in app.conf applies again, or the quota of *",
        responses=reply_responses(list[TenantStatus], 404),
    )
    async def reset(name: str) -> Response:
        outcome = await site.with_fleet(Cohorts.each, lambda one: runtime_settings.reset_quota(one, app_settings, name))
        if not any(outcome.answers.values()):
            raise RefusedError(404, f"no quota is set for {name[:300]!r}")
        return rows_reply(await site.with_fleet(Cohorts.each, tenants_of_cohort))


def add_setting_routes(api: APIRouter, site: Site) -> None:
    app_settings = settings_of(site.app)

    @api.patch(
        "/api/settings",
        summary="Change settings: name -> value; null resets a setting to its value in app.conf",
        responses=reply_responses(list[RuntimeSetting], text="The settings that were changed."),
    )
    async def change(changes: dict[str, Any]) -> Response:
        if not changes:
            raise RefusedError(400, "name at least one setting")
        for name, value in changes.items():
            if not (value is None or isinstance(value, str | int | float)) or isinstance(value, bool):
                raise RefusedError(400, f"{name} must be a text, a number or null, got: {str(value)[:100]!r}")

        def both(scheduler: Scheduler) -> list[RuntimeSetting]:
            typed = {name: str(value) for name, value in changes.items() if value is not None}
            names = [name for name, value in changes.items() if value is None]
            changed = runtime_settings.change_settings(scheduler, app_settings, typed) if typed else []
            return [*changed, *(runtime_settings.reset_settings(scheduler, app_settings, names) if names else [])]

        return rows_reply(await site.with_fleet(Cohorts.each, both))


class PauseRequest(BaseModel, extra="forbid"):
    """A pause. *for_s* is the number of seconds after which it ends by itself; null for an unlimited pause."""

    reason: str = Field("", max_length=1000)
    for_s: float | None = Field(None, gt=0, le=MAX_DURATION_S)


class PauseTarget(PauseRequest):
    """A pause of the type or key *name*, or of all types, which have no name."""

    kind: Kind
    name: str = ""


@dataclass(frozen=True)
class PauseReply:
    """All pauses after a new one. *warning* is set if the new pause is of a type that no live worker serves.

    *down* has the reasons why nothing was paused in some cohorts.
    """

    pauses: list[PauseInForce]
    warning: str | None
    down: dict[str, str] | None = None


def add_pause_routes(api: APIRouter, site: Site) -> None:
    paused = reply_responses(PauseReply, status=202)
    resumed = reply_responses(list[PauseInForce], 409, status=202, text="The pauses that are left.")

    @api.post(
        "/api/pauses",
        summary="Pause a type, a key or all types: none of their jobs starts",
        status_code=202,
        responses=paused,
    )
    async def pause(pausing: PauseTarget) -> Response:
        return await _pause_target(site, pausing.kind, pausing.name, pausing)

    @api.delete(
        "/api/pauses", summary="End the pause of a type, of a key, or of all types", status_code=202, responses=resumed
    )
    async def resume(kind: Annotated[Kind, Query()], name: str = "") -> Response:
        return await _resume_target(site, kind, name)

    @api.post(
        "/api/types/{type_:path}/pause",
        summary="Pause a type: none of its jobs starts",
        status_code=202,
        responses={**paused, **error_responses(404)},
    )
    async def pause_type(type_: str, pausing: PauseRequest | None = None) -> Response:
        return await _pause_target(site, "type", type_, pausing or PauseRequest(reason="", for_s=None))

    @api.post(
        "/api/types/{type_:path}/resume",
        summary="End the pause of a type",
        status_code=202,
        responses={**resumed, **error_responses(404)},
    )
    async def resume_type(type_: str) -> Response:
        return await _resume_target(site, "type", type_)


async def _pause_target(site: Site, kind: Kind, name: str, given: PauseRequest) -> Response:
    address = _checked_address(kind, name)

    def begin(scheduler: Scheduler) -> str | None:
        scheduler.pause(address, for_s=given.for_s, why=given.reason)
        return is_without_effect(scheduler.reader, kind, name)

    def pause(fleet: Cohorts) -> PauseReply:
        outcome = fleet.each(begin, fleet.serving(name if kind == "type" else None))
        if not outcome.answers:
            raise CohortDownError(*next(iter(outcome.down.items())))
        pauses = rows_of_all(fleet.each(pauses_of_cohort))
        return PauseReply(pauses, next(iter(outcome.answers.values())), dict(outcome.down) or None)

    reply = await site.with_fleet(pause)
    return json_reply(reply, 202, cohorts_down_header(reply.down))


async def _resume_target(site: Site, kind: Kind, name: str) -> Response:
    address = _checked_address(kind, name)

    def resume(fleet: Cohorts) -> tuple[bool, list[PauseInForce], Mapping[str, str]]:
        names = fleet.serving(name if kind == "type" else None)
        ended = fleet.act_in_each(lambda scheduler: scheduler.resume(address), names)
        if ended.down and not any(ended.answers.values()):
            raise CohortDownError(*next(iter(ended.down.items())))
        return any(ended.answers.values()), rows_of_all(fleet.each(pauses_of_cohort)), ended.down

    was_paused, remaining, down = await site.with_fleet(resume)
    if not was_paused:
        raise RefusedError(409, has_no_pause(kind, name))
    return json_reply(remaining, 202, cohorts_down_header(down))


def _checked_address(kind: Kind, name: str) -> str:
    """Return the address of a target for server functions. Raises OptionError."""
    if kind == "type" and not is_type_name(name):
        raise refuse("type", ACCEPTED, name[:300])
    if kind == "key" and not name:
        raise refuse("name", "a key, a text that is not empty", name)
    if kind == "all" and name:
        raise refuse("name", "empty for all types", name[:300])
    return pause_address(kind, name)


@dataclass(frozen=True)
class RemoveReply:
    """The name of the *removed* recurring call. *declared_by* is the app whose setting declares it, if any."""

    removed: str
    declared_by: str | None


def add_recurring_routes(api: APIRouter, site: Site) -> None:
    changed = reply_responses(RecurringRow, 404, status=202)

    def one(row: RecurringRow, request: Request) -> Response:
        (shown,) = without_arguments([row]) if values_hidden_reason(site, request) else [row]
        return json_reply(shown, 202)

    @api.post(
        "/api/recurring/{name:path}/fire",
        summary="Make a recurring call now",
        status_code=202,
        responses=reply_responses(RecurringRow, 404, 409, status=202),
    )
    async def fire(request: Request, name: str) -> Response:
        row = await site.with_fleet(_find_recurring, name)
        if row.task not in site.app.tasks:
            raise RefusedError(409, f"the app has no task {row.task!r}, the task of recurring call {name!r}")
        await site.run_untrusted(_fire, site, row)
        return one(await site.with_fleet(_find_recurring, name), request)

    @api.post(
        "/api/recurring/{name:path}/pause",
        summary="Pause a recurring call until it is resumed",
        status_code=202,
        responses=changed,
    )
    async def pause(request: Request, name: str) -> Response:
        return one(await site.with_fleet(_suspend, name, True), request)

    @api.post(
        "/api/recurring/{name:path}/resume", summary="Resume a recurring call", status_code=202, responses=changed
    )
    async def resume(request: Request, name: str) -> Response:
        return one(await site.with_fleet(_suspend, name, False), request)

    @api.delete(
        "/api/recurring/{name:path}", summary="Remove a recurring call", responses=reply_responses(RemoveReply, 404)
    )
    async def remove(name: str) -> Response:
        return json_reply(await site.with_fleet(_remove, name))


def _find_recurring(fleet: Cohorts, name: str) -> RecurringRow:
    """Return a recurring call, with its cohort if there are several cohorts."""
    outcome = fleet.each(lambda scheduler: recurring_rows(scheduler.reader))
    rows = {row.name: row for row in rows_of_all(outcome)}
    if name not in rows:
        if outcome.down:
            raise CohortDownError(*next(iter(outcome.down.items())))
        raise RefusedError(404, f"no recurring call is named {name[:300]!r}{closest_question(name, rows)}")
    return rows[name]


def _fire(site: Site, row: RecurringRow) -> None:
    call = DueCall(row.name, "", row.task, row.signature)
    with site.broker.reach() as fleet:
        fleet.act(row.cohort or fleet.names[0], lambda scheduler: fire_call(site.app, scheduler, call))


def _suspend(fleet: Cohorts, name: str, is_suspended: bool) -> RecurringRow:
    cohort = _find_recurring(fleet, name).cohort or fleet.names[0]
    fleet.ask(cohort, lambda scheduler: scheduler.pause_recurring(name, is_suspended))
    return _find_recurring(fleet, name)


def _remove(fleet: Cohorts, name: str) -> RemoveReply:
    row = _find_recurring(fleet, name)
    fleet.act(row.cohort or fleet.names[0], lambda scheduler: scheduler.remove_recurring(name))
    return RemoveReply(name, row.app or None)


T = TypeVar("T")

_Limit = Annotated[int, Query(ge=1, le=1000)]


@dataclass(frozen=True)
class ReplayedLetters:
    """The ids of the jobs that were published again."""

    replayed: list[str]


@dataclass(frozen=True)
class DropReply:
    """The number of deleted dead letters."""

    dropped: int


def add_dead_routes(api: APIRouter, site: Site) -> None:
    @api.get(
        "/api/dead/{id:path}",
        summary="A dead letter, by the id of its task or job, with the arguments of the call",
        responses=reply_responses(list[model_of(LetterDetails, "ShownDeadLetter")], 404),  # type: ignore[misc]
    )
    async def show(request: Request, id: str) -> Response:
        hidden = values_hidden_reason(site, request)
        result = await site.with_fleet(Cohorts.first, lambda one: shown_letter(one.reader, id, hidden) or None)
        return json_reply(_result_or_404(id, None if result is None else result[1]))

    @api.post(
        "/api/dead/{id:path}/replay",
        summary="Run a dead letter again",
        status_code=202,
        responses=reply_responses(ReplayedLetters, 404, 409, status=202),
    )
    async def replay(id: str) -> Response:
        replayed = _result_or_404(id, await site.with_fleet(_act, id, Scheduler.replay))
        if not replayed:
            raise RefusedError(409, "its message was deleted")
        return json_reply(ReplayedLetters(replayed), 202)

    @api.delete("/api/dead/{id:path}", summary="Delete a dead letter", responses=reply_responses(DropReply, 404))
    async def drop(id: str) -> Response:
        return json_reply(DropReply(_result_or_404(id, await site.with_fleet(_act, id, Scheduler.drop))))


def _result_or_404(id: str, result: T | None) -> T:
    """Return the *result* of a cohort, or raise RefusedError if there is none."""
    if result is None:
        raise RefusedError(404, f"no dead letter has the task id or job id {id[:300]!r}")
    return result


def _act(fleet: Cohorts, id: str, change: Callable[[Scheduler, list[str]], T]) -> T | None:
    """Return the result of *change* for the jobs of the dead letters with that id, or None if there are none."""

    def job_ids_in(scheduler: Scheduler) -> list[str] | None:
        return [letter.job_id for letter in find_letters(scheduler.reader, LetterFilter((id,)))] or None

    located = fleet.first(job_ids_in)
    return None if located is None else fleet.act(located[0], lambda scheduler: change(scheduler, located[1]))
