"""A process logs at most ten lines a second about jobs and messages, plus the number of suppressed lines."""

import ast
import importlib
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import celery_affinity
from celery_affinity.log_limit import LIMIT, LINES, UNLIMITED, LineLimit, limited_logger
from celery_affinity.schema import values
from celery_affinity.worker import install

PACKAGE = Path(celery_affinity.__file__).parent

#: Modules that may use `logging.getLogger` -> reason.
NAME_LOGGERS = {
    "log_limit.py": "it makes the loggers",
    "liveness/guard.py": "it reads the name of the log file of Celery's handlers",
}

#: Modules with unlimited lines about the worker itself -> the event that writes one line.
ARE_UNLIMITED = {
    "scheduler/runtime_settings.py": "one for each setting that somebody changes",
    "worker/cohort_member.py": "one for each time that the worker joins a cohort",
    "worker/bootstep.py": "one when the worker leaves",
}

#: Functions that create a logger, or write to a log without the package's loggers.
MAKE_LOGGERS = {
    "getLogger",
    "get_logger",
    "get_task_logger",
    "LoggerAdapter",
    "getChild",
    "print_exc",
    "print_exception",
}
LEVELS = {"debug", "info", "warning", "warn", "error", "exception", "critical", "log"}


class Log:
    """A logger with its own limit, fake clock and fake timer."""

    def __init__(self, name="celery_affinity.test_log_limit"):
        self.now_s = 0.0
        self.later = []
        self.limit = LineLimit(lambda: self.now_s, self._call_later)
        self.logger = logging.Logger(name)
        self.logger.addFilter(self.limit)
        self._text = io.StringIO()
        self.logger.addHandler(logging.StreamHandler(self._text))

    def _call_later(self, call):
        self.later.append(call)
        return lambda: self.later.remove(call)

    def lines(self):
        """Return the lines written since the last call."""
        lines = self._text.getvalue().splitlines()
        self._text.seek(0)
        self._text.truncate()
        return lines


def fail(depth, text="no page"):
    if depth:
        # Alternating calls, because Python abbreviates repeated frames.
        fail(depth - 1, text) if depth % 2 else fail(depth=depth - 1, text=text)
    raise ValueError(text)


def log_error(log, depth, text="no page"):
    try:
        fail(depth, text)
    except ValueError:
        log.logger.exception("Job %s failed", "a")


def test_flood_of_lines_writes_ten_a_second():
    log = Log()
    written_at = []
    for step in range(1000):
        log.now_s = step / 100
        log.logger.warning("Job %d cannot be read", step)
        log.logger.error("Job %d is damaged", step)
        written_at += [log.now_s] * len(log.lines())
    assert all(sum(at <= each < at + 1 for each in written_at) <= LINES for at in written_at)
    assert len(written_at) == 7 * 10  # three lines a second are kept for other places in the code


def test_suppressed_lines_are_counted_when_nothing_more_is_logged(caplog):
    log = Log()
    for number in range(100):
        log.logger.warning("Job %d cannot be read", number)
    written = len(log.lines())
    assert len(log.later) == 1
    log.later.pop()()
    (line,) = caplog.messages
    assert (
        f"celery_affinity: {100 - written} log lines were suppressed, {100 - written} of them from celery_aff" in line
    )
    log.limit.count()
    assert len(caplog.messages) == 1


def test_single_line_is_written_during_a_flood_of_another():
    log = Log()
    for number in range(100):
        log.logger.warning("Job %d cannot be read", number)
    log.lines()
    log.logger.warning("The broker does not answer")
    assert log.lines() == ["The broker does not answer"]


def test_first_traceback_is_written_in_full_and_paid_with_later_lines():
    log = Log()
    lines, seconds = [], 60
    for step in range(seconds * 10):
        log.now_s = step / 10
        log_error(log, depth=10)
        lines += log.lines()
    assert lines[0] == "Job a failed"
    assert lines[1] == "Traceback (most recent call last):"
    assert [each for each in lines if each.startswith("Traceback")] == lines[1:2]
    assert lines[-1] == "Job a failed: ValueError: no page"
    assert len(lines) <= seconds * LINES


def test_another_error_of_the_same_statement_gets_its_own_traceback():
    log = Log()
    log_error(log, depth=3)
    assert "Traceback" in log.lines()[1]
    log.now_s = 20.0
    log_error(log, depth=3)
    assert len(log.lines()) == 1
    try:
        {}["a"]
    except KeyError:
        log.logger.exception("Job %s failed", "a")
    assert "Traceback" in log.lines()[1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.01, 0.3, 1.0, 7.0]),
            st.integers(0, 3),
            st.integers(0, 200),
            st.text(max_size=20) | st.sampled_from(["\n" * 50, "a\r\nb\x85c\u2028d", "x" * 100_000]),
        ),
        max_size=60,
    )
)
def test_any_sequence_of_records_stays_within_the_limit(records):
    log = Log()
    texts = io.StringIO()
    log.logger.addHandler(logging.StreamHandler(texts))
    total, written_at = 0, []
    for pause_s, kind, depth, text in records:
        log.now_s += pause_s
        if kind == 0:
            log_error(log, depth, text)
        elif kind == 1:
            log.logger.error("Job %s is damaged", text)
        elif kind == 2:
            log.logger.info("%d", text)  # a value of the wrong type
        else:
            log.logger.critical(text)
        written = log.lines()
        assert len(written) <= 72
        assert all(len(line) < 10_000 for line in written)
        total += len(written)
        written_at += [log.now_s] * bool(written)
    assert total <= LINES * (log.now_s + 1) + 72
    assert all(sum(at <= each < at + 1 for each in written_at) <= LINES for at in written_at)


