"""The web UI and its live data. Paths under ``/page/`` do not need a token; all other paths do.

The web UI is a few files, which are served unchanged: no build step, and nothing from another host. `news` queries the
broker, and `files/main.js` shows the data.
"""

from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..auth import ROLE
from ..replies import RefusedError, error_reply, json_reply, reply_responses, text_response
from ..site import Site, values_hidden_reason
from .news import MAX_VIEWERS, News

_FILES = Path(__file__).with_name("files")

#: Media types of the web UI's files. The system's own table can lack one, or contain a different type.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}

_EVENT_STREAM = "text/event-stream"
_EVENTS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(frozen=True)
class CurrentUser:
    """The name of the *app*, and the *role* of the request: "read", "submit" or "admin".

    *sees_values* is true if the request may read arguments, results and tracebacks.
    """

    app: str
    role: str
    sees_values: bool


def add_page_routes(api: APIRouter, site: Site) -> None:
    """Add the web UI (``/``, ``/wall``, ``/page/...``: files) and its events (``/api/events``) to *api*."""
    news = News(site)
    files = {path.relative_to(_FILES).as_posix(): path for path in _FILES.rglob("*") if path.suffix in _TYPES}

    @api.get("/", include_in_schema=False)
    async def page() -> Response:
        return _file(_FILES / "index.html")

    @api.get("/wall", include_in_schema=False)
    async def wall() -> Response:
        return _file(_FILES / "wall.html")

    @api.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return _file(_FILES / "icon.svg")

    @api.get("/page/{name:path}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in files:
            raise RefusedError(404, f"the page has no file {name[:300]!r}")
        return _file(files[name])

    @api.get("/api/me", summary="The app, and the rights of the request", responses=reply_responses(CurrentUser))
    async def me(request: Request) -> Response:
        sees_values = values_hidden_reason(site, request) is None
        return json_reply(CurrentUser(site.app.main or "", request.scope[ROLE], sees_values))

    @api.get(
        "/api/events",
        summary="The state of the fleet as server-sent events, every 2 s",
        response_class=Response,
        responses=text_response(_EVENT_STREAM, "Events `news`, or `down` while the broker does not answer."),
    )
    async def events() -> Response:
        return _Stream(news)


class _Stream(StreamingResponse):
    """An event stream for one viewer, who is counted from before the reply's head until the connection ends."""

    def __init__(self, news: News) -> None:
        super().__init__(news.events(), media_type=_EVENT_STREAM, headers=_EVENTS)
        self._news = news

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._news.viewing() as is_admitted:
            if is_admitted:
                await super().__call__(scope, receive, send)
            else:
                await error_reply(503, f"{MAX_VIEWERS} viewers look already")(scope, receive, send)


def _file(path: Path) -> Response:
    return FileResponse(path, media_type=_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})
