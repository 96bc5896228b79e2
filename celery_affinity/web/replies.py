"""Build replies: the JSON of reports and errors, without tracebacks or passwords, and their models for OpenAPI.

The models in ``/openapi.json`` are derived from the reports, which routes send by `as_json`.
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
from ..reports.json import OF_COHORTS, as_json, properties_of
from ..reports.report import rows_of_all
from ..results.chords import ChordIsClaimedError
from ..scheduler.cohorts import CohortAnswers, CohortRow
from .broker import BrokerDownError, BusyError

logger = limited_logger(__name__)

#: Seconds after which a client can retry when the broker was down.
_RETRY_AFTER = {"Retry-After": "1"}

#: Status of each error of HTTP workers.
_WORKER_ERRORS: dict[type[Exception], int] = {
    WrongSecretError: 403,
    UnknownWorkerError: 404,
    StaleClaimError: 409,
    EndRefusedError: 409,
    ChordIsClaimedError: 503,
    EndInProgressError: 503,
    TooManyPollsError: 503,
}

R = TypeVar("R", bound=CohortRow)

#: Header with the names of cohorts that did not answer and are missing in the reply.
DOWN = "Cohorts-Down"

#: Code of an error by its HTTP status.
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
    """A request is rejected with *status*, a message and *headers*."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


def json_reply(report: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a report, or a part of one, as JSON in the format that the commands print."""
    text = json.dumps(as_json(report), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(text.encode(errors="replace"), status, headers, "application/json")


def rows_reply(answers: CohortAnswers[list[R]]) -> Response:
    """Return the rows of all cohorts as JSON, with a header that names the cohorts that are down."""
    return json_reply(rows_of_all(answers), headers=cohorts_down_header(answers.down))


def cohorts_down_header(down: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the header of a reply without the cohorts *down*, or None if none is down."""
    return {DOWN: ", ".join(down)} if down else None


def error_reply(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return json_reply({"error": {"code": _CODES.get(status, str(status)), "message": message}}, status, headers)


def reply_to_error(exc: Exception) -> Response:
    """Return the HTTP reply for an error: its status, and its text as JSON."""
    if isinstance(exc, RefusedError):
        return error_reply(exc.status, str(exc), exc.headers)
    if isinstance(exc, HTTPException):
        return error_reply(exc.status_code, str(exc.detail), dict(exc.headers or {}))
    if isinstance(exc, RequestValidationError):
        return error_reply(400, "; ".join(_describe_invalid(error) for error in exc.errors()))
    if isinstance(exc, (BrokerDownError, BusyError)):
        return error_reply(503, str(exc), _RETRY_AFTER)
    if type(exc) in _WORKER_ERRORS:
        status = _WORKER_ERRORS[type(exc)]
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
    return error_reply(500, f"unexpected error, see the log of this server: {type(exc).__name__}")


def add_handlers(api: FastAPI) -> None:
    """Install the error handlers in *api*."""

    async def on_error(_: Request, exc: Exception) -> Response:
        return reply_to_error(exc)

    of_requests = (RefusedError, HTTPException, RequestValidationError)
    for kind in (*of_requests, BrokerDownError, BusyError, AffinityError, RedisError, *_WORKER_ERRORS, Exception):
        api.add_exception_handler(kind, on_error)


def _describe_invalid(error: dict[str, object]) -> str:
    location = error.get("loc")
    name = ".".join(str(part) for part in location[1:]) if isinstance(location, (tuple, list)) else ""
    got = repr(error.get("input"))
    return f"{name or 'body'}: {error.get('msg')}, got: {got if len(got) <= 100 else got[:100] + '...'}"


class ErrorText(BaseModel):
    """The *code* of an error for programs, and its *message*: the field, the accepted values, the actual value."""

    code: str
    message: str


class Error(BaseModel):
    """The reply to a failed request."""

    error: ErrorText


#: Descriptions of error statuses. Those in `_ANYWHERE` can be the reply of any route under ``/api``.
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

#: A reference to the model of errors: a separate model per status and route would slow down the server's start.
_ERROR_CONTENT = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}

#: The token scheme in FastAPI's terms; `AuthMiddleware` checks tokens before any route.
BEARER = HTTPBearer(
    auto_error=False,
    description="A token of the server. The roles are `read`, `submit` and `admin`, each with the rights of those "
    "before it: a `GET` takes `read`, as does `POST .../whatif`, which changes nothing; `POST /api/jobs` takes "
    "`submit`, all others take `admin`. The requests of workers take "
    "`worker`, or `admin`. Without tokens the server answers its own machine alone.",
)


def error_responses(*statuses: int | str) -> dict[int | str, dict[str, Any]]:
    """Return the errors for FastAPI's ``responses``: *statuses*, or by default the errors of any route."""
    responses = {status: {"description": _MEANINGS[status], **_ERROR_CONTENT} for status in statuses or _ANYWHERE}
    return responses if statuses else responses | {"default": {"description": _MEANINGS["default"], "model": Error}}


def reply_responses(
    report: Any, *error_statuses: int, status: int = 200, text: str = "The answer."
) -> dict[int | str, Any]:
    """Return *status* with the model of *report* (a report, a list or a model) for FastAPI's ``responses``."""
    errors = error_responses(*error_statuses) if error_statuses else {}
    return {status: {"model": describe(report), "description": text}, **errors}


def text_response(media_type: str, description: str) -> dict[int | str, Any]:
    """Return the entry in FastAPI's ``responses`` for a route that returns text as a ``Response``."""
    return {200: {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}}


def describe(annotation: Any) -> Any:
    """Return the type for pydantic's schema of the JSON that `as_json` creates from a value of type *annotation*."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return model_of(annotation)
    origin, parts = get_origin(annotation), tuple(map(describe, get_args(annotation)))
    if annotation is object:
        return Any
    if origin in (Union, UnionType):
        return Union[parts]  # noqa: UP007  # of a tuple
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[parts[0], parts[1]]  # type: ignore[valid-type]
    return list[parts[0]] if origin in (list, tuple, Sequence) else annotation  # type: ignore[valid-type]


@cache
def model_of(report: type, model_name: str | None = None) -> type[BaseModel]:
    """Return the model of the dataclass *report*: its fields and public properties, which are required.

    Fields in `OF_COHORTS` are optional.
    """
    assert is_dataclass(report)
    hints = get_type_hints(report)
    parts = {name.name: hints[name.name] for name in fields(report)}
    parts |= {name: get_type_hints(getattr(report, name).fget)["return"] for name in properties_of(report)}
    typed: dict[str, Any] = {
        name: (describe(hint), None if name in OF_COHORTS else ...) for name, hint in parts.items()
    }
    return create_model(
        model_name or report.__name__, __doc__=inspect.getdoc(report), __module__=report.__module__, **typed
    )


def with_more(name: str, report: type, **more: Any) -> type[BaseModel]:
    """Return the model of *report* with optional parts, which are present if the request asks for them."""
    parts: dict[str, Any] = {part: (describe(annotation), None) for part, annotation in more.items()}
    return create_model(name, __base__=model_of(report), __doc__=inspect.getdoc(report), **parts)
