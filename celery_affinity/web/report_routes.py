"""Routes for reports: the fleet's state and metrics, types, workers, scaling, keys, and probes without a token.

Also the routes that drain and resume workers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from starlette.responses import Response

from ..http_workers.worker import is_http_worker
from ..log_limit import limited_logger
from ..policy.slot_math import MAX_TARGET_WAIT_S, TARGET_WAIT_S
from ..reports import REPORTS, cohorts, key_usage
from ..reports.fleet_status import status_of_all
from ..reports.jobs import Job, hints_of
from ..reports.metrics import CONTENT_TYPE, metrics_text
from ..reports.report import Param, ReportDefinition, find_report, rows_of_all
from ..reports.requeues import Requeue, read_requeues
from ..reports.scale import Scale, read_scales, scale_of_type
from ..reports.status import WorkerStatus
from ..reports.tasks import EndedJobs, ended_jobs, recent_jobs
from ..scheduler.cohorts import CohortAnswers, Cohorts
from ..scheduler.scheduler import Scheduler
from ..schema.untrusted import as_whole_number, bounded_text
from ..schema.values import MAX_DURATION_S
from .broker import BrokerDownError, BusyError
from .replies import RefusedError, cohorts_down_header, json_reply, model_of, reply_responses, text_response
from .site import Site, values_hidden_reason

logger = limited_logger(__name__)


def add_report_routes(api: APIRouter, site: Site) -> None:
    """Add the routes of all declared reports."""
    for report in map(find_report, REPORTS):
        if report.path:
            model = report.type if report.type_name is None else model_of(report.type, report.type_name)
            name, responses = report.read.__name__, reply_responses(model)
            api.get(report.path, summary=report.summary, name=name, responses=responses)(_handler(report, site))


def _handler(report: ReportDefinition[Any], site: Site) -> Callable[..., Awaitable[Response]]:
    """Return the handler of a report's route. FastAPI reads the parameters of the query from its signature."""
    params = [param for param in report.params if param.over_http]

    async def handler(request: Request, **options: Any) -> Response:
        for param in params:
            _check_choice(param, options[param.name])
        hidden_reason = values_hidden_reason(site, request)
        answer = await site.with_fleet(lambda fleet: report.read(site.source(fleet, hidden_reason), **options))
        return json_reply(answer.report, headers=cohorts_down_header(answer.down))

    handler.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request), *map(_query_parameter, params)]
    )
    return handler


def _query_parameter(param: Param) -> Parameter:
    is_time = param.name.endswith("_s")
    min_value = 0 if is_time else param.min_value
    max_value = MAX_DURATION_S if is_time else param.max_over_http or param.max_value
    query = Query(param.default, ge=min_value, le=max_value)
    if param.above is not None:  # checked by the report, whose message names both ends of the range
        query = Query(param.default, json_schema_extra={"exclusiveMinimum": param.above, "maximum": max_value})
    return Parameter(param.name, Parameter.KEYWORD_ONLY, default=query, annotation=param.type)


def _check_choice(param: Param, value: object) -> None:
    choices = param.choices
    if choices and value is not None and value not in choices:
        raise RefusedError(400, f"{param.name} must be one of {', '.join(choices)}, got: {str(value)[:100]!r}")


def add_fleet_routes(api: APIRouter, site: Site) -> None:
    @api.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses=text_response("text/plain", "The metrics, in the text format of Prometheus."),
    )
    async def metrics() -> Response:
        try:
            fleet_metrics = await site.with_fleet(cohorts.metrics_of_all, site.settings.max_pending)
        except (BrokerDownError, BusyError):
            fleet_metrics = None  # the metric `up` reports it
        return Response(metrics_text(fleet_metrics), media_type=CONTENT_TYPE)


#: Maximum number of tasks in a worker's answer.
_MAX_TASKS = 500

#: Seconds for which a worker can take to answer.
_ANSWER_S = 3.0


@dataclass(frozen=True)
class DrainReply:
    """The text of a *worker*'s answer."""

    worker: str
    ok: str


@dataclass(frozen=True)
class ProcessReply:
    """The worker's own answer. *memory_bytes*: maximum memory of its main process. *totals*: task -> number of runs.

    *versions*: package -> version.
    """

    pid: int
    uptime_s: int
    memory_bytes: int
    pool: str
    versions: dict[str, str]
    totals: dict[str, int]


