"""The part of an address after ``?``: a name that a route does not know is refused.

If it were ignored, a misspelt filter would mean all jobs.
"""

from fastapi import Request
from fastapi.routing import APIRoute

from ..rules.spelling import closest
from .replies import RefusedError


async def refuse_unknown(request: Request) -> None:
    """Raise RefusedError for a name in the query that a route of ``/api`` does not have."""
    route = request.scope.get("route")
    if not (request.query_params and isinstance(route, APIRoute) and route.path.startswith("/api/")):
        return
    about = request.app.openapi()["paths"][route.path_format][request.method.lower()]
    known = [each["name"] for each in about.get("parameters", ()) if each["in"] == "query"]
    for name in request.query_params:
        if name not in known:
            close = closest(name, known)
            question = f"did you mean {close!r}? " if close else ""
            accepted = ", ".join(known) or "nothing"
            raise RefusedError(400, f"unknown name after the '?': {name[:100]!r}; {question}accepted: {accepted}")
