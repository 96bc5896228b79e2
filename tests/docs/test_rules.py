"""The page on how rules compose shows the lines that `explain` prints."""

from celery_affinity.reports.explain import explain
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.processes import ROOT
from ..support.scripted_fleet import ScriptedFleet

PAGE = (ROOT / "docs/explanation/rules.md").read_text()


def test_the_page_has_the_words_of_each_rule_in_their_order(redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf", slots=20)
    for number in range(19):
        fleet.publish(f"busy{number}", "pdf")
    fleet.publish("holds!", "pdf", rules="key=city%3AHH limit=1")
    fleet.scheduler.configure({"limits": "type%3Apdf=20"})
    fleet.scheduler.tick()
    fleet.scheduler.pause("type:pdf", for_s=1800, why="db migration")
    fleet.sync("worker", slots=3)
    fleet.publish("job!", "pdf", rules="key=city%3AHH limit=1")
    blocks = explain(Reader(redis_client, Keys()), "task-job!").waiting.blocked_by
    assert [each.rule for each in blocks] == ["pause", "type limit", "key", "slots"]
    for each in blocks:
        if each.rule != "key":
            assert f"`blocked by  {each.why}`" in PAGE
    found = [PAGE.index(f"`blocked by  {words}") for words in ("type 'pdf' is paused", "type 'pdf': ", "key ", "all 3")]
    assert found == sorted(found)
