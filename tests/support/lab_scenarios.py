"""One-line scenarios and traces for tests of the lab."""

from celery_affinity.lab.scenario import Arrival, Scenario
from celery_affinity.lab.trace import TracedJob, TracedWorker

S = 1_000_000


def worker(name, *types, slots=1, joined_s=0, left_s=None):
    return TracedWorker(name, types or ("pdf",), slots, joined_s * S, None if left_s is None else left_s * S)


def job(number, since_s=0, took_s=1, type_="pdf", *, enqueued_s=None, **fields):
    since_us = round(since_s * S)
    enqueued_us = since_us if enqueued_s is None else round(enqueued_s * S)
    return Arrival(number, type_, since_us, enqueued_us, round(took_s * S), **fields)


def scenario(*parts, settings=None, paused=()):
    """Return a scenario of workers and jobs, in any order."""
    workers = tuple(each for each in parts if isinstance(each, TracedWorker))
    arrivals = sorted(
        (each for each in parts if isinstance(each, Arrival)), key=lambda each: (each.since_us, each.number)
    )
    return Scenario(workers or (worker("w"),), tuple(arrivals), settings or {}, paused)


def traced(type_="pdf", since_s=0, claimed_s=None, ended_s=None, **fields):
    """Return a job of a trace, which started when it was claimed."""
    claimed_us = None if claimed_s is None else round(claimed_s * S)
    ended_us = None if ended_s is None else round(ended_s * S)
    enqueued_us = round(fields.pop("enqueued_s", since_s) * S)
    given = {"claimed_us": claimed_us, "started_us": claimed_us, "ended_us": ended_us}
    given["worker"] = None if claimed_us is None else "w"
    return TracedJob(type_, enqueued_us, round(since_s * S), **{**given, **fields})


def order(schedule):
    """Return the numbers of the jobs in the order of their claims."""
    return [run.number for run in schedule.runs]


def claims(schedule):
    """Return number, worker, claim time and end time (s) of each run."""
    return [(run.number, run.worker, run.claimed_us / S, run.ended_us / S) for run in schedule.runs]
