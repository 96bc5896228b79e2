"""Assemble the HTTP interface: routes, errors, and the authentication before them."""

import os
from collections.abc import Iterable, Mapping

from celery import Celery
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from ..errors import SettingError
from ..options.did_you_mean import closest_names
from ..versions import versions
from . import job_routes, lab_routes, page, report_routes, rule_routes, worker_routes
from .auth import AuthMiddleware, Tokens
from .replies import BEARER, RefusedError, add_handlers, error_responses
from .site import Site
from .traces import Traces


async def refuse_unknown_queries(request: Request) -> None:
    """Raise RefusedError for a query parameter that the route of ``/api`` does not define.

    If it were ignored, a misspelt filter would match all jobs.
    """
    route = request.scope.get("route")
    if not (request.query_params and isinstance(route, APIRoute) and route.path.startswith("/api/")):
        return
    operation = request.app.openapi()["paths"][route.path_format][request.method.lower()]
    accepted_names = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
    for name in request.query_params:
        if name not in accepted_names:
            close = closest_names(name, accepted_names)
            question = f"did you mean {close!r}? " if close else ""
            accepted = ", ".join(accepted_names) or "nothing"
            raise RefusedError(400, f"unknown name after the '?': {name[:100]!r}; {question}accepted: {accepted}")


def build_app(
    app: Celery,
    *,
    tokens: Mapping[str, str] | None,
    read_only: bool,
    allow: Iterable[str],
    names: Iterable[str],
    traces: str | os.PathLike[str] | None,
) -> ASGIApp:
    """See `celery_affinity.web.asgi`. Raises SettingError and OptionError."""
    if isinstance(allow, str) or isinstance(names, str):
        raise SettingError(f"allow and names must be lists, got: {allow!r}, {names!r}")
    app.loader.import_default_modules()
    app.finalize()
    return AuthMiddleware(routes_of(app, allow, traces), None if tokens is None else Tokens(tokens), read_only, names)


def routes_of(app: Celery, allow: Iterable[str] = (), traces: str | os.PathLike[str] | None = None) -> FastAPI:
    """Return all routes without authentication: their clients have all rights."""
    site = Site(app, tuple(allow), Traces(traces))
    api = FastAPI(
        title="celery_affinity",
        version=versions()["celery_affinity"],
        summary="Jobs, types and workers of a fleet",
        docs_url=None,  # these pages load files from another site
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    add_handlers(api)
    guarded = APIRouter(dependencies=[Depends(refuse_unknown_queries), Depends(BEARER)], responses=error_responses())
    report_routes.add_report_routes(guarded, site)
    for add_routes in (
        report_routes.add_fleet_routes,
        job_routes.add_submit_routes,
        job_routes.add_bulk_routes,
        job_routes.add_job_routes,
        rule_routes.add_pause_routes,
        report_routes.add_worker_report_routes,
        worker_routes.add_http_worker_routes,
        report_routes.add_scale_routes,
        report_routes.add_ended_route,
        rule_routes.add_setting_routes,
        report_routes.add_key_routes,
        rule_routes.add_tenant_routes,
        rule_routes.add_recurring_routes,
        rule_routes.add_dead_routes,
        lab_routes.add_lab_routes,
        page.add_page_routes,
    ):
        add_routes(guarded, site)
    api.include_router(guarded)
    report_routes.add_probe_routes(api, site)
    return api
