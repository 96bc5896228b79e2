"""One run of the tests on one side, stock or ours, with its own server; ours may use a cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from celery_affinity.embedded import EmbeddedCluster, EmbeddedServer

from ...support.ledger import whole_lines

TRANSPORTS = {"stock": None, "ours": "celery_affinity:Transport"}

_INJECTED = Path(__file__).parent / "injected"
_ROOT = Path(__file__).parents[3]


class Outcome(NamedTuple):
    outcome: str
    reruns: int
    why: str


class Place(NamedTuple):
    """The URL for jobs and results, and a server for the data of the tests themselves."""

    url: str
    server: EmbeddedServer


@contextmanager
def _place(on_cluster: bool) -> Iterator[Place]:
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        yield Place(stack.enter_context(EmbeddedCluster()).url if on_cluster else server.url, server)


def run(side: str, suite: Path, output: Path, tests: Sequence[str], *, on_cluster: bool = False) -> dict[str, Outcome]:
    """Run *tests* of *suite*; return their outcomes. The log and the outcomes are written to *output*."""
    output.mkdir(parents=True, exist_ok=True)
    outcomes = output / f"{side}.jsonl"
    outcomes.unlink(missing_ok=True)
    plugins = ("celery.contrib.pytest", "parity_outcomes", "no:cacheprovider")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "--continue-on-collection-errors",
        *chain.from_iterable(("-p", each) for each in plugins),
        *tests,
    ]
    with _place(on_cluster) as place, (output / f"{side}.log").open("wb") as log:
        subprocess.run(
            command,
            cwd=suite,
            env=_environment(side, place, outcomes),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return _read(outcomes)


def _environment(side: str, place: Place, outcomes: Path) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("CELERY_", "PARITY_"))}
    paths = [str(_INJECTED), str(_ROOT), env.get("PYTHONPATH", "")]
    env.update(
        PYTHONPATH=os.pathsep.join(filter(None, paths)),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]]),  # the tests call `celery`
        TEST_BROKER=place.url,
        TEST_BACKEND=place.url,
        REDIS_HOST="127.0.0.1",
        REDIS_PORT=str(place.server.port),
        PARITY_OUTCOMES=str(outcomes),
        PARITY_TRANSPORT=TRANSPORTS[side] or "",
    )
    return env


def _read(outcomes: Path) -> dict[str, Outcome]:
    records = [json.loads(line) for line in whole_lines(outcomes)]
    return {each["test"]: Outcome(each["outcome"], each["reruns"], each["why"]) for each in records}
