"""Routes of the lab: recorded traces, their replay, and "what if". They neither change the fleet nor use its broker."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from ..errors import OptionError
from ..lab import replay as replay_module
from ..lab.changes import Changes, read_changes
from ..lab.fast_engine import limits_of_types
from ..lab.replay import Replay, WhatIf
from ..lab.scenario import Members, fleet_of_members
from ..schema.values import MAX_COUNT
from ..settings.wire import complete_settings
from .replies import RefusedError, json_reply, reply_responses
from .site import Site
from .traces import Loaded, TraceFile, check_jobs

#: Maximum number of slots that a what-if request can add.
_MAX_SLOTS = 10_000


class WhatIfRequest(BaseModel, extra="forbid", strict=True):
    """The changes to a trace, in the format of ``celery affinity lab whatif``.

    *add* lists workers such as "[pdf,xls]:2", and *remove* names of workers. *set* maps settings to values, such as
    "limits.type:pdf" to "5". *rate* maps types to a factor for their number of jobs, and *priority* maps types to the
    priority of their jobs. *seed* determines the jobs that *rate* repeats or omits.
    """

    add: list[str] = []
    remove: list[str] = []
    set: dict[str, str | int | float] = {}
    rate: dict[str, float] = {}
    priority: dict[str, int] = {}
    seed: int = Field(1, ge=0, le=MAX_COUNT)


@dataclass(frozen=True)
class ReplayedTrace:
    """A trace of *length_s* seconds, and its *replay*.

    *lost* is the number of claims that workers could not record. *limits* are the limits of types during the recording.
    """

    name: str
    recorded_at: str
    length_s: float
    jobs: int
    lost: int
    fleet: Sequence[Members]
    limits: Mapping[str, int]
    replay: Replay


def add_lab_routes(api: APIRouter, site: Site) -> None:
    last: dict[object, ReplayedTrace] = {}  # by version: each viewer of the web UI requests the newest trace's replay

    def replayed(loaded: Loaded, steps: Iterator[object]) -> ReplayedTrace:
        if loaded.version not in last:
            trace = loaded.trace
            new = ReplayedTrace(
                name=loaded.version[0],
                recorded_at=trace.recorded_at,
                length_s=trace.length_us / 1e6,
                jobs=len(trace.jobs),
                lost=trace.lost,
                fleet=fleet_of_members(trace.workers),
                limits=limits_of_types(complete_settings(trace.settings)["limits"]),
                replay=replay_module.replay(trace, progress=steps),
            )
            last.clear()
            last[loaded.version] = new
        return last[loaded.version]

    @api.get(
        "/api/lab/traces",
        summary="Traces in the directory of the server, the newest first",
        responses=reply_responses(list[TraceFile], 404),
    )
    async def list_traces() -> Response:
        return json_reply(await site.traces.newest())

    @api.get(
        "/api/lab/traces/{name}/replay",
        summary="The waits that a trace recorded, and the waits of its replay",
        responses=reply_responses(ReplayedTrace, 404, 409),
    )
    async def replay(name: str) -> Response:
        return json_reply(await site.traces.ask(name, replayed))

    @api.post(
        "/api/lab/traces/{name}/whatif",
        summary="Waits of a trace's jobs without and with other slots, settings, rates or priorities; changes nothing",
        responses=reply_responses(WhatIf, 404, 409),
    )
    async def what_if(name: str, question: WhatIfRequest) -> Response:
        return json_reply(await site.traces.ask(name, lambda loaded, steps: _answer(loaded, question, steps)))


def _answer(loaded: Loaded, question: WhatIfRequest, steps: Iterator[object]) -> WhatIf:
    changes = _changes(loaded, question)
    factors = changes.rates
    jobs = sum(factors.get(arrival.type, 1) for arrival in loaded.scenario.arrivals)
    check_jobs(jobs, f"{loaded.version[0]} at these rates")
    before, after, engine = replay_module.schedule_both(loaded.scenario, changes, progress=steps)
    return replay_module.compare_waits(before, after, engine)


def _changes(loaded: Loaded, question: WhatIfRequest) -> Changes:
    if not any((question.add, question.remove, question.set, question.rate, question.priority)):
        raise RefusedError(400, "give at least one of add, remove, set, rate and priority")
    try:
        changes = read_changes(
            loaded.scenario,
            settings=_assignments(question.set),
            add=question.add,
            remove=question.remove,
            rates=_assignments(question.rate),
            priorities=_assignments(question.priority),
            seed=question.seed,
        )
    except OptionError as exc:
        raise RefusedError(400, str(exc).removeprefix("--")) from exc
    slots = sum(count for _, count in changes.add)
    if slots > _MAX_SLOTS:
        raise RefusedError(400, f"add must add {_MAX_SLOTS:,} slots at most, got: {slots:,}")
    return changes


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]
