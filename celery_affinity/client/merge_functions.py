"""The functions of a Merge (`fold`, `split`) that are given by their dotted names: the worker imports them."""

from dataclasses import replace
from typing import Any

from celery.utils.imports import symbol_by_name

from ..errors import OptionError, refuse
from ..rules.merging import Merge


def with_functions(merge: Merge) -> Merge:
    """Return *merge* with its functions themselves. Raises OptionError for a name that leads to none."""
    functions: dict[str, Any] = {name: _function(name, value) for name, value in merge.functions}
    return replace(merge, **functions)


def wrong(merge: Merge | None) -> str | None:
    """Return a complaint about the functions of *merge*; None if none is wrong."""
    try:
        _ = merge and with_functions(merge)
    except OptionError as exc:
        return str(exc)
    return None


def _function(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        function = symbol_by_name(value)
    except Exception as exc:  # any: the module is the user's
        refusal = refuse(f"{name} of merge", "the dotted name of a function", value)
        raise OptionError(f"{refusal} ({type(exc).__name__}: {exc})") from exc
    if not callable(function):
        raise refuse(f"{name} of merge", "the dotted name of a function", value)
    return function
