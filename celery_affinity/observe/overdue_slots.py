"""Slots whose jobs have run for far longer than their type usually does: averages do not say when such a job ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..clock import SECOND_US
from ..rules.encoding import decode
from ..rules.rows import number_of, text_of
from ..server.reader import Reader
from .job_row import JobRow, read_jobs

#: A job is overdue once it has run for so many times the usual time, and for so many seconds.
_FAR_TIMES, _LEAST_S = 10, 10.0

#: Fields of a job that are read.
_FIELDS = ("task", "name", "type", "worker", "claimed", "started")

#: Largest numbers of workers and of jobs that are looked at: with more of them nothing is said.
_MOST_WORKERS, _MOST_JOBS = 100, 200


@dataclass(frozen=True)
class OverdueJob:
    """A job that takes a slot for far longer than *usual_s*, the average of its type."""

    task_id: str
    task: str
    worker: str
    ran_s: float
    usual_s: float


def overdue_jobs(reader: Reader, profiles: Sequence[str], now_us: int) -> list[OverdueJob]:
    """Return the overdue jobs of the workers with these *profiles*, the longest first."""
    workers = [text_of(worker) for worker in reader.ask_one("zrange", reader.key("heartbeats"), 0, _MOST_WORKERS)]
    if len(workers) > _MOST_WORKERS:
        return []
    rows = reader.ask([("hmget", reader.key("worker", worker), ["profile", "name"]) for worker in workers])
    names = {
        worker: decode(text_of(name or b""))
        for worker, (profile, name) in zip(workers, rows, strict=True)
        if profile is not None and text_of(profile) in profiles
    }
    found = reader.ask([("hkeys", reader.key("claims", worker)) for worker in names])
    ids = [text_of(job) for each in found for job in each]
    if len(ids) > _MOST_JOBS:
        return []
    rows = read_jobs(reader, ids, _FIELDS)
    usual = reader.fields("durations", sorted({row.lane.type for row in rows}))
    jobs = [_overdue(row, names, usual, now_us) for row in rows]
    return sorted((each for each in jobs if each is not None), key=lambda each: -each.ran_s)


def _overdue(row: JobRow, workers: Mapping[str, str], usual: Mapping[str, str], now_us: int) -> OverdueJob | None:
    usual_us = number_of(usual.get(row.lane.type))
    ran_us = now_us - (row.started_us or row.claimed_us or now_us)
    if not usual_us or ran_us < max(_FAR_TIMES * usual_us, _LEAST_S * SECOND_US):
        return None
    worker = workers.get(row.worker, row.worker)
    return OverdueJob(row.task_id, row.task, worker, ran_us / SECOND_US, usual_us / SECOND_US)
