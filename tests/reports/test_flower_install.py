"""Flower is wrapped only where it runs, and only in versions that look as expected."""

import os
import subprocess
import sys

import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.flower import Flower
from ..support.scripted_fleet import ScriptedFleet

pytestmark = pytest.mark.usefixtures("configure")


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


ANOTHER_FLOWER = """
import sys
import flower.command
from flower.utils import broker
from flower.views import monitor
queues = broker.RedisBase.queues
{change}
from celery.__main__ import main
sys.argv = ["celery", "-A", {app!r}, "flower", *sys.argv[1:]]
main()
"""


CHANGES = {
    "RedisBase": "del broker.RedisBase",
    "Metrics": "del monitor.Metrics",
    "is no coroutine function": "broker.RedisBase.queues = lambda self, names: queues(self, names)",
    "'messages'": """
async def rewritten(self, names):
    return [{"name": row["name"], "length": row["messages"]} for row in await queues(self, names)]
broker.RedisBase.queues = rewritten
""",
}


@pytest.mark.parametrize("reason", CHANGES)
def test_another_version_of_flower_is_left_as_it_is(reason, valkey, fleet, redis_client):
    fleet.publish("job", "pdf")
    redis_client.lpush("celery", "a message")
    flower = Flower(valkey.url, command=("-c", ANOTHER_FLOWER.format(change=CHANGES[reason], app=APP)))
    lengths = flower.lengths()
    assert lengths == flower.lengths()
    assert list(lengths["celery"].values()) == [1]
    assert "flower_events" in flower.get("/metrics")
    (warning,) = [line for line in flower.process.log().splitlines() if "This version of Flower is unknown" in line]
    assert reason in warning


def test_other_processes_import_nothing_of_it(valkey, redis_client):
    code = (
        f"import sys; from {APP} import app; app.connection().default_channel.scheduler; "
        "print([name for name in sys.modules if name.split('.')[0] in ('flower', 'prometheus_client')]"
        "+ [name for name in ('flower', 'collector') if f'celery_affinity.reports.{name}' in sys.modules])"
    )
    env = {**os.environ, "BROKER_URL": valkey.url}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "[]\n"


def test_a_command_beside_an_installed_flower_has_no_metrics(valkey, redis_client):
    code = (
        f"import sys, flower.command; from {APP} import app; app.connection().default_channel.scheduler; "
        "import prometheus_client; found = prometheus_client.generate_latest().decode(); "
        "print('celery_affinity' in found)"
    )
    env = {**os.environ, "BROKER_URL": valkey.url}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "False\n"
