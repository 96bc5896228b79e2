"""``python -m tests.whole.matrix [CORNER ...]``: tests with the oldest, newest and other supported versions.

Each corner has its own environment under ``build/matrix``. The tests run on Valkey, and on Redis if it is installed.
With ``--server PATH``, the tests of servers run only on that server, with the newest packages. The exit code is 1 if a
test fails, unless its corner may fail.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from ..scheduler.instructions.counter import build_of
from ..support.interpreters import interpreter
from ..support.pages import write_block

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "matrix"

#: Tests of parts that a package version can break: transport, workers in every pool, reconnects, control commands,
#: ends, results of merged calls, keys, preemption, the web server, URLs.
TESTS = (
    "tests/scheduler/test_arrows.py",
    "tests/scheduler/test_placing.py",
    "tests/scheduler/test_life_of_a_worker.py",
    "tests/transport/test_transport.py",
    "tests/transport/test_refusals.py",
    "tests/worker/test_worker.py",
    "tests/worker/test_pools.py",
    "tests/whole/test_blip.py",
    "tests/whole/test_zombie.py",
    "tests/results/test_announce.py",
    "tests/results/test_hanging_ends.py",
    "tests/worker/test_merged_run.py",
    "tests/worker/test_merge_scenarios.py",
    "tests/worker/test_recurring.py",
    "tests/whole/test_keys.py",
    "tests/worker/test_remote_control.py",
    "tests/worker/test_rate_limits.py",
    "tests/worker/test_limits_alone.py",
    "tests/policy/test_lending.py",
    "tests/transport/test_queues.py",
    "tests/transport/test_urls.py",
    "tests/backends/test_valkey.py",
    "tests/backends/test_awaited.py",
    "tests/contrib",  # skipped without Django 6
    "tests/worker/test_lookahead.py",
    "tests/worker/test_preempting.py",
    "tests/worker/test_preemption.py",
    "tests/whole/test_parity.py",
    "tests/whole/test_ordinary_app.py",
    "tests/web/test_connection.py",
    "tests/publishing/test_misspelt_configuration.py",
)

#: Tests of parts that a server version can break: scripts, random walks, TLS connections, workers in every pool,
#: outages, keys, merged calls, results.
TESTS_OF_A_SERVER = (
    "tests/scheduler",
    "tests/conformance",
    "tests/transport/test_transport.py",
    "tests/worker/test_worker.py",
    "tests/worker/test_pools.py",
    "tests/worker/test_merged_run.py",
    "tests/whole/test_blip.py",
    "tests/whole/test_keys.py",
    "tests/backends/test_valkey.py",
)

_SHOWN = ("celery", "kombu", "redis")

_VERSIONS = """
import json, platform
from importlib.metadata import version
print(json.dumps({"python": platform.python_version(), **{name: version(name) for name in %r}}))
"""


@dataclass(frozen=True)
class Corner:
    """A combination of versions."""

    name: str
    python: str
    #: Additional requirements for pip.
    pins: tuple[str, ...] = ()
    #: Packages to upgrade to pre-releases, regardless of upper bounds. Such a corner may fail.
    ahead: tuple[str, ...] = ()

    @property
    def may_fail(self) -> bool:
        return bool(self.ahead)


_OLDEST_WEB = ("fastapi==0.115.0", "uvicorn==0.30.0", "httptools==0.6.0")

CORNERS = (
    Corner("oldest", "3.11", ("celery==5.5.0", "kombu==5.5.2", "redis==5.2.0", *_OLDEST_WEB)),
    Corner("middle", "3.12", ("celery==5.6.3", "kombu<5.7")),
    Corner("recent", "3.13"),
    Corner("newest", "3.14"),
    Corner("ahead", "3.14", ahead=_SHOWN),
)

_NAMES = [corner.name for corner in CORNERS]
_NEWEST = next(corner for corner in CORNERS if corner.name == "newest")


class NoResultError(Exception):
    """A run whose tests did not finish."""


@dataclass(frozen=True)
class Run:
    corner: Corner
    #: Executable of the server for all tests; None: the installed servers.
    server: str | None = None

    @property
    def servers(self) -> str:
        found = [self.server] if self.server else [None, *filter(None, [shutil.which("redis-server")])]
        return ", ".join(build_of(each).partition(" build ")[0] for each in found)

    @property
    def name(self) -> str:
        return "-".join([self.corner.name, *(self.servers.split() if self.server else ())])

    @property
    def tests(self) -> tuple[str, ...]:
        return TESTS_OF_A_SERVER if self.server else TESTS

    @property
    def python(self) -> Path:
        return OUTPUT / self.corner.name / "bin" / "python"

    @property
    def report(self) -> Path:
        return OUTPUT / f"{self.name}.xml"


@dataclass(frozen=True)
class Result:
    run: Run
    versions: dict[str, str]
    passed: int
    failed: tuple[str, ...]


def main() -> int:
    options = _options()
    results = []
    for run in _runs(options.corners, options.server):
        may_fail = run.corner.may_fail
        try:
            results.append(_read(run, run.report) if options.last else _result(run, options.tests, options.processes))
        except (NoResultError, subprocess.CalledProcessError) as exc:
            if not (may_fail or options.last):
                raise SystemExit(str(exc)) from exc
            print(f"  {exc}", flush=True)
            continue
        for test in results[-1].failed:
            print(f"  {'failed, as it may:' if may_fail else 'FAILED'} {test}", flush=True)
    print(_table(results))
    supported = [result for result in results if not result.run.corner.may_fail]
    if options.write_docs:
        write_block(ROOT / "docs/how-to/upgrade.md", "matrix", _table(supported))
    return int(any(result.failed for result in supported))


def _runs(corners: list[str], servers: list[str]) -> list[Run]:
    """Return a run of each corner, and of the newest corner on each of *servers*."""
    return [
        *(Run(corner) for corner in CORNERS if corner.name in corners),
        *(Run(_NEWEST, server) for server in servers),
    ]


def _result(run: Run, tests: list[str] | None, processes: int) -> Result:
    print(f"{run.name}: Python {run.corner.python} {' '.join(run.corner.pins)} on {run.servers} ...", flush=True)
    _install(run)
    report = OUTPUT / f"{run.name}-part.xml" if tests else run.report
    report.unlink(missing_ok=True)
    command = [run.python, "-m", "pytest", "-q", "-n", str(processes), "--dist", "worksteal", f"--junitxml={report}"]
    command += tests or run.tests
    environment = {**os.environ, "SERVER": run.server} if run.server else None
    with (OUTPUT / f"{run.name}.log").open("w") as log:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    return _read(run, report)


def _install(run: Run) -> None:
    corner = run.corner
    if not run.python.exists():
        found = interpreter(corner.python)
        if found is None:
            raise NoResultError(f"{corner.name}: there is no Python {corner.python} here")
        subprocess.run([found, "-m", "venv", OUTPUT / corner.name], check=True)
    pip = [run.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--upgrade", "--upgrade-strategy", "eager", "--editable", ".[test]", *corner.pins], cwd=ROOT, check=True
    )
    subprocess.run([*pip, "--no-deps", "--requirement", "tests/without_dependencies.txt"], cwd=ROOT, check=True)
    if corner.ahead:
        subprocess.run([*pip, "--upgrade", "--pre", *corner.ahead], cwd=ROOT, check=True)


def _read(run: Run, report: Path) -> Result:
    if not report.exists():
        raise NoResultError(f"{run.name}: its tests did not finish, see {OUTPUT / run.name}.log")
    command = [run.python, "-c", _VERSIONS % (_SHOWN,)]
    versions = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    if not cases:
        raise NoResultError(f"{run.name}: no test ran, see {OUTPUT / run.name}.log")
    return Result(run, versions, len(cases) - len(failed) - len(skipped), names)


def _table(results: list[Result]) -> str:
    lines = ["| Python | Celery | kombu | redis-py | server | tests |", "|---|---|---|---|---|---|"]
    for result in results:
        versions = [result.versions["python"], *(result.versions[name] for name in _SHOWN), result.run.servers]
        outcome = f"{result.passed:,} passed" + (f", {len(result.failed)} failed" if result.failed else "")
        lines.append(f"| {' | '.join(versions)} | {outcome} |")
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.whole.matrix", description=__doc__)
    parser.add_argument("corners", nargs="*", help=f"all, the default without --server, or {', '.join(_NAMES)}")
    parser.add_argument("--server", action="append", default=[], help="a server built with TLS, for the newest corner")
    parser.add_argument("--tests", nargs="+", help="run these tests instead")
    parser.add_argument("--processes", type=int, default=3, help="number of parallel test processes, 3 by default")
    parser.add_argument("--write-docs", action="store_true", help="write the table into docs/how-to/upgrade.md")
    parser.add_argument("--last", action="store_true", help="run nothing: show the results of the last runs")
    options = parser.parse_args()
    if options.corners == ["all"] or not (options.corners or options.server):
        options.corners = _NAMES
    if options.write_docs and (options.corners != _NAMES or options.tests):
        parser.error("--write-docs needs all corners and no --tests")
    unknown = set(options.corners) - set(_NAMES)
    if unknown:
        parser.error(f"a corner is one of {_NAMES}, got: {sorted(unknown)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
