"""Who sees arguments, results and tracebacks: the setting `affinity_show_values_to`, and the role of the token."""

from fastapi import Request

from ..operate import values
from .replies import RefusedError
from .security import SEES_AS
from .site import Site


def why_hidden(site: Site, request: Request) -> str | None:
    """Return why *request* gets no values, in words; None if it does."""
    return values.why_hidden(site.app, request.scope.get(SEES_AS, "admin"))


def check(site: Site, request: Request, is_asked: bool) -> None:
    """Raise RefusedError for a request that asks for values, or by values, without the right to see them."""
    hidden = why_hidden(site, request) if is_asked else None
    if hidden:
        raise RefusedError(403, hidden)
