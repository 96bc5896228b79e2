"""Limit the log lines per second of this process, so that one damaged job, key or message cannot flood the log.

`limited_logger` returns every logger of the package, and all of them share one limit. A record is one line: line breaks
in a message become spaces. Each error of a log statement gets one full traceback per minute. The lines of the traceback
reduce the limit of the following seconds. Other records end with the exception instead.
"""

import atexit
import logging
import math
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable

from . import clock

#: Maximum number of lines per process in any second.
LINES = 10

#: Number of the LINES reserved for log statements that have not written a line in this second. Otherwise a flood from
#: one statement would hide a single line of another statement.
_RESERVED = 3

#: Maximum lines per traceback, and maximum characters per line. The rest is cut off.
_TRACEBACK_LINES = 70
_LINE_LENGTH = 8_000

#: Seconds between two full tracebacks of one error: same type, same line that raised it, same log statement.
_FULL_TRACEBACK_EVERY_S = 60.0

#: Seconds from the first suppressed line to the line that counts the suppressed ones.
_COUNTED_EVERY_S = 1.0

#: Pass this as `extra` to exempt a line from the limit: for lines about the worker itself, which operators cause.
UNLIMITED = {"affinity_is_unlimited": True}

_PACKAGE = __name__.partition(".")[0]

logger = logging.getLogger(__name__)

_Place = tuple[str, int]


def _call_later(call: Callable[[], None]) -> Callable[[], None]:
    """Call *call* in a thread after _COUNTED_EVERY_S. Return a function that cancels the call."""
    timer = threading.Timer(_COUNTED_EVERY_S, call)
    timer.daemon = True
    timer.start()
    return timer.cancel


class LineLimit(logging.Filter):
    """Limits all loggers with this filter together to LINES lines per second, and logs the number of suppressed lines.

    Loggers of other packages are limited only at level WARNING and above.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = clock.now_s,
        call_later: Callable[[Callable[[], None]], Callable[[], None]] = _call_later,
    ) -> None:
        super().__init__()
        self._now_s = now_s
        self._call_later = call_later
        self.begin()

    def begin(self) -> None:
        """Reset all counts. A forked child calls this method, because the parent reports the parent's lines."""
        self._cancel: Callable[[], None] | None = None
        self._lock = threading.RLock()  # reentrant: a signal handler may log while its thread holds the lock
        self._written_s: list[float] = []  # one time per counted line: traceback lines are counted in later seconds
        self._places_s: dict[_Place, float] = {}  # time of the last line of each log statement
        self._tracebacks_s: dict[tuple[object, ...], float] = {}
        self._suppressed: Counter[str] = Counter()

    def forget(self) -> None:
        """Reset all counts without logging the number of suppressed lines."""
        if self._cancel is not None:
            self._cancel()
        self.begin()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING and not record.name.startswith(_PACKAGE):
            return True
        if record.__dict__.get("affinity_is_unlimited"):
            return True
        with self._lock:
            now_s = self._now_s()
            self._written_s = [at_s for at_s in self._written_s if at_s > now_s - 1]
            place = (record.pathname, record.lineno)
            is_first = self._places_s.get(place, -math.inf) <= now_s - 1
            max_lines = LINES if is_first else LINES - _RESERVED
            if sum(at_s <= now_s for at_s in self._written_s) >= max_lines:
                self._suppress(record)
                return False
            owes_lines = any(at_s > now_s for at_s in self._written_s)
            recent_s = now_s - _FULL_TRACEBACK_EVERY_S
            self._tracebacks_s = {error: at_s for error, at_s in self._tracebacks_s.items() if at_s > recent_s}
            error = (*place, *_origin(record))
            is_full = not owes_lines and error not in self._tracebacks_s
            self._places_s[place] = now_s
            self._written_s.append(now_s)
            lines = _shortened(record, is_full)
            if lines:
                self._tracebacks_s[error] = now_s
                self._written_s += [now_s + 1 + number // (LINES - _RESERVED) for number in range(lines)]
            return True

    def _suppress(self, record: logging.LogRecord) -> None:
        self._suppressed[f"{record.name}:{record.lineno}"] += 1
        if self._cancel is None:
            try:
                self._cancel = self._call_later(self.count)
            except RuntimeError:  # the system cannot start a thread: the next suppressed line tries again
                self._cancel = None

    def count(self) -> None:
        """Log the number of lines suppressed since the last call, unless it is 0."""
        with self._lock:
            suppressed, self._suppressed, self._cancel = self._suppressed, Counter(), None
        if suppressed:
            (place, max_count), *_ = suppressed.most_common(1)
            logger.warning(
                "celery_affinity: %d log lines were suppressed, %d of them from %s: a process writes at most %d lines "
                "a second about jobs, keys and messages",
                suppressed.total(),
                max_count,
                place,
                LINES,
            )


def _origin(record: logging.LogRecord) -> tuple[object, ...]:
    """Return the type of the error in *record*, and the file and line that raised it."""
    type_, _, trace = record.exc_info or (None, None, None)
    if type_ is None or trace is None:
        return (type_,)
    while trace.tb_next is not None:
        trace = trace.tb_next
    return type_.__qualname__, trace.tb_frame.f_code.co_filename, trace.tb_lineno


def _shortened(record: logging.LogRecord, is_full: bool) -> int:
    """Shorten *record* to one line, plus a traceback if *is_full*. Return the number of traceback lines."""
    try:
        text = before = record.getMessage()
    except Exception as exc:  # the arguments of the record can have any type and any depth
        before, text = "", f"{record.msg!r} (its values cannot be shown: {type(exc).__name__})"
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and not is_full:
        text += ": " + "".join(traceback.format_exception_only(error))
    if error is None or not is_full:
        record.exc_info = record.exc_text = record.stack_info = None
    text = _cut(" ".join(text.splitlines()))
    if text != before:  # an unchanged record keeps its template, because tools group records by template
        record.msg, record.args = text, ()
    if record.exc_info is None or error is None:
        return 0
    lines = "".join(traceback.format_exception(error)).splitlines()
    if len(lines) > _TRACEBACK_LINES:
        half = _TRACEBACK_LINES // 2
        lines[half:-half] = [f"  [{len(lines) - 2 * half} lines are left out]"]
    record.exc_text = "\n".join(map(_cut, lines))
    return len(lines)


def _cut(line: str) -> str:
    return line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]}..."


LIMIT = LineLimit()
os.register_at_fork(after_in_child=LIMIT.begin)
atexit.register(LIMIT.count)


def limited_logger(name: str) -> logging.Logger:
    """Return the logger *name*, and apply the limit of this process to its lines."""
    limited = logging.getLogger(name)
    limited.addFilter(LIMIT)
    return limited
