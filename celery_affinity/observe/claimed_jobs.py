"""Whether a claimed job runs already: workers say with each heartbeat which jobs have started; before, nobody knows.

What is known decides: the start that a worker told, an ack, the inbox, the time since the claim.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from redis.exceptions import NoPermissionError

from ..rules.encoding import decode
from ..rules.heartbeats import has_been_said
from ..rules.rows import text_of
from ..server.reader import Command, Reader
from . import sentences
from .job_row import JobRow


class ClaimedJob(NamedTuple):
    """A claimed job: *state*, "claimed" or "running", *since_us* of that (server's clock), and *note* for people."""

    state: str
    since_us: int
    note: str | None = None


def held(reader: Reader, runs: Sequence[JobRow], heartbeat_us: int) -> tuple[dict[str, str], dict[str, ClaimedJob]]:
    """Return the names of workers by id, and what is known of each claimed job of *runs* by its id.

    *runs*: jobs that have, or had, a worker. One round trip; a second one if a job has just been claimed.
    """
    if not runs:
        return {}, {}
    claimed = [run for run in runs if run.state == "claimed"]
    unsure = [run for run in claimed if run.started_us is None and not run.acked]
    names, unread = _of_workers(reader, list(dict.fromkeys(run.worker for run in runs)), {run.worker for run in unsure})
    found = {run.job_id: ClaimedJob("running", run.started_us or run.claimed_us) for run in claimed}
    now_us = reader.now_us() if unsure else 0
    for run in unsure:
        found[run.job_id] = _unsure(run, unread, now_us, heartbeat_us)
    return names, found


def _unsure(run: JobRow, unread: Collection[str] | None, now_us: int, heartbeat_us: int) -> ClaimedJob:
    if unread is None:
        note = sentences.NOT_TOLD
    elif f"{run.job_id} {run.fence}" in unread:
        note = sentences.UNREAD
    elif has_been_said(now_us - run.claimed_us, heartbeat_us):  # that its task started, if so
        note = sentences.NOT_STARTED
    else:
        return ClaimedJob("running", run.claimed_us)
    return ClaimedJob("claimed", run.claimed_us, note)


def _of_workers(
    reader: Reader, workers: Sequence[str], asked: Collection[str]
) -> tuple[dict[str, str], set[str] | None]:
    """Return the names of workers by id, and what the inboxes of those *asked* have: job ids and fencing numbers.

    None without the right to look into inboxes.
    """
    of_names: list[Command] = [("hget", reader.key("worker", worker), "name") for worker in workers]
    of_inboxes: list[Command] = [("lrange", reader.key("inbox", worker), 0, -1) for worker in asked]
    try:
        found = reader.ask([*of_names, *of_inboxes])
    except NoPermissionError:  # a user without a right to messages has none to inboxes, which hold messages
        found = [*reader.ask(of_names), None]
    names = {worker: decode(text_of(name)) for worker, name in zip(workers, found, strict=False) if name}
    inboxes = found[len(workers) :]
    if None in inboxes:
        return names, None
    return names, {text_of(b" ".join(payload.split(b" ", 2)[:2])) for inbox in inboxes for payload in inbox}