@dataclass(frozen=True)
class WorkerDetails:
    """A live worker. *rows*: one row per cohort.

    - *hints*: hint that it holds -> Unix time when its last job with the hint ended.
    - *recent*: its last ended jobs that are kept (``affinity_keep``), the newest first.
    - *unfinished*: the jobs that left it unfinished in the last day.
    - *process*: None if it was not asked, or did not answer.
    """

    rows: list[WorkerStatus]
    hints: dict[str, float]
    recent: list[Job]
    unfinished: list[Requeue]
    process: ProcessReply | None


def add_worker_report_routes(api: APIRouter, site: Site) -> None:
    @api.get(
        "/api/workers/{name:path}/details",
        summary="A worker: its slots, hints, the jobs that left it unfinished; with process its own answer",
        responses=reply_responses(WorkerDetails, 404),
    )
    async def details(name: str, process: bool = False) -> Response:
        worker = await site.with_fleet(_worker_details, name)
        if worker is None:
            raise RefusedError(404, f"no live worker is named {name[:300]!r}")
        answer = await site.run_untrusted(_process_of, site, name) if process else None
        return json_reply(replace(worker, process=answer))

    responses = reply_responses(DrainReply, 404, 409, 504, status=202)

    @api.post(
        "/api/workers/{name:path}/drain",
        summary="Drain a worker: it takes no new jobs",
        status_code=202,
        responses=responses,
    )
    async def drain(name: str) -> Response:
        return await _send_command(site, name, "affinity_drain")

    @api.post(
        "/api/workers/{name:path}/resume",
        summary="Resume a worker: it takes jobs again",
        status_code=202,
        responses=responses,
    )
    async def resume(name: str) -> Response:
        return await _send_command(site, name, "affinity_resume")


async def _send_command(site: Site, name: str, command: str) -> Response:
    if name not in {worker.name for worker in (await site.with_fleet(status_of_all)).workers}:
        raise RefusedError(404, f"no live worker is named {name!r}")
    if await site.with_scheduler(is_http_worker, name):
        raise RefusedError(
            409,
            f"worker {name!r} works over HTTP, and takes no commands: it leaves the fleet with its own DELETE request",
        )
    answer = await site.run_untrusted(_broadcast, site, name, command)
    if answer is None:
        raise RefusedError(504, f"worker {name!r} did not answer within {_ANSWER_S:g} s; it may still do so")
    if "error" in answer:
        raise RefusedError(409, bounded_text(answer["error"]) or "the worker refused without a reason")
    return json_reply(DrainReply(name, bounded_text(answer.get("ok")) or ""), 202)


def _worker_details(fleet: Cohorts, name: str) -> WorkerDetails | None:
    rows = [worker for worker in status_of_all(fleet).workers if worker.name == name]
    if not rows:
        return None
    ids = {worker.id for worker in rows}

    def read(scheduler: Scheduler) -> tuple[dict[str, float], list[Job], list[Requeue]]:
        hints = [hints_of(scheduler.reader, id_) for id_ in ids]
        requeues = [row for row in read_requeues(scheduler.reader) if row.worker == name]
        held = {hint: at_s for of_worker in hints for hint, at_s in of_worker.items()}
        return held, recent_jobs(scheduler.reader, ids), requeues

    parts = list(fleet.each(read).answers.values())
    hints = {hint: at_s for held, _, _ in parts for hint, at_s in held.items()}
    recent = [job for _, jobs, _ in parts for job in jobs]
    return WorkerDetails(rows, hints, recent, [row for _, _, requeues in parts for row in requeues], None)


def _process_of(site: Site, name: str) -> ProcessReply | None:
    """Return the answer of the worker *name*, or None if there is none, or if the broker's user may not query it."""
    try:
        stats = _broadcast(site, name, "stats")
    except (RedisError, OperationalError) as exc:
        logger.debug("Worker %s is not queried: %s", name, exc)
        return None
    if stats is None:
        return None

    def part(value: object, field: str) -> dict[str, Any]:
        content = value.get(field) if isinstance(value, dict) else None
        return content if isinstance(content, dict) else {}

    def number(value: object) -> int:
        return as_whole_number(value) or 0

    versions = part(part(stats, "affinity"), "versions").items()
    totals = list(part(stats, "total").items())[:_MAX_TASKS]
    return ProcessReply(
        pid=number(stats.get("pid")),
        uptime_s=number(stats.get("uptime")),
        memory_bytes=1024 * number(part(stats, "rusage").get("maxrss")),
        pool=(bounded_text(part(stats, "pool").get("implementation")) or "").removesuffix(":TaskPool"),
        versions={str(package)[:100]: bounded_text(version) or "" for package, version in versions},
        totals={str(task)[:300]: number(runs) for task, runs in totals},
    )