def test_message_with_line_breaks_becomes_one_line():
    log = Log()
    log.logger.error("It was: %s", "a\nb\r\n2026-01-01 WARNING forged\n")
    assert log.lines() == ["It was: a b 2026-01-01 WARNING forged"]


def test_unlimited_line_is_written_during_a_flood():
    log = Log()
    for number in range(100):
        log.logger.info("Task %d is given back", number)
    log.lines()
    for _ in range(20):
        log.logger.info("The worker has joined", extra=UNLIMITED)
    assert log.lines() == ["The worker has joined"] * 20


def test_loggers_of_celery_are_limited_at_warning_and_above():
    log = Log("celery.worker.consumer.consumer")
    for number in range(50):
        log.logger.info("Task %d received", number)
    assert len(log.lines()) == 50
    for number in range(50):
        log.logger.critical("Cannot decode message %d", number)
    assert len(log.lines()) < LINES


def test_count_is_not_lost_when_no_thread_can_start(caplog):
    log = Log()

    def refuse(call):
        raise RuntimeError("can't start new thread")

    log.limit._call_later = refuse
    for number in range(50):
        log.logger.warning("Job %d cannot be read", number)
    log.limit.count()  # as at the end of the process
    assert "log lines were suppressed" in caplog.text


def test_process_counts_its_suppressed_lines_when_it_ends():
    program = """
from celery_affinity.schema.values import log_and_drop_untrusted
for number in range(1000):
    log_and_drop_untrusted("inbox", number, "no JSON")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = run.stderr.splitlines()
    assert len(lines) <= LINES + 1
    assert f"celery_affinity: {1000 - len(lines) + 1} log lines were suppressed" in lines[-1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # since Python 3.12: a fork in a process with threads
def test_fork_starts_with_empty_line_counts():
    for number in range(100):
        values.log_and_drop_untrusted("inbox", number, "no JSON")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(
                write, repr((LIMIT._written_s, LIMIT._suppressed.total(), LIMIT._lock.acquire(timeout=0))).encode()
            )
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with open(read, "rb") as result:
        assert result.read() == b"([], 0, True)"


def _sources():
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def unlimited_in(source):
    """Yield the code in a module that could write to a log without the limit."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            imported = {alias.name.rpartition(".")[2] for alias in node.names}
            if imported & MAKE_LOGGERS or (isinstance(node, ast.ImportFrom) and "logger" in imported):
                yield ast.unparse(node)
            if isinstance(node, ast.ImportFrom) and node.module == "logging":
                yield ast.unparse(node)
        elif isinstance(node, ast.Attribute):
            of_logging = isinstance(node.value, ast.Name) and node.value.id in ("logging", "warnings")
            if node.attr in MAKE_LOGGERS or (of_logging and node.attr in LEVELS):
                yield ast.unparse(node)
        elif isinstance(node, ast.Assign) and "logger" in map(ast.unparse, node.targets):
            yield from {ast.unparse(node)} - {"logger = limited_logger(__name__)"}


def test_no_module_makes_a_logger_without_the_limit():
    found = {path: list(unlimited_in(source)) for path, source in _sources().items()}
    assert {path for path, code in found.items() if code} == set(NAME_LOGGERS), found


@pytest.mark.parametrize(
    "source",
    [
        "import logging\nlog = logging.getLogger(__name__)",
        "from logging import getLogger",
        "from celery.utils.log import get_logger",
        "from celery.worker.consumer.consumer import logger",
        "logger = get(__name__)",
        "import logging\nlogging.warning('x')",
        "import warnings\nwarnings.warn('x')",
        "child = logger.getChild('x')",
        "import traceback\ntraceback.print_exc()",
    ],
)
def test_logger_without_the_limit_is_found(source):
    assert list(unlimited_in(source))


def test_only_listed_modules_write_unlimited_lines():
    found = {path for path, source in _sources().items() if "UNLIMITED" in source}
    assert found - {"log_limit.py"} == set(ARE_UNLIMITED)


def test_loggers_of_the_package_share_one_limit():
    assert values.logger.filters == [LIMIT]
    assert limited_logger("celery_affinity.schema.values").filters == [LIMIT]


def test_loggers_of_messages_that_a_worker_limits_exist_in_celery():
    for name in install._MESSAGE_LOGGERS:
        assert importlib.import_module(name).logger.name == name
