"""Jobs that are submitted: a task is called by its name, and a repeated request is the same job."""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ...errors import OptionError, QueueFull
from ...observe.jobs import Job, unknown
from ...operate import submit
from ..broker import BrokerDownError
from ..described import replies
from ..replies import RefusedError, reply
from ..site import Site
from ..threads import BusyError
from .jobs import get

#: Options of a call in the OpenAPI description.
_OPTIONS: dict[str, Any] = {
    "properties": {name: {"description": words} for name, (words, _) in submit.ACCEPTED.items()},
    "additionalProperties": False,
}


class TaskCall(BaseModel):
    """A call of a task. *options*: those of `submit.ACCEPTED`, each as in `apply_async`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    task: str
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict, json_schema_extra=_OPTIONS)


def add(api: APIRouter, site: Site) -> None:
    @api.post(
        "/api/jobs",
        summary="Call a task; with an Idempotency-Key, a repeated request makes no second job",
        status_code=201,
        responses={
            **replies(Job, 404, 409, 422, text="The request was repeated: the job that the first one made."),
            **replies(Job, status=201, text="The job is made."),
        },
    )
    async def submit_job(
        request: Request, call: TaskCall, idempotency_key: Annotated[str | None, Header()] = None
    ) -> Response:
        if not site.allows(call.task):
            raise RefusedError(404, f"no task that can be submitted is named {call.task[:300]!r}")
        try:
            asked = submit.Submission(call.task, call.args, call.kwargs, call.options, idempotency_key)
            task_id, is_new = await site.foreign(_submit, site, asked, submit.Ids.of(asked.name))
        except (submit.UsedBeforeError, QueueFull) as exc:
            raise RefusedError(409, str(exc)) from exc
        except OptionError as exc:
            raise RefusedError(422, str(exc)) from exc
        place = f"{request.scope.get('root_path') or ''}/api/jobs/{quote(task_id, safe='')}"
        return reply(await _just_submitted(site, task_id), 201 if is_new else 200, {"Location": place})


def _submit(site: Site, asked: submit.Submission, ids: submit.Ids) -> tuple[str, bool]:
    return submit.submit(site.app, asked, ids, site.broker.reach, site.broker.connection)


async def _just_submitted(site: Site, id: str) -> Job:
    """Return the job *id*, which was published just now; its id alone if the broker does not answer any more."""
    try:
        return await get(site, id)
    except (BrokerDownError, BusyError):
        return unknown(id, "submitted; the broker does not answer now")