def _broadcast(site: Site, name: str, command: str) -> dict[str, object] | None:
    with site.broker.connection() as connection:
        replies = site.app.control.broadcast(
            command, destination=[name], reply=True, timeout=_ANSWER_S, limit=1, connection=connection
        )
    for reply in replies or ():
        if isinstance(reply, dict) and isinstance(reply.get(name), dict):
            return dict(reply[name])
    return None


#: Checked by `read_scales`, whose message names both ends of the range.
_Target = Annotated[float, Query(json_schema_extra={"exclusiveMinimum": 0, "maximum": MAX_TARGET_WAIT_S})]


def add_scale_routes(api: APIRouter, site: Site) -> None:
    @api.get(
        "/api/scale/{profile:path}",
        summary="How many slots the workers of exactly these types should have: pdf,excel",
        responses=reply_responses(Scale, 404),
    )
    async def of_profile(profile: str, target_wait: _Target = TARGET_WAIT_S) -> Response:
        types = [name for name in profile.split(",") if name]
        answer = await site.with_fleet(lambda fleet: read_scales(site.source(fleet), types, target_wait))
        return json_reply(scale_of_type(answer.report, types))


#: Seconds for which all viewers get the same ended jobs, so that the broker's cost is independent of their number.
_SHARED_S = 5.0


def add_ended_route(api: APIRouter, site: Site) -> None:
    lock = asyncio.Lock()
    last: tuple[float, CohortAnswers[EndedJobs]] | None = None

    @api.get(
        "/api/ended",
        summary="Tasks, and the last 200 failed jobs, of the last 1,000 kept ended jobs; up to 5 s old without fresh",
        responses=reply_responses(EndedJobs),
    )
    async def ended(fresh: bool = False) -> Response:
        nonlocal last
        async with lock:
            if fresh or last is None or time.monotonic() - last[0] > _SHARED_S:
                answers = await site.with_fleet(lambda fleet: fleet.each(lambda one: ended_jobs(one.reader)))
                last = time.monotonic(), answers
            else:
                answers = last[1]
        tasks = rows_of_all(CohortAnswers({name: one.tasks for name, one in answers.answers.items()}, answers.down))
        failed = rows_of_all(CohortAnswers({name: one.failed for name, one in answers.answers.items()}, answers.down))
        failed.sort(key=lambda job: -(job.ended_s or 0))
        return json_reply(EndedJobs(tasks, failed), headers=cohorts_down_header(answers.down))


@dataclass(frozen=True)
class Alive:
    """The *status* "ok"."""

    status: str = "ok"


def add_probe_routes(api: FastAPI, site: Site) -> None:
    @api.get("/healthz", summary="Whether this web server is alive", responses=reply_responses(Alive))
    async def healthz() -> Response:
        return json_reply(Alive())

    @api.get("/readyz", summary="Whether the broker answers", responses=reply_responses(Alive, 503))
    async def readyz() -> Response:
        await site.with_scheduler(lambda scheduler: scheduler.client.ping())
        return json_reply(Alive())


def add_key_routes(api: APIRouter, site: Site) -> None:
    @api.get(
        "/api/keys/{key:path}",
        summary="A key: its limit, its holders, and the jobs that wait for it",
        responses=reply_responses(model_of(key_usage.KeyDetails, "ShownKey"), 404),
    )
    async def key(key: str) -> Response:
        key_found = await site.with_fleet(Cohorts.first, lambda scheduler: key_usage.show_key(scheduler.reader, key))
        if key_found is None:
            raise RefusedError(404, f"no job holds the key {key[:300]!r} or waits for it")
        cohort, details = key_found
        return json_reply(replace(details, key=replace(details.key, cohort=cohort)) if site.is_split else details)
