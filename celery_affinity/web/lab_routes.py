"""The lab: recorded traces, their replay, and "what if". Nothing here changes the fleet, or asks its broker."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ..errors import OptionError
from ..lab import replay as replay_module
from ..lab.changes import Changes, read_changes
from ..lab.fast_engine import limits_of_types
from ..lab.replay import Replay, WhatIf
from ..lab.scenario import Members, fleet_of_members
from ..schema.values import MOST_COUNT
from ..settings.wire import complete_settings
from .replies import RefusedError, json_reply, reply_responses
from .site import Site
from .traces import Loaded, TraceFile, check_jobs

#: Most slots that a question adds.
_MOST_SLOTS = 10_000


class WhatIfRequest(BaseModel):
    """What is to be changed, in the words of ``celery affinity lab whatif``.

    *add*: workers such as "[pdf,xls]:2". *remove*: names of workers. *set*: setting -> value, such as "limits.type:pdf"
    -> "5". *rate*: type -> so many times the jobs. *priority*: type -> that of its jobs. *seed*: chooses the jobs that
    *rate* repeats, or leaves out.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    add: list[str] = []
    remove: list[str] = []
    set: dict[str, str | int | float] = {}
    rate: dict[str, float] = {}
    priority: dict[str, int] = {}
    seed: int = Field(1, ge=0, le=MOST_COUNT)


@dataclass(frozen=True)
class ReplayedTrace:
    """A trace of *length_s*, and its *replay*. *lost*: claims that workers could not write down.

    *limits*: of types, in force as it was recorded.
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
    kept = _Kept()

    @api.get(
        "/api/lab/traces",
        summary="Traces in the directory of the server, the newest first",
        responses=reply_responses(list[TraceFile], 404),
    )
    async def list_traces() -> Response:
        return json_reply(await site.traces.newest())

    @api.get(
        "/api/lab/traces/{name}/replay",
        summary="What a trace recorded, and what comes of it when it is scheduled again",
        responses=reply_responses(ReplayedTrace, 404, 409),
    )
    async def replay(name: str) -> Response:
        return json_reply(await site.traces.ask(name, kept.replayed))

    @api.post(
        "/api/lab/traces/{name}/whatif",
        summary="Waits of a trace's jobs without and with other slots, settings, rates or priorities; changes nothing",
        responses=reply_responses(WhatIf, 404, 409),
    )
    async def what_if(name: str, question: WhatIfRequest) -> Response:
        return json_reply(await site.traces.ask(name, lambda found, steps: _answer(found, question, steps)))


class _Kept:
    """The last replay: each viewer of the page asks for that of the newest trace."""

    def __init__(self) -> None:
        self._version: object = None
        self._found: ReplayedTrace | None = None

    def replayed(self, found: Loaded, steps: Iterator[object]) -> ReplayedTrace:
        if self._found is None or self._version != found.version:
            self._found, self._version = _replayed(found, steps), found.version
        return self._found


def _replayed(found: Loaded, steps: Iterator[object]) -> ReplayedTrace:
    trace = found.trace
    return ReplayedTrace(
        name=found.version[0],
        recorded_at=trace.recorded_at,
        length_s=trace.length_us / 1e6,
        jobs=len(trace.jobs),
        lost=trace.lost,
        fleet=fleet_of_members(trace.workers),
        limits=limits_of_types(complete_settings(trace.settings)["limits"]),
        replay=replay_module.replay(trace, progress=steps),
    )


def _answer(found: Loaded, question: WhatIfRequest, steps: Iterator[object]) -> WhatIf:
    changes = _changes(found, question)
    factors = changes.rates
    check_jobs(sum(factors.get(each.type, 1) for each in found.scenario.arrivals), f"{found.version[0]} at these rates")
    before, after, engine = replay_module.schedule_both(found.scenario, changes, progress=steps)
    return replay_module.compare_waits(before, after, engine)


def _changes(found: Loaded, question: WhatIfRequest) -> Changes:
    if not any((question.add, question.remove, question.set, question.rate, question.priority)):
        raise RefusedError(400, "give some of add, remove, set, rate and priority")
    try:
        changes = read_changes(
            found.scenario,
            settings=_words(question.set),
            add=question.add,
            remove=question.remove,
            rates=_words(question.rate),
            priorities=_words(question.priority),
            seed=question.seed,
        )
    except OptionError as exc:
        raise RefusedError(400, str(exc).removeprefix("--")) from exc
    slots = sum(count for _, count in changes.add)
    if slots > _MOST_SLOTS:
        raise RefusedError(400, f"add must add {_MOST_SLOTS:,} slots at most, got: {slots:,}")
    return changes


def _words(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]
