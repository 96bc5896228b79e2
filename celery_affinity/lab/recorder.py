"""Records a fleet: has workers write down their claims, and makes a trace of what they hand over.

A recording is on for as long as the recorder says so every few seconds; what workers have written is read as it comes.
So a recorder that dies leaves nothing behind. Without a recorder, workers record from their start on for as long as
``affinity_record`` says, and `fetch` reads that.
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
from ..reports.job_lists import MOST, JobFilter, jobs_page
from ..reports.job_rows import read_jobs
from ..scheduler import recordings
from ..scheduler.recordings import Recording
from ..scheduler.scheduler import Scheduler
from ..schema.constants import ENDED_KEPT_S
from ..schema.values import decode_number, decode_part
from ..settings.wire import complete_settings
from ..versions import versions
from .trace import EXPIRED, PENDING, REVOKED, Trace
from .trace_assembly import NO_RULES, KeyHashes, TraceAssembly, UnclaimedJobs

logger = limited_logger(__name__)

#: Time, s, for which a recording goes on that nobody prolongs, and the pause before it is prolonged.
LEASE_S, _RENEW_S = 30, 5

#: Pause, s, between two looks at what workers have handed over.
_PAUSE_S = 0.5

#: Time, s, for which a worker is waited for, beyond two heartbeats.
_PATIENCE_S = 2.0

#: Most workers that a warning names.
_MOST_NAMED = 5

#: Hears how much of the time of the recording has passed, s.
Progress = Callable[[float], object]
Warn = Callable[[str], object]


class Recorder:
    """Records the fleet of *scheduler*. *warn* hears what is not in the trace."""

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
            "paused": tuple(sorted("*" if each.kind == "all" else each.name for each in _paused(scheduler))),
            "versions": {"celery_affinity": versions()["celery_affinity"], "server": _server(scheduler)},
        }
        self._interval_s = int(complete_settings(in_force)["heartbeat_interval_us"]) / SECOND_US

    # -- a recording of its own

    def record(self, for_s: float, progress: Progress = lambda _: None) -> Trace:
        """Record for *for_s*, from the moment at which all workers record, and return the trace.

        KeyboardInterrupt ends the recording early; a second one does not wait for what workers still have to hand over.
        Raises TraceError if a recording is on.
        """
        self._begin()
        try:
            with suppress(KeyboardInterrupt):
                self._until(lambda: not self._behind(0), 2 * self._interval_s + _PATIENCE_S)
                begun_s = now_s()
                self._until(lambda: progress(now_s() - begun_s), for_s)
            return self._end(round(for_s * SECOND_US))
        finally:
            with suppress(RedisError, OSError):
                recordings.end_recording(self._scheduler, self._id)

    def _begin(self) -> None:
        begun = recordings.begin_recording(self._scheduler, self._id, for_s=LEASE_S, kept_s=0, instead=True)
        if begun.id != self._id:
            how = "by another `lab record`" if begun.is_leased else "since an app.conf has affinity_record"
            raise TraceError(
                f"a recording is on {how}, at the latest until {_moment(begun.until_us)}: there is one at a time"
            )
        self._renewed_s, self._since_us = now_s(), begun.since_us
        self._facts["recorded_at"] = _moment(begun.since_us)

    def _until(self, is_over: Callable[[], object], within_s: float) -> bool:
        """Read what comes until *is_over*, *within_s* at most. Return whether it was. The server may be down."""
        ends_s = now_s() + within_s
        while True:
            with suppress(RedisError, OSError):
                self._look()
                if is_over():
                    return True
            left_s = ends_s - now_s()
            if left_s <= 0:
                return False
            time.sleep(min(_PAUSE_S, left_s))

    def _look(self) -> None:
        """Have the recording go on, and read what has come."""
        if now_s() - self._renewed_s > _RENEW_S:
            recordings.begin_recording(self._scheduler, self._id, for_s=LEASE_S, kept_s=0)
            self._renewed_s = now_s()
        self._read(self._id, forget=True)
        unknown = self._assembly.see(self._alive(), self._reader.now_us())
        for id_, facts in zip(unknown, self._rows_of(unknown), strict=True):
            self._assembly.add_worker(id_, *facts)

    def _read(self, recording: str, *, forget: bool) -> None:
        for page in recordings.recording_pages(self._scheduler, recording, self._after):
            self._assembly.add(page)
            self._after = page.number
        if forget and self._after != "-":
            recordings.forget_pages(self._scheduler, recording, self._after)

    def _alive(self) -> list[str]:
        return list(self._reader.large_zset("heartbeats"))

    def _behind(self, up_to_us: int) -> list[str]:
        return self._assembly.behind(self._alive(), max(1, up_to_us))

    def _rows_of(self, workers: list[str]) -> Iterator[tuple[str, list[str], int, int]]:
        """Yield name, types, slots and join of *workers*, as the server has them."""
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

    def _end(self, for_us: int) -> Trace:
        end_us = min(self._now_us(), self._assembly.begun_us(self._since_us) + for_us)
        waiting: list[UnclaimedJobs] = []
        with suppress(KeyboardInterrupt):
            waiting = self._waiting(end_us)
            self._until(lambda: not self._behind(end_us), 2 * self._interval_s + _PATIENCE_S)
        with suppress(RedisError, OSError):
            self._warn_of(self._behind(end_us))
        return self._trace(self._since_us, end_us, waiting)

    def _now_us(self) -> int:
        try:
            return self._reader.now_us()
        except (RedisError, OSError):
            return round(time.time() * SECOND_US)

    def _warn_of(self, behind: list[str]) -> None:
        if behind:
            names = ", ".join(self._assembly.name_of(id_) for id_ in behind[:_MOST_NAMED])
            more = " and others" if len(behind) > _MOST_NAMED else ""
            self._warn(
                f"these workers did not hand over their last claims, which are not in the trace: {names}{more}; "
                "a worker that runs an older version of celery_affinity does not record"
            )

    def _trace(self, since_us: int, end_us: int, waiting: list[UnclaimedJobs]) -> Trace:
        begin_us = min(self._assembly.begun_us(since_us), end_us)
        trace = self._assembly.trace(begin_us, end_us, waiting, **self._facts)
        if trace.lost:
            self._warn(f"{trace.lost:,} claims are not in the trace: workers had no room to keep them")
        return trace

    # -- what workers recorded by themselves

    def fetch(self) -> Trace:
        """Return the trace of the recording that workers began, until now or until its end. Raises TraceError."""
        found = recordings.current_recording(self._scheduler)
        if found is None or found.is_leased:
            raise TraceError(
                "there is no recording to fetch: --for records now, and affinity_record in the app.conf has workers "
                "record from their start on"
            )
        self._since_us, self._facts["recorded_at"] = found.since_us, _moment(found.since_us)
        self._read(found.id, forget=False)
        end_us = min(found.until_us, self._reader.now_us())
        self._fetched = found if end_us == found.until_us else None
        late_us = end_us - round(2 * self._interval_s * SECOND_US)
        end_us = min(end_us, self._assembly.known_until(self._alive(), late_us, end_us))
        return self._trace(found.since_us, end_us, self._waiting(end_us))

    def forget(self) -> None:
        """Forget what `fetch` returned if its recording is over: then workers that start record again."""
        if self._fetched is not None:
            recordings.end_recording(self._scheduler, self._fetched.id)

    # -- what was never claimed

    def _waiting(self, end_us: int) -> list[UnclaimedJobs]:
        """Return the jobs that wait, and of those that ended unclaimed the ones that are still known."""
        found: list[UnclaimedJobs] = []
        with suppress(RedisError, OSError):
            found += self._listed("pending", PENDING, end_us)
            keep_us = complete_settings(self._reader.fields("settings", ["keep_us"]))["keep_us"]
            if int(keep_us) > ENDED_KEPT_S * SECOND_US:  # else there is no list of them
                found += self._listed("revoked", REVOKED, end_us)
                found += self._listed("expired", EXPIRED, end_us)
        return found

    def _listed(self, state: str, outcome: str, end_us: int) -> Iterator[UnclaimedJobs]:
        cursor: str | None = None
        while True:
            page = jobs_page(self._reader, JobFilter(state=state), MOST, cursor)
            rows = read_jobs(self._reader, [job.job_id for job in page.jobs if job.job_id])
            for row in rows:
                is_open = state == "pending"
                if row.enqueued_us > end_us or not (is_open or self._ended_unclaimed(row.fence, row.ended_us, end_us)):
                    continue
                keyed = self._hashes.keyed(row.rules, row.task) if row.rules else NO_RULES
                ended_us = None if is_open else row.ended_us
                yield UnclaimedJobs(row.job_id, row.type, row.enqueued_us, row.lane.name, keyed, outcome, ended_us)
            cursor = page.cursor
            if cursor is None:
                return

    def _ended_unclaimed(self, fence: str, ended_us: int, end_us: int) -> bool:
        return not fence and self._since_us <= ended_us <= end_us


def _paused(scheduler: Scheduler) -> list[type_limits.PauseInForce]:
    return [each for each in type_limits.pauses_in_force(scheduler.reader) if each.kind in ("all", "type")]


def _server(scheduler: Scheduler) -> str:
    info = scheduler.client.info("server")
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info.get('redis_version', '?'))}"


def _moment(us: int) -> str:
    return datetime.fromtimestamp(us / SECOND_US, UTC).isoformat(timespec="seconds")
