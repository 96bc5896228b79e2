"""``python -m tests.whole.matrix [CORNER ...]``: real servers and workers, on the corners of what is supported.

Each corner is an environment of its own under ``build/matrix``. Its tests run on Valkey and on Redis, where the machine
has one. Returns 1 if a test fails, unless its corner may fail.
"""

import argparse
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from ..support.interpreters import interpreter
from ..support.pages import write_block

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "matrix"

#: Tests of the parts that a version can break: transport, workers in every pool, reconnects, control commands, ends,
#: results of merged calls, keys, stops for a tenant, the web server, URLs.
TESTS = (
    "tests/server/test_arrows.py",
    "tests/server/test_placing.py",
    "tests/server/test_life_of_a_worker.py",
    "tests/transport/test_transport.py",
    "tests/transport/test_refusals.py",
    "tests/worker/test_worker.py",
    "tests/worker/test_pools.py",
    "tests/whole/test_blip.py",
    "tests/whole/test_zombie.py",
    "tests/callers/test_announce.py",
    "tests/callers/test_hanging_ends.py",
    "tests/worker/test_merged_run.py",
    "tests/worker/test_merge_scenarios.py",
    "tests/worker/test_recurring.py",
    "tests/whole/test_keys.py",
    "tests/worker/test_remote_control.py",
    "tests/worker/test_rate_limits.py",
    "tests/worker/test_limits_alone.py",
    "tests/rules/test_lending.py",
    "tests/transport/test_queues.py",
    "tests/transport/test_urls.py",
    "tests/backends/test_valkey.py",
    "tests/worker/test_lookahead.py",
    "tests/worker/test_preempting.py",
    "tests/worker/test_preemption.py",
    "tests/whole/test_parity.py",
    "tests/whole/test_ordinary_app.py",
    "tests/web/test_connection.py",
    "tests/client/test_misspelt_configuration.py",
)

_SHOWN = ("celery", "kombu", "redis")

_VERSIONS = """
import json, platform
from importlib.metadata import version
print(json.dumps({"python": platform.python_version(), **{name: version(name) for name in %r}}))
"""


@dataclass(frozen=True)
class Corner:
    """*pins*: further requirements for pip. *ahead*: packages of which pre-releases count, beyond all bounds.

    *ahead_of_classifiers*: a Python that no classifier names yet. A corner that is ahead may fail: it tells what the
    next versions will break.
    """

    name: str
    python: str
    pins: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    ahead_of_classifiers: bool = False

    @property
    def may_fail(self) -> bool:
        return bool(self.ahead) or self.ahead_of_classifiers


_OLDEST_WEB = ("fastapi==0.115.0", "uvicorn==0.30.0", "httptools==0.6.0")

CORNERS = (
    Corner("oldest", "3.11", ("celery==5.5.0", "kombu==5.5.2", "redis==5.2.0", *_OLDEST_WEB)),
    Corner("middle", "3.12", ("celery==5.6.3", "kombu<5.7")),
    Corner("newest", "3.13"),
    Corner("next", "3.14", ahead_of_classifiers=True),
    Corner("ahead", "3.13", ahead=_SHOWN),
)

_NAMES = [corner.name for corner in CORNERS]


class NoResultError(Exception):
    """A corner whose tests did not run to their end."""


@dataclass(frozen=True)
class Result:
    corner: Corner
    versions: dict[str, str]
    passed: int
    failed: tuple[str, ...]


def main() -> int:
    options = _options()
    results = []
    for corner in CORNERS:
        if not options.corners or corner.name in options.corners:
            try:
                results.append(_last(corner) if options.last else _run(corner, options.tests or TESTS))
            except (NoResultError, subprocess.CalledProcessError) as exc:
                if not corner.may_fail:
                    raise SystemExit(str(exc)) from exc
                print(f"  {exc}", flush=True)
                continue
            for test in results[-1].failed:
                print(f"  {'failed, as it may:' if corner.may_fail else 'FAILED'} {test}", flush=True)
    print(_table(results))
    supported = [result for result in results if not result.corner.may_fail]
    if options.write_docs:
        write_block(ROOT / "docs/explanation/versions.md", "matrix", _table(supported))
    return int(any(result.failed for result in supported))


def _run(corner: Corner, tests: tuple[str, ...]) -> Result:
    print(f"{corner.name}: Python {corner.python} {' '.join(corner.pins)} ...", flush=True)
    python = _python(corner)
    if not python.exists():
        found = interpreter(corner.python)
        if found is None:
            raise NoResultError(f"{corner.name}: there is no Python {corner.python} here")
        subprocess.run([found, "-m", "venv", OUTPUT / corner.name], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--upgrade", "--upgrade-strategy", "eager", "--editable", ".[test]", *corner.pins], cwd=ROOT, check=True
    )
    if corner.ahead:
        subprocess.run([*pip, "--upgrade", "--pre", *corner.ahead], cwd=ROOT, check=True)
    report = _report(corner) if tests == TESTS else OUTPUT / f"{corner.name}-part.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", f"--junitxml={report}", *tests]
    with (OUTPUT / f"{corner.name}.log").open("w") as log:
        subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    return _read(corner, report)


def _last(corner: Corner) -> Result:
    if not _report(corner).exists():
        raise NoResultError(f"{corner.name}: its tests have not run to their end")
    return _read(corner, _report(corner))


def _python(corner: Corner) -> Path:
    return OUTPUT / corner.name / "bin" / "python"


def _report(corner: Corner) -> Path:
    return OUTPUT / f"{corner.name}.xml"


def _read(corner: Corner, report: Path) -> Result:
    command = [_python(corner), "-c", _VERSIONS % (_SHOWN,)]
    versions = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    if not cases:
        raise NoResultError(f"{corner.name}: no test ran, see {OUTPUT / corner.name}.log")
    return Result(corner, versions, len(cases) - len(failed) - len(skipped), names)


def _table(results: list[Result]) -> str:
    lines = ["| Python | Celery | kombu | redis-py | tests |", "|---|---|---|---|---|"]
    for result in results:
        versions = [result.versions["python"], *(result.versions[name] for name in _SHOWN)]
        told = f"{result.passed} passed" + (f", {len(result.failed)} failed" if result.failed else "")
        lines.append(f"| {' | '.join(versions)} | {told} |")
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.whole.matrix", description=__doc__)
    parser.add_argument("corners", nargs="*", help=f"{', '.join(_NAMES)}; all of them by default")
    parser.add_argument("--tests", nargs="+", help="other tests than those that count")
    parser.add_argument("--write-docs", action="store_true", help="write the table into docs/explanation/versions.md")
    parser.add_argument("--last", action="store_true", help="run nothing: show what came of the last run of each")
    options = parser.parse_args()
    if options.write_docs and (options.corners or options.tests):
        parser.error("--write-docs goes with all corners and the tests that count")
    unknown = set(options.corners) - set(_NAMES)
    if unknown:
        parser.error(f"a corner is one of {_NAMES}, got: {sorted(unknown)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
