"""A worker of several cohorts sends few commands between its heartbeats."""

from types import SimpleNamespace

import pytest

from celery_affinity.leases.slot_sharing import SharedSlots, SlotMover
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet

NAMES = ["default", "ml"]


@pytest.fixture
def mover(valkey, redis_client):
    """A slot mover for an idle worker in two cohorts."""

    def joined(cohort):
        scheduler = Scheduler(redis_client, Keys(cohort=cohort))
        fleet = ScriptedFleet(scheduler)
        fleet.join("worker", cohort)
        return SimpleNamespace(
            id="worker",
            scheduler=scheduler,
            lookahead=[],
            claims=SimpleNamespace(is_closed=False),
            capacity=SimpleNamespace(confirmed=1, types=[cohort]),
            notice_slots=lambda: None,
        )

    members = {name: joined(name) for name in NAMES}
    return SlotMover(SharedSlots(SimpleNamespace(size=lambda: 2), NAMES), lambda: members, 5.0)


def test_rebalancing_an_idle_cohort_takes_four_commands(mover, redis_client):
    mover.look()
    redis_client.config_resetstat()
    mover.look()
    calls_by_command = {
        name.removeprefix("cmdstat_"): row["calls"] for name, row in redis_client.info("commandstats").items()
    }
    calls_by_command = {
        name: calls / len(NAMES) for name, calls in calls_by_command.items() if "|" not in name and name != "info"
    }
    assert calls_by_command == {"hmget": 3, "hlen": 1}
