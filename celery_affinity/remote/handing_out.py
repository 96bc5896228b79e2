"""Claims become jobs in JSON. A job that only Celery's workers can run is left to them, where they serve its type; any
other that this cannot be done with is a dead letter. So none is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery

from ..callers.failure import MOST, printable
from ..client.bodies import MOST_CHARACTERS, raw_body
from ..client.first_try import rules_in
from ..client.of_app import merge_of
from ..client.stamp import PROPERTY, Message
from ..clock import SECOND_US
from ..log_limit import limited_logger
from ..rules.ahead import NOTHING
from ..rules.keyed.key_rules import key_in, tenant_in
from ..rules.marks import is_batch, merges
from ..rules.untrusted import loads, shape_of, strict_json, text, whole
from ..server.arguments import End
from ..server.replies import Claim
from ..server.scheduler import Scheduler
from . import left_to_celery
from .claims import message_in
from .incarnation import Incarnation

logger = limited_logger(__name__)

#: The number of a call of `release` that is never repeated as one.
ONCE = 1


@dataclass(frozen=True)
class HandedOut:
    """A job for a worker: *id* and *fence* are its claim, which its start, end and heartbeats name.

    *fence* grows with each claim of the fleet: storage that remembers the largest one of a *key* can refuse what an
    older claim still writes. *expires_in_s*: after that it does not start any more. *acks_late*: whether the job runs
    again if the worker dies after the start. *args*, *kwargs*: as the message has them.
    """

    id: str
    fence: int
    type: str
    task: str
    task_id: str
    args: list[Any]
    kwargs: dict[str, Any]
    deliveries: int
    requeues: int
    retries: int
    waited_s: float
    expires_in_s: float | None
    acks_late: bool
    key: str | None
    tenant: str | None


class ForCeleryError(ValueError):
    """A job is for Celery's workers: its arguments have no strict JSON, or its merging runs a function in Python."""


def hand_out(scheduler: Scheduler, app: Celery, worker: Incarnation, claims: Sequence[Claim]) -> list[HandedOut]:
    """Return *claims* of *worker* as jobs, without those that are left to Celery's workers, or become dead letters."""
    if not claims:
        return []
    now_us = scheduler.reader.now_us()
    jobs = []
    for claim in claims:
        try:
            jobs.append(_job(scheduler, app, claim, now_us))
        except ValueError as exc:
            why = printable(str(exc))
            if isinstance(exc, ForCeleryError) and left_to_celery.leave(scheduler, app, worker, claim, why):
                logger.warning("Job %s is for Celery's workers, and stays pending for them: %s", claim.job_id, why)
            else:
                bury(scheduler, worker.id, claim.job_id, claim.fence, why)
    return jobs


def bury(scheduler: Scheduler, worker: str, job_id: str, fence: str, why: str) -> None:
    """Make a claimed job a dead letter."""
    logger.error("Job %s cannot be run by a worker over HTTP, and becomes a dead letter: %s", job_id, why)
    end = End(job_id, fence, f"rejected {why[:MOST]}")
    scheduler.tell_ends(worker, acks=(), ends=[end], sequence=ONCE, inline=False, may_hold=NOTHING)


def _job(scheduler: Scheduler, app: Celery, claim: Claim, now_us: int) -> HandedOut:
    message = message_in(claim.message)
    headers, properties = message["headers"], message["properties"]
    task = app.tasks.get(headers["task"])
    if task is None:
        raise ValueError(f"NotRegistered: {headers['task'][:100]}: the app of the web process lacks the task")
    retries = whole(headers.get("retries") or 0)
    if retries is None:
        raise ValueError(f"its header retries must be a whole number, got: {shape_of(headers['retries'])}")
    last = _call_that_counts(scheduler, app, claim)
    args, kwargs = _arguments(last or message)
    try:
        strict_json([headers["id"], args, kwargs])
    except ValueError as exc:
        raise ForCeleryError(f"its id and arguments must have a form in JSON (RFC 8259): {exc}") from exc
    rules = rules_in(properties.get(PROPERTY))
    return HandedOut(
        claim.job_id,
        int(claim.fence),
        claim.type,
        headers["task"],
        headers["id"],
        args,
        kwargs,
        claim.deliveries,
        claim.requeues,
        retries,
        max(0, now_us - claim.enqueued_us) / SECOND_US,
        None if claim.expires_us is None else max(0, claim.expires_us - now_us) / SECOND_US,
        bool(task.acks_late),
        key_in(rules),
        tenant_in(rules),
    )


def _call_that_counts(scheduler: Scheduler, app: Celery, claim: Claim) -> Message | None:
    """Return the message of the call whose arguments a merged run has, unless that is the claim's own.

    Raises ForCeleryError for a task whose merging runs a function, or gives the task all calls: Python alone has these.
    """
    if not (is_batch(claim.job_id) or merges(claim.job_id)):
        return None
    merge = merge_of(app.tasks[message_in(claim.message)["headers"]["task"]])
    if merge is None:
        return None
    if merge.keep == "all" or merge.functions:
        words = ", ".join([*(name for name, _ in merge.functions), *(["keep='all'"] if merge.keep == "all" else [])])
        raise ForCeleryError(f"its calls merge with {words}, which is for workers in Python")
    if merge.keep == "first" or not is_batch(claim.job_id):
        return None
    raw, at_us, after = claim.message, -1, 0
    while True:
        page = scheduler.callers(claim.job_id, fence=claim.fence, after=after)
        if page is None:
            break
        at_us = max(at_us, page.primary_us) if raw is claim.message else at_us
        for caller in page.callers:
            if caller.published_us >= at_us:
                raw, at_us = caller.message, caller.published_us
        if page.after is None:
            break
        after = page.after
    return message_in(raw)


def _arguments(message: Message) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in the body of *message*. Raises ForCeleryError unless that says to be JSON.

    Raises ValueError for JSON that is not as Celery writes it.
    """
    kind, encoding = text(message.get("content-type")), (text(message.get("content-encoding")) or "").lower()
    if (
        kind != "application/json"
        or encoding not in ("utf-8", "utf8", "us-ascii")
        or "compression" in message["headers"]
    ):
        compression = text(message["headers"].get("compression"))
        its = f"{kind}, {encoding}" + (f", {compression}" if compression else "")
        raise ForCeleryError(f"its body must be JSON (application/json in utf-8, not compressed), got: {its}")
    try:
        # Its callbacks, which stay here, may be nested deeper than arguments.
        args, kwargs, _ = loads(raw_body(message, MOST_CHARACTERS), most_nested=None)
    except (ValueError, TypeError) as exc:
        raise ValueError(f"its body must be JSON of the second protocol: {type(exc).__name__}: {exc}") from exc
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise ValueError("its body must have a list of arguments, and a dict of those by name")
    return args, kwargs
