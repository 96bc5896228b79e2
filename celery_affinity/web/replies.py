"""Replies: the JSON of a report, and the JSON of an error, of which no reply has a traceback or a password."""

import json
from collections.abc import Mapping
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from redis.exceptions import NoPermissionError, RedisError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ..callers.chord_parts import ChordIsClaimedError
from ..errors import AffinityError, OptionError, SchemaError, SettingError, TransportError
from ..log_limit import limited_logger
from ..observe import cohorts
from ..observe.as_json import as_json
from ..remote.claims import StaleClaimError
from ..remote.ending import NotAcceptedError, UnderWayError
from ..remote.incarnation import UnknownWorkerError, WrongSecretError
from ..remote.listening import TooManyError
from ..server.fleet import Asked, Row
from .broker import BrokerDownError
from .threads import BusyError

logger = limited_logger(__name__)

#: Seconds after which a client may ask again when the broker was down.
_RETRY_AFTER = {"Retry-After": "1"}

#: The status of the errors of workers over HTTP.
_OF_WORKERS: dict[type[Exception], int] = {
    WrongSecretError: 403,
    UnknownWorkerError: 404,
    StaleClaimError: 409,
    NotAcceptedError: 409,
    ChordIsClaimedError: 503,
    UnderWayError: 503,
    TooManyError: 503,
}

R = TypeVar("R", bound=Row)

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


def reply(found: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return *found*, a report or a part of one, as JSON: the same as the commands print."""
    text = json.dumps(as_json(found), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(text.encode(errors="replace"), status, headers, "application/json")


def rows(asked: Asked[list[R]]) -> Response:
    """Return the rows of all cohorts as JSON, with a header that names those that are down."""
    return reply(cohorts.rows(asked), headers=header_of(asked.down))


def header_of(down: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the header of a reply in which cohorts are missing."""
    return {DOWN: ", ".join(down)} if down else None


def error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error as JSON."""
    return reply({"error": {"code": _CODES.get(status, str(status)), "message": message}}, status, headers)


def reply_to_error(exc: Exception) -> Response:
    """Return the HTTP reply for an error: its status, and its text as JSON."""
    if isinstance(exc, RefusedError):
        return error(exc.status, str(exc))
    if isinstance(exc, (BrokerDownError, BusyError)):
        return error(503, str(exc), _RETRY_AFTER)
    if type(exc) in _OF_WORKERS:
        status = _OF_WORKERS[type(exc)]
        return error(status, str(exc), _RETRY_AFTER if status == 503 else None)
    if isinstance(exc, (OptionError, SettingError)):
        return error(400, str(exc))
    if isinstance(exc, (TransportError, SchemaError, AffinityError)):
        return error(503, str(exc))
    if isinstance(exc, NoPermissionError):
        return error(503, f"the broker's user has no right to that: {exc}")
    if isinstance(exc, RedisError):
        return error(503, f"the broker refused: {exc}")
    logger.error("A request failed", exc_info=exc)
    return error(500, f"an error that was not expected, the log has it: {type(exc).__name__}")


def add_handlers(api: FastAPI) -> None:
    """Have *api* answer errors so."""

    async def on_error(_: Request, exc: Exception) -> Response:
        return reply_to_error(exc)

    async def on_http(_: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        return error(exc.status_code, str(exc.detail), dict(exc.headers or {}))

    async def on_invalid(_: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        return error(400, "; ".join(_wrong(each) for each in exc.errors()))

    api.add_exception_handler(HTTPException, on_http)
    api.add_exception_handler(RequestValidationError, on_invalid)
    for kind in (RefusedError, BrokerDownError, BusyError, AffinityError, RedisError, *_OF_WORKERS, Exception):
        api.add_exception_handler(kind, on_error)


def _wrong(each: dict[str, object]) -> str:
    place = each.get("loc")
    name = ".".join(str(part) for part in place[1:]) if isinstance(place, (tuple, list)) else ""
    got = repr(each.get("input"))
    return f"{name or 'body'}: {each.get('msg')}, got: {got if len(got) <= 100 else got[:100] + '...'}"
