"""Compare replays with real workers: ``python -m benchmarks.fidelity [--seconds 20] [--pools solo ...]``.

For each pool, a fleet of three workers runs sleeping tasks at about 95 % load, with early acks and with late acks. The
benchmark records the fleet and replays the recording. It prints the share of claims that the replay reproduces, and
the relative error of the replayed waits.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import redis
from celery import Celery

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lab import replay as lab
from celery_affinity.lab import trace_file
from celery_affinity.reports.status import Report
from celery_affinity.scheduler import recordings
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from tests.support.processes import ROOT

from .bench import BenchmarkError

POOLS = {"solo": 1, "threads": 4, "prefork": 2, "gevent": 4, "eventlet": 4}

#: Types that each worker serves, one string per worker.
PROFILES = ("pdf", "excel", "pdf,excel")

_LOAD = 0.95
#: Timeout in seconds for the workers to join, and for the recording to begin.
_BOOT_S = 60.0

_APP = """
import os, time
from celery import Celery
app = Celery("recorded", broker=os.environ["BROKER_URL"])
app.conf.update(broker_transport="celery_affinity:Transport", task_ignore_result=True,
                affinity_heartbeat_interval=1, task_acks_late=os.environ["LATE"] == "1",
                affinity_lookahead={"auto": "auto"}.get(os.environ["AHEAD"], 0))

@app.task(name="lasting")
def lasting(seconds):
    time.sleep(seconds)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long calls are published")
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=list(POOLS))
    parser.add_argument("--slots", type=int, help="slots of each worker, instead of those that are usual for the pool")
    parser.add_argument("--ahead", choices=("auto", "0"), default="auto", help="affinity_lookahead")
    given = parser.parse_args()
    for pool in given.pools:
        for late in (True, False):
            _measure(pool, given.slots or POOLS[pool], given.seconds, given.ahead, late=late)


def _measure(pool: str, slots: int, length_s: float, ahead: str, *, late: bool) -> None:
    slots = 1 if pool == "solo" else slots
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fidelity-")))
        server = stack.enter_context(EmbeddedServer())
        (folder / "recorded_app.py").write_text(_APP)
        env = {**os.environ, "BROKER_URL": server.url, "LATE": str(int(late)), "AHEAD": ahead}
        env["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT}"
        celery = [sys.executable, "-m", "celery", "-A", "recorded_app"]
        for number, types in enumerate(PROFILES):
            words = ["worker", "-Q", types, "-n", f"w{number}@here", "--pool", pool, "-c", str(slots), "-l", "WARNING"]
            process = subprocess.Popen(
                [*celery, *words], env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        _wait_for_workers(server)
        path = folder / "trace.jsonl"
        words = ["affinity", "lab", "record", "--for", f"{length_s + 10:.0f}s", "--output", str(path)]
        recorder = subprocess.Popen(
            [*celery, *words], env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _wait_for_recording(server)
        jobs = _publish(server.url, slots, length_s)
        recorder.wait()
        result = lab.replay(trace_file.read_trace(path))
    errors = [
        _relative_error(getattr(result.replayed.all, name), getattr(result.recorded.all, name))
        for name in ("p50_s", "p95_s")
    ]
    acks = "late" if late else "early"
    print(
        f"{pool:9} {acks:6} {3 * slots:3} slots {jobs:6,} jobs  {result.fidelity:8.2%} of {result.claims:,}  "
        f"p50, p95 off by {errors[0]:+.1%}, {errors[1]:+.1%}",
        flush=True,
    )


def _wait_for_workers(server: EmbeddedServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        report = Report(Scheduler(client, Keys()).reader)
        until_s = time.monotonic() + _BOOT_S
        while len(report.status().workers) < len(PROFILES):
            if time.monotonic() > until_s:
                raise BenchmarkError(f"no {len(PROFILES)} workers joined within {_BOOT_S:.0f} s")
            time.sleep(0.1)


def _wait_for_recording(server: EmbeddedServer) -> None:
    """Wait until a recording is active and each worker has sent a heartbeat since then."""
    with redis.Redis.from_url(server.url) as client:
        until_s = time.monotonic() + _BOOT_S
        while recordings.current_recording(Scheduler(client, Keys())) is None:
            if time.monotonic() > until_s:
                raise BenchmarkError(f"no recording began within {_BOOT_S:.0f} s")
            time.sleep(0.1)
        time.sleep(2.5)


def _publish(url: str, slots: int, length_s: float) -> int:
    """Publish calls at random times, from a fixed seed, to keep the slots busy. Return the number of calls."""
    app = Celery("client", broker=url)
    app.conf.update(broker_transport="celery_affinity:Transport", task_ignore_result=True)
    rng = random.Random(7)
    mean_s, number = 0.15, 0
    until_s = time.monotonic() + length_s
    while time.monotonic() < until_s:
        seconds = min(2.0, rng.lognormvariate(-2.3, 0.9))
        options = {"queue": rng.choice(("pdf", "excel")), "priority": rng.choice((0, 0, 5, 9))}
        app.send_task("lasting", (seconds,), on_demand=rng.random() < 0.2, **options)
        number += 1
        time.sleep(rng.expovariate(3 * slots * _LOAD / mean_s))
    app.close()
    return number


def _relative_error(replayed_s: float, recorded_s: float) -> float:
    return replayed_s / recorded_s - 1 if recorded_s else 0.0


if __name__ == "__main__":
    main()
