"""What replies look like, for ``/openapi.json``: models made of the reports, which routes send by `as_json`."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from fastapi.security import HTTPBearer
from pydantic import BaseModel, create_model

from ..observe.as_json import OF_COHORTS, properties_of


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


def errors(*statuses: int | str) -> dict[int | str, dict[str, Any]]:
    """Return what FastAPI's ``responses`` takes for errors; without *statuses*, for those that can come anywhere."""
    found = {each: {"description": _MEANINGS[each], **_REPLY} for each in statuses or _ANYWHERE}
    return found if statuses else found | {"default": {"description": _MEANINGS["default"], "model": Error}}


def replies(found: Any, *of_errors: int, status: int = 200, text: str = "The answer.") -> dict[int | str, Any]:
    """Return what FastAPI's ``responses`` takes: with *status* comes *found*, a report, a list of them, or a model."""
    return {status: {"model": described(found), "description": text}, **(errors(*of_errors) if of_errors else {})}


def text(media_type: str, description: str) -> dict[int | str, Any]:
    """Return what FastAPI's ``responses`` takes for a route that replies with a text, whose class is ``Response``."""
    return {200: {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}}


def described(of: Any) -> Any:
    """Return the type of which pydantic makes the schema of the JSON that `as_json` makes of a value of type *of*."""
    if isinstance(of, type) and is_dataclass(of):
        return model_of(of)
    origin, parts = get_origin(of), tuple(map(described, get_args(of)))
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
        each: (described(hint), None if each in OF_COHORTS else ...) for each, hint in parts.items()
    }
    return create_model(name or report.__name__, __doc__=inspect.getdoc(report), __module__=report.__module__, **typed)


def with_more(name: str, report: type, **more: Any) -> type[BaseModel]:
    """Return the model of *report* with further parts, which are there if the request asks for them."""
    parts: dict[str, Any] = {each: (described(of), None) for each, of in more.items()}
    return create_model(name, __base__=model_of(report), __doc__=inspect.getdoc(report), **parts)
