"""Another client deletes rules of types, or fencing tokens: a repair rebuilds them from settings, pauses and claims."""

import pytest

from celery_affinity.schema.keys import Keys


def lose(fleet, *key):
    assert fleet.scheduler.client.delete(Keys().key(*key))
    assert fleet.scheduler.repair()


@pytest.mark.parametrize("rule", ["pause", "limit"])
def test_rules_of_a_type_are_restored(fleet, rule):
    fleet.join("worker", "pdf", slots=2)
    fleet.publish("first", "pdf")
    if rule == "pause":
        fleet.scheduler.pause("type:pdf")
    else:
        fleet.configure_and_tick({"limits": "type%3Apdf=1"})
    (claim,) = fleet.inbox("worker")
    lose(fleet, "type_rules")
    fleet.scheduler.tick()
    fleet.publish("second", "pdf")
    assert fleet.inbox("worker") == []
    assert not fleet.scheduler.repair()
    if rule == "pause":
        fleet.scheduler.resume("type:pdf")
        assert fleet.jobs("worker") == ["second"]
    else:
        assert [each.job_id for each in fleet.end("worker", claim)] == ["second"]


def test_deleted_pause_blocks_nothing(fleet):
    fleet.scheduler.pause("type:pdf")
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    lose(fleet, "pauses")
    assert fleet.jobs("worker") == ["job"]


def test_claims_counted_by_a_limit_are_found_again(fleet):
    fleet.join("worker", "pdf", slots=3)
    fleet.configure_and_tick({"limits": "type%3Apdf=2"})
    fleet.publish("first", "pdf")
    lose(fleet, "type_running", "pdf")
    for job in ("second", "third"):
        fleet.publish(job, "pdf")
    assert fleet.jobs("worker") == ["first", "second"]


@pytest.mark.parametrize("holds", [True, False], ids=["with a claim", "without claims"])
def test_fencing_tokens_grow_despite_an_overwritten_counter(fleet, holds):
    fleet.join("worker", "pdf", slots=2)
    for job in ("first", "second") if holds else ():
        fleet.publish(job, "pdf")
    before = [int(claim.fence) for claim in fleet.inbox("worker")]
    fleet.scheduler.client.set(Keys().key("fence"), "1" if holds else "x")
    fleet.join("other", "excel")
    assert fleet.scheduler.repair()
    fleet.publish("next", "excel")
    (claim,) = fleet.inbox("other")
    assert int(claim.fence) > max(before, default=0)
