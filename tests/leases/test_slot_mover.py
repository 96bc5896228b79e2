"""What a worker of several cohorts asks of their servers, beside its heartbeats."""

from types import SimpleNamespace

import pytest

from celery_affinity.leases.slot_sharing import SharedSlots, SlotMover
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet

NAMES = ["default", "ml"]


@pytest.fixture
def mover(valkey, redis_client):
    """A mover of the slots of an idle worker of two cohorts."""

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


def test_a_look_at_an_idle_cohort_is_four_commands(mover, redis_client):
    mover.look()
    redis_client.config_resetstat()
    mover.look()
    found = {name.removeprefix("cmdstat_"): its["calls"] for name, its in redis_client.info("commandstats").items()}
    found = {name: calls / len(NAMES) for name, calls in found.items() if "|" not in name and name != "info"}
    assert found == {"hmget": 3, "hlen": 1}
