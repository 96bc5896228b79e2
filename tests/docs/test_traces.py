"""The page about traces: its app is run, and its worker prints what the page says."""

import sys

from celery_affinity.settings.table import Settings

from ..support.pages import blocks, commands
from ..support.processes import Process

PAGE = "docs/how-to/monitoring.md"


def test_the_worker_prints_the_wait_and_the_run(valkey, redis_client, tmp_path):
    page = blocks(PAGE)
    (tmp_path / "shop.py").write_text(page["shop.py"].replace("redis://localhost:6379/0", valkey.url))
    names = {"__name__": "shop"}
    exec((tmp_path / "shop.py").read_text(), names)
    (command,) = commands(page["worker"])
    worker = Process(
        "worker", [sys.executable, "-m", *command], {"PYTHONPATH": str(tmp_path), "OTEL_BSP_SCHEDULE_DELAY": "100"}
    )
    names["render"].delay("a")
    for name in ("wait pdf", "run/shop.render"):
        worker.wait_for(f'"name": "{name}"', 30)
    names["app"].close()


def test_who_does_not_ask_for_traces_has_none():
    assert Settings().traces is False
