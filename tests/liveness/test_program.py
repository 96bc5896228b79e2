"""The guard's program runs in a separate interpreter."""

import json
import subprocess
import sys
from pathlib import Path

from celery_affinity.liveness import guard
from celery_affinity.liveness.guard import ForkMarker, Guard
from celery_affinity.liveness.pulse import Pulse
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

DIRECTORY = str(Path(guard.__file__).parent)


def test_guard_program_imports_only_the_standard_library():
    code = guard._PROGRAM.replace("main()", "print(sorted(sys.modules))")
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, DIRECTORY], capture_output=True, text=True, check=True
    )
    modules = set(eval(run.stdout))
    assert "celery_affinity.liveness.guard_process" in modules
    assert not {"celery_affinity", "redis", "kombu", "celery", "ssl", "asyncio", "pathlib"} & modules


def test_worker_leaving_immediately_is_not_reported_dead(valkey, redis_client):
    pulse, kin = Pulse(), ForkMarker()
    guard_client = Guard("worker", "worker@host", 5, pulse=pulse, kin=kin, ends_children=False)
    lines = [guard_client._guarded_worker(Scheduler(redis_client, Keys())), {"leave": True}]
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", guard._PROGRAM, DIRECTORY],
        input="".join(f"{json.dumps(line)}\n" for line in lines),
        pass_fds=[pulse.fileno(), kin.read],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
