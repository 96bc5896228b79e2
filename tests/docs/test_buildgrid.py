"""What the page for those who know BuildGrid says of fetching: a test named after each sentence."""

import json
import re
import sys
from pathlib import Path

import pytest

from celery_affinity import Cohort, SettingError, Tenant
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.policy.slot_math import PrefetchLimit
from celery_affinity.schema.job_record import with_suffix
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings

from ..support.apps import APP
from ..support.processes import Process, wait_until
from ..support.scripted_fleet import ScriptedFleet

PAGE = Path("docs/explanation/buildgrid.md")

#: What BuildGrid calls the parts of its scheduler, of which the page has each.
TERMS = (
    *("assigner", "cohort", "instance", "quota", "`preemption_delay`", "priority", "`priority_percentage`"),
    *(
        "`schedule_after`",
        "worker priority",
        "sampling",
        "locality hint",
        "capacity",
        "`max_attempts`",
        "proactive fetch",
    ),
    *("fetch as many as just completed", "`fetch_to_capacity`"),
)


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))


def publish(fleet, number, **fields):
    ids = [with_suffix(f"job{each}", fields.get("rules", "")) for each in range(number)]
    fleet.scheduler.publish(*fleet.made(ids, "pdf", **fields))


def test_a_worker_that_ends_a_job_gets_the_next_one_in_the_same_reply(fleet):
    fleet.join("worker", "pdf")
    publish(fleet, 2)
    (claim,) = fleet.inbox("worker")
    assert [each.job_id for each in fleet.end("worker", claim)] == ["job1"]


def test_a_worker_that_ends_three_jobs_in_one_call_gets_three_jobs_in_the_same_reply(fleet):
    fleet.join("worker", "pdf", slots=3)
    publish(fleet, 9)
    claims = fleet.inbox("worker")
    assert [each.job_id for each in fleet.end("worker", *claims)] == ["job3", "job4", "job5"]


def test_a_worker_that_joins_fills_all_of_its_slots(fleet):
    publish(fleet, 9)
    fleet.join("worker", "pdf", slots=5)
    assert len(fleet.jobs("worker")) == 5


def test_a_job_that_is_published_beside_a_free_slot_never_waits(fleet):
    fleet.join("worker", "pdf", slots=2)
    publish(fleet, 2)
    assert [fleet.state(f"job{number}") for number in range(2)] == ["claimed", "claimed"]


def test_a_slot_is_never_free_beside_a_job_that_fits_unless_a_rule_keeps_the_job_back(fleet):
    fleet.join("worker", "pdf", slots=2)
    for job in ("first!", "second!"):
        fleet.publish(job, "pdf", rules="key=k limit=1")
    assert [fleet.state(job) for job in ("first!", "second!")] == ["claimed", "pending"]
    fleet.publish("free", "pdf")
    assert fleet.state("free") == "claimed"


def test_a_worker_holds_jobs_beyond_its_slots_only_if_it_asks_for_them(fleet):
    fleet.join("worker", "pdf")
    publish(fleet, 5)
    (claim,) = fleet.inbox("worker")
    (claim,) = fleet.end("worker", claim)
    assert [each.job_id for each in fleet.end("worker", claim, may_hold=PrefetchLimit(2))] == ["job2", "job3", "job4"]


def test_jobs_are_placed_without_a_tick(fleet):
    fleet.join("worker", "pdf")
    publish(fleet, 2)
    (claim,) = fleet.inbox("worker")
    (following,) = fleet.end("worker", claim)
    assert (claim.job_id, following.job_id) == ("job0", "job1")
    assert not fleet.scheduler.client.hexists(fleet.scheduler.keys.key("clock"), "ticked")


def test_quotas_count_in_each_cohort_by_themselves(redis_client):
    for cohort in ("ml", "eu"):
        fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys(cohort=cohort)))
        fleet.join("worker", "pdf", slots=2, settings={"tenants": {"acme": Tenant(max=1)}})
        publish(fleet, 2, rules="key=tenant%3Aacme quota=settings")
        assert [fleet.state(f"job{number}$") for number in range(2)] == ["claimed", "pending"]


def sections():
    """Return the text of the page before the tests, and the rows of the table of these: sentence, file, test."""
    text, _, tests = PAGE.read_text(encoding="utf-8").partition("## The tests")
    return text, re.findall(r"^\| (.+) \| `(\S+)::(\S+)` \|$", tests, re.MULTILINE)


def test_each_sentence_in_a_list_is_the_name_of_a_test():
    sentences = re.findall(r"^- (.+)\.$", sections()[0], re.MULTILINE)
    names = ["test_" + re.sub(r"\W+", "_", sentence).lower() for sentence in sentences]
    assert len(names) > 6
    assert set(names) <= globals().keys()


def test_each_term_has_a_row():
    named = re.findall(r"^\| (?!---)(.+?) \| .+ \| .+ \|$", sections()[0], re.MULTILINE)
    assert [term for term in TERMS if not any(each.startswith(term) for each in named)] == []


def test_each_row_of_the_terms_has_a_sentence_in_the_table_of_tests():
    text, rows = sections()
    said = re.findall(r"^\| (?!---).+ \| .+ \| (.+) \|$", text, re.MULTILINE)
    assert len(said) > 12
    for cell in said:
        assert any(sentence in cell for sentence, *_ in rows), f"no test of: {cell}"
    for sentence, *_ in rows:
        assert sentence in " ".join(text.split()), f"the page does not say: {sentence}"


def test_each_test_that_the_page_names_exists():
    rows = sections()[1]
    assert len(rows) > 15
    for _, file, name in rows:
        assert re.search(rf"^def {name}\(", Path(file).read_text(encoding="utf-8"), re.MULTILINE), (
            f"{file} has no {name}"
        )


def test_a_type_in_two_cohorts_is_refused():
    settings = Settings(cohorts={"ml": Cohort(["gpu*"]), "eu": Cohort(["*.eu"])})
    with pytest.raises(SettingError, match=r"each type in one cohort, got: type 'gpu\.eu'"):
        settings.cohort_of("gpu.eu")


def test_each_cohort_is_scheduled_by_a_thread_of_its_own(valkey, redis_client, tmp_path):
    """The thread of a cohort whose server is down holds up no other cohort's."""
    down = {"types": ["eu.*"], "url": "redis://127.0.0.1:1/0"}
    conf = json.dumps({"affinity_cohorts": {"eu": down, "ml": {"types": ["gpu*"]}}})
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "dispatcher"]
    Process("dispatcher", command, {"BROKER_URL": valkey.url, "CONF": conf, "LEDGER": str(tmp_path / "ledger")})
    for cohort in ("default", "ml"):
        clock = Keys(cohort=cohort).key("clock")
        ticked = wait_until(lambda clock=clock: redis_client.hget(clock, "ticked"), 30, f"{cohort} is ticked")
        wait_until(lambda clock=clock, ticked=ticked: redis_client.hget(clock, "ticked") != ticked, 10, "and again")
