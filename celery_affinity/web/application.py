"""The HTTP interface, put together: routes, errors, and the guard before them."""

import os
from collections.abc import Iterable, Mapping

from celery import Celery
from fastapi import APIRouter, Depends, FastAPI
from starlette.types import ASGIApp

from ..errors import SettingError
from ..versions import versions
from . import page
from .described import BEARER, errors
from .queries import refuse_unknown
from .replies import add_handlers
from .routes import (
    dead,
    fleet,
    jobs,
    keys,
    lab,
    many_jobs,
    pauses,
    probes,
    recurring,
    running,
    scale,
    settings,
    submitting,
    tenants,
    types,
    workers,
)
from .security import Gate
from .site import Site
from .tokens import Tokens
from .traces import Traces


def build(
    app: Celery,
    *,
    tokens: Mapping[str, str] | None,
    read_only: bool,
    allow: Iterable[str],
    names: Iterable[str],
    traces: str | os.PathLike[str] | None,
) -> ASGIApp:
    """See `celery_affinity.web.asgi`. Raises SettingError, OptionError."""
    if isinstance(allow, str) or isinstance(names, str):
        raise SettingError(f"allow and names must be lists, got: {allow!r}, {names!r}")
    app.loader.import_default_modules()
    app.finalize()
    return Gate(routes_of(app, allow, traces), None if tokens is None else Tokens(tokens), read_only, names)


def routes_of(app: Celery, allow: Iterable[str] = (), traces: str | os.PathLike[str] | None = None) -> FastAPI:
    """Return all routes, with nothing before them: whoever reaches these may do everything."""
    site = Site(app, tuple(allow), Traces(traces))
    api = FastAPI(
        title="celery_affinity",
        version=versions()["celery_affinity"],
        summary="Jobs, types and workers of a fleet",
        docs_url=None,  # these pages need another site
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    add_handlers(api)
    guarded = APIRouter(dependencies=[Depends(refuse_unknown), Depends(BEARER)], responses=errors())
    for each in (
        fleet,
        submitting,
        many_jobs,
        jobs,
        types,
        pauses,
        workers,
        running,
        scale,
        settings,
        keys,
        tenants,
        recurring,
        dead,
        lab,
        page,
    ):
        each.add(guarded, site)
    api.include_router(guarded)
    probes.add(api, site)
    return api
