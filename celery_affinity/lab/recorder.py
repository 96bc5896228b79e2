"""Records a fleet: lets workers record their claims, and makes a trace of their pages.

A recording continues while the recorder extends it every few seconds, and pages are read as they arrive. So a recorder
that dies leaves nothing behind. Without a recorder, workers record from their start for the duration in
``affinity_record``, and `fetch` reads the pages.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from redis.exceptions import RedisError

from ..clock import SECOND_US, now_s
from ..errors import TraceError
from ..log_limit import limited_logger
from ..reports import type_limits
from ..reports.job_lists import MAX_JOBS_READ, JobFilter, jobs_page
from ..reports.job_rows import read_jobs
from ..scheduler import recordings
from ..scheduler.recordings import Recording
from ..scheduler.scheduler import Scheduler
from ..schema.constants import ENDED_KEPT_S
from ..schema.values import decode_number, decode_part, decode_text
from ..settings.wire import complete_settings
from ..versions import versions
from .trace import EXPIRED, PENDING, REVOKED, Trace, TracedJob
from .trace_assembly import KeyHashes, TraceAssembly, due_options, traced_job

logger = limited_logger(__name__)
#: Seconds until a recording ends without an extension, and seconds between extensions.
LEASE_S, _EXTEND_AFTER_S = 30, 5
#: Seconds between two reads of pages.
_READ_INTERVAL_S = 0.5
#: Seconds to wait for a worker beyond two heartbeats.
_WORKER_TIMEOUT_S = 2.0
#: Maximum number of workers in a warning.
_MAX_NAMED = 5
#: Receives the elapsed seconds of the recording.
Progress = Callable[[float], object]
Warn = Callable[[str], object]


class Recorder:
    """Records the fleet of *scheduler*. *warn* is called for missing data."""

    def __init__(self, scheduler: Scheduler, *, warn: Warn = logger.warning) -> None:
        self._scheduler, self._reader, self._warn = scheduler, scheduler.reader, warn
        self._id = uuid.uuid4().hex[:12]
        self._renewed_s = 0.0
        self._since_us = 0
        self._fetched: Recording | None = None
        self._after = "-"
        in_force, _ = self._reader.settings()
        self._hashes = KeyHashes(in_force.get("limits", ""))
        self._assembly = TraceAssembly(self._hashes)
        self._facts = {
            "settings": self._hashes.settings(complete_settings(in_force)),
            "paused": tuple(
                sorted(
                    "*" if pause.kind == "all" else pause.name
                    for pause in type_limits.pauses_in_force(self._reader)
                    if pause.kind in ("all", "type")
                )
            ),
            "versions": {"celery_affinity": versions()["celery_affinity"], "server": _server(scheduler)},
        }
        self._interval_s = int(complete_settings(in_force)["heartbeat_interval_us"]) / SECOND_US

    def record(self, for_s: float, progress: Progress = lambda _: None) -> Trace:
        """Record for *for_s*, counted from the time at which all workers record, and return the trace.

        KeyboardInterrupt ends the recording early; a second one does not wait for the last pages of workers. Raises
        TraceError if another recording is running.
        """
        begun = recordings.begin_recording(self._scheduler, self._id, for_s=LEASE_S, kept_s=0, instead=True)
        if begun.id != self._id:
            how = "by another `lab record`" if begun.is_leased else "since an app.conf has affinity_record"
            raise TraceError(
                f"a recording is on {how}, at the latest until {_iso_time(begun.until_us)}: there is one at a time"
            )
        self._renewed_s, self._since_us = now_s(), begun.since_us
        self._facts["recorded_at"] = _iso_time(begun.since_us)
        try:
            with suppress(KeyboardInterrupt):
                self._read_until(lambda: not self._incomplete_workers(0), 2 * self._interval_s + _WORKER_TIMEOUT_S)
                begun_s = now_s()
                self._read_until(lambda: progress(now_s() - begun_s), for_s)
            return self._finish(round(for_s * SECOND_US))
        finally:
            with suppress(RedisError, OSError):
                recordings.end_recording(self._scheduler, self._id)

    def _read_until(self, is_over: Callable[[], object], within_s: float) -> bool:
        """Read pages until *is_over*, for up to *within_s*. Return True if it is over. The server may be down."""
        ends_s = now_s() + within_s
        while True:
            with suppress(RedisError, OSError):
                self._extend_and_read()
                if is_over():
                    return True
            remaining_s = ends_s - now_s()
            if remaining_s <= 0:
                return False
            time.sleep(min(_READ_INTERVAL_S, remaining_s))

    def _extend_and_read(self) -> None:
        """Extend the recording, and read the new pages."""
        if now_s() - self._renewed_s > _EXTEND_AFTER_S:
            recordings.begin_recording(self._scheduler, self._id, for_s=LEASE_S, kept_s=0)
            self._renewed_s = now_s()
        self._read_pages(self._id)
        if self._after != "-":
            recordings.forget_pages(self._scheduler, self._id, self._after)
        unknown = self._assembly.see(self._alive(), self._reader.now_us())
        for id_, facts in zip(unknown, self._worker_facts(unknown), strict=True):
            self._assembly.add_worker(id_, *facts)

    def _read_pages(self, recording: str) -> None:
        for page in recordings.recording_pages(self._scheduler, recording, self._after):
            self._assembly.add(page)
            self._after = page.number

    def _alive(self) -> list[str]:
        return list(self._reader.large_zset("heartbeats"))

    def _incomplete_workers(self, up_to_us: int) -> list[str]:
        return self._assembly.behind(self._alive(), max(1, up_to_us))

    def _worker_facts(self, workers: list[str]) -> Iterator[tuple[str, list[str], int, int]]:
        """Yield name, types, slots and join time of *workers* from the server."""
        key = self._reader.key
        rows = self._reader.ask([("hmget", key("worker", id_), ["name", "profile", "slots"]) for id_ in workers])
        profiles = self._reader.large_hash("profiles") if workers else {}
        joined = self._reader.large_zset("joined") if workers else {}
        for id_, (name, profile, slots) in zip(workers, rows, strict=True):
            types = profiles.get((profile or b"").decode(), "").split()
            yield (
                decode_part((name or b"?").decode()),
                list(map(decode_part, types)),
                decode_number(slots),
                int(joined.get(id_, 0)),
            )

    def _finish(self, for_us: int) -> Trace:
        now_us = round(time.time() * SECOND_US)
        with suppress(RedisError, OSError):
            now_us = self._reader.now_us()
        end_us = min(now_us, self._assembly.begun_us(self._since_us) + for_us)
        waiting: list[tuple[str, TracedJob]] = []
        with suppress(KeyboardInterrupt):
            waiting = self._unclaimed_jobs(end_us)
            self._read_until(lambda: not self._incomplete_workers(end_us), 2 * self._interval_s + _WORKER_TIMEOUT_S)
        with suppress(RedisError, OSError):
            if late := self._incomplete_workers(end_us):
                names = ", ".join(self._assembly.name_of(id_) for id_ in late[:_MAX_NAMED])
                more = " and others" if len(late) > _MAX_NAMED else ""
                self._warn(
                    f"these workers did not hand over their last claims, which are not in the trace: {names}{more}; "
                    "a worker that runs an older version of celery_affinity does not record"
                )
        return self._trace(end_us, waiting)

    def _trace(self, end_us: int, waiting: list[tuple[str, TracedJob]]) -> Trace:
        begin_us = min(self._assembly.begun_us(self._since_us), end_us)
        trace = self._assembly.trace(begin_us, end_us, waiting, **self._facts)
        if trace.lost:
            self._warn(f"{trace.lost:,} claims are not in the trace: workers had no room to keep them")
        return trace

    def fetch(self) -> Trace:
        """Return the trace of the recording that workers began, until now or its end. Raises TraceError."""
        recording = recordings.current_recording(self._scheduler)
        if recording is None or recording.is_leased:
            raise TraceError(
                "there is no recording to fetch: --for records now, and affinity_record in the app.conf has workers "
                "record from their start on"
            )
        self._since_us, self._facts["recorded_at"] = recording.since_us, _iso_time(recording.since_us)
        self._read_pages(recording.id)
        end_us = min(recording.until_us, self._reader.now_us())
        self._fetched = recording if end_us == recording.until_us else None
        late_us = end_us - round(2 * self._interval_s * SECOND_US)
        end_us = min(end_us, self._assembly.known_until(self._alive(), late_us, end_us))
        return self._trace(end_us, self._unclaimed_jobs(end_us))

    def forget(self) -> None:
        """Delete the recording returned by `fetch` if it has ended, so that workers that start record again."""
        if self._fetched is not None:
            recordings.end_recording(self._scheduler, self._fetched.id)

    def _unclaimed_jobs(self, end_us: int) -> list[tuple[str, TracedJob]]:
        """Return the waiting jobs, and the retained jobs that ended without a claim."""
        jobs: list[tuple[str, TracedJob]] = []
        with suppress(RedisError, OSError):
            jobs += self._jobs_in_state("pending", PENDING, end_us)
            keep_us = complete_settings(self._reader.fields("settings", ["keep_us"]))["keep_us"]
            if int(keep_us) > ENDED_KEPT_S * SECOND_US:  # otherwise there is no list of them
                jobs += self._jobs_in_state("revoked", REVOKED, end_us)
                jobs += self._jobs_in_state("expired", EXPIRED, end_us)
        return jobs

    def _jobs_in_state(self, state: str, outcome: str, end_us: int) -> Iterator[tuple[str, TracedJob]]:
        cursor: str | None = None
        while True:
            page = jobs_page(self._reader, JobFilter(state=state), MAX_JOBS_READ, cursor)
            ids = [job.job_id for job in page.jobs if job.job_id]
            rows = read_jobs(self._reader, ids)
            hashes = self._reader.ask([("hmget", self._reader.key("job", id_), ["due", "head"]) for id_ in ids])
            for row, due in zip(rows, hashes, strict=True):
                is_open = state == "pending"
                has_ended_unclaimed = not row.fence and self._since_us <= row.ended_us <= end_us
                if row.enqueued_us <= end_us and (is_open or has_ended_unclaimed):
                    options = {"task": row.task or None, **due_options(row.enqueued_us, *map(decode_text, due))}
                    options |= self._hashes.options(row.rules, row.task)
                    ended_us = None if is_open else row.ended_us
                    yield (
                        row.job_id,
                        traced_job(
                            row.type, row.enqueued_us, row.lane.name, options, outcome=outcome, ended_us=ended_us
                        ),
                    )
            cursor = page.cursor
            if cursor is None:
                return


def _server(scheduler: Scheduler) -> str:
    info = scheduler.client.info("server")
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info.get('redis_version', '?'))}"


def _iso_time(us: int) -> str:
    return datetime.fromtimestamp(us / SECOND_US, UTC).isoformat(timespec="seconds")
