"""`celery affinity pause` and `resume`, run as a user runs them, and where pauses and limits of types are seen."""

import json

import pytest

from celery_affinity import Exclusive
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.command import affinity
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf", "excel", slots=2)
    return fleet


def test_a_type_is_paused_and_resumed(valkey, fleet):
    run = affinity(valkey.url, "pause", "pdf", "--reason", "db migration", "--for", "30m")
    assert run.stdout.startswith("paused: type 'pdf' since ")
    assert ": db migration; until " in run.stdout
    fleet.publish("job", "pdf")
    assert fleet.jobs("worker") == []
    said = affinity(valkey.url, "explain", "task-job").stdout
    assert "type 'pdf' is paused, for 1800 s in all: db migration" in said
    assert "paused: type 'pdf' since" in affinity(valkey.url, "status").stdout
    (found,) = json.loads(affinity(valkey.url, "pause", "--json").stdout)
    assert (found["kind"], found["name"], found["why"]) == ("type", "pdf", "db migration")
    assert found["until"] - found["since"] == pytest.approx(1800)
    assert affinity(valkey.url, "resume", "pdf").stdout == "resumed: type 'pdf'\n"
    assert fleet.jobs("worker") == ["job"]
    again = affinity(valkey.url, "resume", "pdf")
    said = "Error: there is no pause of type 'pdf'; nothing is paused\n"
    assert (again.returncode, again.stderr) == (1, said)
    assert affinity(valkey.url, "pause").stdout == "nothing is paused\n"


def test_a_key_and_everything_are_paused(valkey, fleet):
    affinity(valkey.url, "pause", "--key", "city:HH")
    fleet.publish("keyed!", "pdf", rules="key=city%3AHH limit=1")
    fleet.publish("free", "pdf")
    assert fleet.jobs("worker") == ["free"]
    assert "key 'city:HH' is paused" in affinity(valkey.url, "explain", "task-keyed!").stdout
    affinity(valkey.url, "pause", "--all")
    assert affinity(valkey.url, "resume", "pdf").stderr.endswith("paused: key 'city:HH', all types\n")
    resumed = affinity(valkey.url, "resume", "--key", "city:HH").stdout.splitlines()
    assert resumed[0] == "resumed: key 'city:HH'"
    assert resumed[1].startswith("paused: all types since")
    assert fleet.jobs("worker") == []
    affinity(valkey.url, "resume", "--all")
    assert fleet.jobs("worker") == ["keyed!"]


def test_a_key_that_had_to_be_shortened_is_paused_by_its_full_name(valkey, fleet):
    key = "customer:" + "x" * 300
    affinity(valkey.url, "pause", "--key", key)
    fleet.publish("keyed!", "pdf", rules=Exclusive("k").text(key))
    assert fleet.jobs("worker") == []
    assert affinity(valkey.url, "resume", "--key", key).returncode == 0
    assert fleet.jobs("worker") == ["keyed!"]


def test_a_type_that_nobody_serves_is_paused_with_a_question(valkey, fleet):
    run = affinity(valkey.url, "pause", "pfd")
    assert run.returncode == 0
    assert run.stderr == "no live worker serves type 'pfd'; did you mean 'pdf'?\n"


def test_a_limit_of_a_type_is_explained(valkey, fleet):
    affinity(valkey.url, "settings", "set", "limits", "type:pdf=1")
    fleet.scheduler.tick()
    for name in ("first", "second"):
        fleet.publish(name, "pdf")
    assert fleet.jobs("worker") == ["first"]
    assert "type 'pdf': 1 run, and 1 may" in affinity(valkey.url, "explain", "task-second").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pdf", "--for", "soon"), "a whole number above 0 of s, m, h or d is accepted, such as 30m, up to 3650d"),
        (("pdf", "--for", "3651d"), "up to 3650d, got: '3651d'"),
        (("--key", ""), "a key is a text that is not empty, got: ''"),
        (("pdf", "--all"), "give one of: a TYPE, --key KEY, or --all"),
        (("",), "got: ''"),
    ],
)
def test_what_cannot_be_paused_is_refused(valkey, fleet, words, said):
    run = affinity(valkey.url, "pause", *words)
    assert run.returncode == 2
    assert said in run.stderr
