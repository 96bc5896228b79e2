"""A rolling upgrade from the previous release, and back: both versions run together on one server.

`tests/whole/releases/` keeps each release as it was built.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from celery_affinity.observe.status import Report
from celery_affinity.rules.keys import Keys
from celery_affinity.server.reader import Reader

from ..support.apps import APP
from ..support.ledger import Ledger
from ..support.processes import ROOT, start_worker, wait_until

RELEASES = sorted(Path(__file__).parent.joinpath("releases").glob("*.whl"))


@pytest.fixture
def versions(tmp_path):
    """Return version name -> what PYTHONPATH has to be for it."""
    previous = tmp_path / "previous"
    with zipfile.ZipFile(RELEASES[-1]) as wheel:
        wheel.extractall(previous)
    return {"previous": f"{previous}{os.pathsep}{ROOT}", "this": str(ROOT)}


class Mixed:
    """Publishers and workers of both versions."""

    def __init__(self, url, redis_client, ledger, versions):
        self.url, self.ledger, self.versions = url, ledger, versions
        self.report = Report(Reader(redis_client, Keys()))

    def env(self, version):
        own = {"PYTHONPATH": self.versions[version], "PYTHONSAFEPATH": "1"}  # not what stands in the working directory
        return {**own, "LEDGER": str(self.ledger.path), "BROKER_URL": self.url}

    def start(self, version, name):
        worker = start_worker(APP, self.url, ["pdf"], name=name, concurrency=2, env=self.env(version))
        wait_until(lambda: name in self.names(), 30, f"{name} joins\n{worker.log()}")
        return worker

    def names(self):
        return {worker.name.partition("@")[0] for worker in self.report.status().workers}

    def publish(self, version, *jobs, seconds=0.0):
        code = (
            "import celery_affinity, sys; from tests.support.apps.typed import app\n"
            f"for job in {jobs!r}: app.send_task('{APP}.late', (job, {seconds}), affinity='pdf')\n"
            "print(celery_affinity.__file__)"
        )
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **self.env(version)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert run.stdout.startswith(self.versions[version].partition(os.pathsep)[0]), "that version published"


@pytest.mark.parametrize("first", ["previous", "this"])
def test_both_versions_run_together_while_one_replaces_the_other(valkey, redis_client, tmp_path, versions, first):
    fleet = Mixed(valkey.url, redis_client, Ledger(tmp_path / "ledger"), versions)
    second = "this" if first == "previous" else "previous"
    backlog = [f"{version}-{number}" for number in range(20) for version in (first, second)]

    before = fleet.start(first, "before")
    fleet.publish(first, "long", seconds=4)
    wait_until(lambda: fleet.ledger.starts()["long"], 20, "it runs")
    after = fleet.start(second, "after")
    fleet.publish(first, *backlog[::2], seconds=0.1)
    fleet.publish(second, *backlog[1::2], seconds=0.1)
    before.term()
    assert before.wait(30) == 0
    fleet.publish(first, "late-comer")
    wanted = {*backlog, "long", "late-comer"}
    wait_until(lambda: set(fleet.ledger.ends()) == wanted, 30, f"all run\n{after.log()}")
    assert set(fleet.ledger.starts().values()) == {1}, "each of them once"
    wait_until(
        lambda: [(each.free, each.slots) for each in fleet.report.status().workers] == [(2, 2)], 10, "all is free"
    )
    assert "ERROR" not in before.log() + after.log(), before.log() + after.log()
