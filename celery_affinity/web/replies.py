"""Replies: the JSON of a report, and the JSON of an error, of which no reply has a traceback or a password.

What replies look like, for ``/openapi.json``: models made of the reports, which routes send by `as_json`.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from pydantic import BaseModel, create_model
from redis.exceptions import NoPermissionError, RedisError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ..errors import AffinityError, OptionError, SchemaError, SettingError, TransportError
from ..http_workers.handout import TooManyPollsError
from ..http_workers.job_end import EndInProgressError, EndRefusedError
from ..http_workers.worker import StaleClaimError, UnknownWorkerError, WrongSecretError
from ..log_limit import limited_logger
from ..reports import cohorts
from ..reports.json import OF_COHORTS, as_json, properties_of
from ..results.chords import ChordIsClaimedError
from ..scheduler.cohorts import CohortAnswers, CohortRow
from .broker import BrokerDownError, BusyError

logger = limited_logger(__name__)

#: Seconds after which a client may ask again when the broker was down.
_RETRY_AFTER = {"Retry-After": "1"}

#: The status of the errors of workers over HTTP.
_OF_WORKERS: dict[type[Exception], int] = {
    WrongSecretError: 403,
    UnknownWorkerError: 404,
    StaleClaimError: 409,
    EndRefusedError: 409,
    ChordIsClaimedError: 503,
    EndInProgressError: 503,
    TooManyPollsError: 503,
}

R = TypeVar("R", bound=CohortRow)

#: Header of a reply: the names of cohorts that did not answer, and of which it has nothing.
DOWN = "Cohorts-Down"

#: What an HTTP status is called in our errors.
_CODES = {
    400: "bad-request",
    401: "no-token",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    408: "too-slow",
    409: "conflict",
    413: "too-large",
    414: "too-long",
    421: "wrong-host",
    422: "refused",
    431: "too-large",
    500: "error",
    503: "unavailable",
    504: "no-answer",
}


class RefusedError(Exception):
    """A request is answered with *status* and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def json_reply(found: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return *found*, a report or a part of one, as JSON: the same as the commands print."""
    text = json.dumps(as_json(found), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(text.encode(errors="replace"), status, headers, "application/json")


def rows_reply(asked: CohortAnswers[list[R]]) -> Response:
    """Return the rows of all cohorts as JSON, with a header that names those that are down."""
    return json_reply(cohorts.rows_of_all(asked), headers=cohorts_down_header(asked.down))


def cohorts_down_header(down: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the header of a reply in which cohorts are missing."""
    return {DOWN: ", ".join(down)} if down else None


def error_reply(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error as JSON."""
    return json_reply({"error": {"code": _CODES.get(status, str(status)), "message": message}}, status, headers)


def reply_to_error(exc: Exception) -> Response:
    """Return the HTTP reply for an error: its status, and its text as JSON."""
    if isinstance(exc, RefusedError):
        return error_reply(exc.status, str(exc))
    if isinstance(exc, (BrokerDownError, BusyError)):
        return error_reply(503, str(exc), _RETRY_AFTER)
    if type(exc) in _OF_WORKERS:
        status = _OF_WORKERS[type(exc)]
        return error_reply(status, str(exc), _RETRY_AFTER if status == 503 else None)
    if isinstance(exc, (OptionError, SettingError)):
        return error_reply(400, str(exc))
    if isinstance(exc, (TransportError, SchemaError, AffinityError)):
        return error_reply(503, str(exc))
    if isinstance(exc, NoPermissionError):
        return error_reply(503, f"the broker's user has no right to that: {exc}")
    if isinstance(exc, RedisError):
        return error_reply(503, f"the broker refused: {exc}")
    logger.error("A request failed", exc_info=exc)
    return error_reply(500, f"an error that was not expected, the log has it: {type(exc).__name__}")


def add_handlers(api: FastAPI) -> None:
    """Have *api* answer errors so."""

    async def on_error(_: Request, exc: Exception) -> Response:
        return reply_to_error(exc)

    async def on_http(_: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        return error_reply(exc.status_code, str(exc.detail), dict(exc.headers or {}))

    async def on_invalid(_: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        return error_reply(400, "; ".join(_wrong(each) for each in exc.errors()))

    api.add_exception_handler(HTTPException, on_http)
    api.add_exception_handler(RequestValidationError, on_invalid)
    for kind in (RefusedError, BrokerDownError, BusyError, AffinityError, RedisError, *_OF_WORKERS, Exception):
        api.add_exception_handler(kind, on_error)


def _wrong(each: dict[str, object]) -> str:
    place = each.get("loc")
    name = ".".join(str(part) for part in place[1:]) if isinstance(place, (tuple, list)) else ""
    got = repr(each.get("input"))
    return f"{name or 'body'}: {each.get('msg')}, got: {got if len(got) <= 100 else got[:100] + '...'}"


class ErrorText(BaseModel):
    """The *code* of an error, for programs, and its *message*: the invalid field, what is accepted, what came."""

    code: str
    message: str


class Error(BaseModel):
    """The reply to a request that failed."""

    error: ErrorText


#: What the status of an error means. Those of `_ANYWHERE` can come from every route under ``/api``.
_MEANINGS: dict[int | str, str] = {
    400: "The request cannot be read, or a value in it is not accepted.",
    401: "There is no token, or an unknown one.",
    403: "The role of the token does not suffice.",
    404: "There is no such thing.",
    409: "The present state does not allow the request.",
    422: "An option is refused.",
    503: "The broker does not answer. The request can be repeated.",
    504: "The worker did not answer in time.",
    "default": "Any other error.",
}
_ANYWHERE = (400, 401, 403, 503, "default")

#: The reply to an error, by its name: a model for each status of each route would make a server's start take longer.
_REPLY = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}

#: The scheme of the tokens, as FastAPI describes it; `security.Guard` checks them, before any route.
BEARER = HTTPBearer(
    auto_error=False,
    description="A token of the server. The roles are `read`, `submit` and `admin`, each with the rights of those "
    "before it: a `GET` takes `read`, as does `POST .../whatif`, which changes nothing; `POST /api/jobs` takes "
    "`submit`, all others take `admin`. The requests of workers take "
    "`worker`, or `admin`. Without tokens the server answers its own machine alone.",
)


def error_responses(*statuses: int | str) -> dict[int | str, dict[str, Any]]:
    """Return what FastAPI's ``responses`` takes for errors; without *statuses*, for those that can come anywhere."""
    found = {each: {"description": _MEANINGS[each], **_REPLY} for each in statuses or _ANYWHERE}
    return found if statuses else found | {"default": {"description": _MEANINGS["default"], "model": Error}}


def reply_responses(found: Any, *of_errors: int, status: int = 200, text: str = "The answer.") -> dict[int | str, Any]:
    """Return what FastAPI's ``responses`` takes: with *status* comes *found*, a report, a list of them, or a model."""
    return {
        status: {"model": describe(found), "description": text},
        **(error_responses(*of_errors) if of_errors else {}),
    }


def text_response(media_type: str, description: str) -> dict[int | str, Any]:
    """Return what FastAPI's ``responses`` takes for a route that replies with a text, whose class is ``Response``."""
    return {200: {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}}


def describe(of: Any) -> Any:
    """Return the type of which pydantic makes the schema of the JSON that `as_json` makes of a value of type *of*."""
    if isinstance(of, type) and is_dataclass(of):
        return model_of(of)
    origin, parts = get_origin(of), tuple(map(describe, get_args(of)))
    if of is object:
        return Any
    if origin in (Union, UnionType):
        return Union[parts]  # noqa: UP007  # of a tuple
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[parts[0], parts[1]]  # type: ignore[valid-type]
    return list[parts[0]] if origin in (list, tuple, Sequence) else of  # type: ignore[valid-type]


@cache
def model_of(report: type, name: str | None = None) -> type[BaseModel]:
    """Return the model of *report*, a dataclass: its fields and public properties, which are there.

    Those of `OF_COHORTS` may be missing.
    """
    assert is_dataclass(report)
    hints = get_type_hints(report)
    parts = {each.name: hints[each.name] for each in fields(report)}
    parts |= {each: get_type_hints(getattr(report, each).fget)["return"] for each in properties_of(report)}
    typed: dict[str, Any] = {
        each: (describe(hint), None if each in OF_COHORTS else ...) for each, hint in parts.items()
    }
    return create_model(name or report.__name__, __doc__=inspect.getdoc(report), __module__=report.__module__, **typed)


def with_more(name: str, report: type, **more: Any) -> type[BaseModel]:
    """Return the model of *report* with further parts, which are there if the request asks for them."""
    parts: dict[str, Any] = {each: (describe(of), None) for each, of in more.items()}
    return create_model(name, __base__=model_of(report), __doc__=inspect.getdoc(report), **parts)
