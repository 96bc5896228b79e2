"""Reports in the form in which other programs read them."""

import json

from celery_affinity.reports.dead_letters import DeadLetter, LetterDetails
from celery_affinity.reports.json import as_json
from celery_affinity.reports.status import Status, TypeStatus


def test_a_report_has_its_fields_and_then_what_follows_from_them():
    drawing = TypeStatus("drawing", pending=2, on_demand=1, claimed=None, oldest_wait_s=1.5, slots=0, free=0)
    found = as_json(Status([drawing], [], scheduled=3, dead=4, counters={"lost": 5}))
    assert json.loads(json.dumps(found)) == {
        "types": [
            {
                "type": "drawing",
                "pending": 2,
                "on_demand": 1,
                "claimed": None,
                "oldest_wait_s": 1.5,
                "slots": 0,
                "free": 0,
                "kept_back": 0,
                "kept_back_by_reserves": 0,
                "reserves": [],
                "paused": False,
                "ran_merged": 0,
                "further_calls": 0,
                "bound": None,
                "limit": None,
                "running": None,
                "kept_back_by_limit": 0,
                "average_s": None,
                "waits_for": "",
                "trend": None,
                "busy": 0,
                "calls": 2,
                "unserved": True,
            }
        ],
        "workers": [],
        "scheduled": 3,
        "dead": 4,
        "counters": {"lost": 5},
        "waiting_keys": 0,
        "pauses": [],
        "stale_s": None,
        "batches": {"runs": {}, "calls": 0},
        "refused": {},
        "dropped": {},
        "tenants": [],
        "unserved_lists": [],
        "more_lists": False,
        "requeued": 0,
        "dead_last_hour": 0,
        "wait_p95_s": None,
        "headline": {"level": "bad", "text": "No worker is running. No dead letters in the last hour."},
    }


def test_a_report_in_a_report_and_what_a_message_says_are_there_as_well():
    letter = DeadLetter("job", "task", "shop.render", "pdf", "rejected", 1.0, 2, replayable=True)
    (found,) = as_json([LetterDetails(letter, 0.5, 10, {"retries": 0, "argsrepr": "('a',)"})])
    assert found["letter"]["task"] == "shop.render"
    assert found["headers"] == {"retries": 0, "argsrepr": "('a',)"}
