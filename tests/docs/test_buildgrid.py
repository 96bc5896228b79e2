"""Each sentence of the table on BuildGrid has a test; tests of cohorts and of claims."""

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

PAGE = Path("docs/reference/buildgrid.md")

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

#: Sentence of the table on BuildGrid -> a test of it.
TESTS = (
    (
        "No process assigns jobs: each publish, and each end of a job, places jobs itself",
        "tests/docs/test_buildgrid.py",
        "test_jobs_are_placed_without_a_tick",
    ),
    (
        "A set of types, not of workers: a worker can be in several",
        "tests/worker/test_cohorts.py",
        "test_free_slots_move_to_cohorts_with_waiting_jobs",
    ),
    (
        "Quotas are counted per cohort",
        "tests/docs/test_buildgrid.py",
        "test_quotas_count_in_each_cohort_by_themselves",
    ),
    (
        '`tenant="{customer}"`',
        "tests/worker/test_tenants.py",
        "test_tenant_never_exceeds_its_maximum_while_others_run",
    ),
    (
        "A maximum is never exceeded",
        "tests/scheduler/test_tenants.py",
        "test_no_slot_passes_a_minimum_or_exceeds_a_maximum",
    ),
    (
        "what a minimum does not need is lent",
        "tests/scheduler/test_tenants.py",
        "test_slot_lent_by_a_minimum_is_returned_next",
    ),
    (
        "How long a job of a tenant below its minimum waits until a",
        "tests/scheduler/test_preemption.py",
        "test_job_is_preempted_after_the_delay_for_the_tenant",
    ),
    (
        "A task names one",
        "tests/scheduler/test_placing.py",
        "test_job_never_goes_to_a_worker_without_its_type",
    ),
    ("10 is the highest", "tests/scheduler/test_placing.py", "test_one_priority_equals_64_seconds_of_age"),
    (
        '`affinity_priority_order = "lower-first"` reverses that',
        "tests/publishing/test_stamping.py",
        "test_lower_first_reverses_priorities_of_stock_redis_apps",
    ),
    (
        "The other claims take the oldest job",
        "tests/scheduler/test_runtime_settings.py",
        "test_percentage_of_claims_is_by_age",
    ),
    ("Celery's own options", "tests/scheduler/test_placing.py", "test_scheduled_job_ages_from_its_due_time"),
    (
        "The lower number is preferred, among equally specialised workers",
        "tests/scheduler/test_placement.py",
        "test_worker_with_the_lower_priority_number_gets_the_job",
    ),
    (
        "Holders of the job's hint are always compared",
        "tests/scheduler/test_locality.py",
        "test_idle_holder_of_a_hint_is_always_chosen",
    ),
    ("at most ten", "tests/scheduler/test_locality.py", "test_one_of_many_holders_is_always_chosen"),
    (
        "Send jobs where the data is",
        "tests/scheduler/test_locality.py",
        "test_free_slot_gets_the_job_with_its_workers_hint",
    ),
    (
        "Celery's `--concurrency`",
        "tests/scheduler/test_placing.py",
        "test_worker_holds_no_more_jobs_than_slots",
    ),
    (
        "Nothing is locked: a function blocks all others, so the best of the sample is free by construction",
        "tests/scheduler/test_placement.py",
        "test_chosen_worker_has_most_points_of_sample_and_holders",
    ),
    (
        "Each end of a job brings the next one in its reply",
        "tests/docs/test_buildgrid.py",
        "test_a_worker_that_ends_three_jobs_in_one_call_gets_three_jobs_in_the_same_reply",
    ),
    (
        "After each call no slot is free while a job that fits waits",
        "tests/docs/test_buildgrid.py",
        "test_a_slot_is_never_free_beside_a_job_that_fits_unless_a_rule_keeps_the_job_back",
    ),
    (
        "For tasks shorter than a round trip",
        "tests/docs/test_buildgrid.py",
        "test_a_worker_holds_jobs_beyond_its_slots_only_if_it_asks_for_them",
    ),
    ("by -10, 5 and 1", "tests/scheduler/test_placement.py", "test_settings_without_weights_disable_placement"),
    ("with the same defaults", "tests/scheduler/test_placement.py", "test_settings_without_weights_disable_placement"),
    (
        "among equally specialised workers",
        "tests/scheduler/test_placement.py",
        "test_points_never_prefer_a_versatile_worker_to_a_specialist",
    ),
    ("A type in two cohorts is refused", "tests/docs/test_buildgrid.py", "test_a_type_in_two_cohorts_is_refused"),
    (
        "each cohort is scheduled by its own thread",
        "tests/docs/test_buildgrid.py",
        "test_each_cohort_is_scheduled_by_a_thread_of_its_own",
    ),
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


def terms():
    """Return the text of the page that has the terms of BuildGrid."""
    return PAGE.read_text(encoding="utf-8").partition("## Terms of BuildGrid")[2]


def test_each_term_has_a_row():
    named = re.findall(r"^\| (?!---)(.+?) \| .+ \| .+ \|$", terms(), re.MULTILINE)
    assert [term for term in TERMS if not any(each.startswith(term) for each in named)] == []


def test_each_row_of_the_terms_has_a_sentence_in_the_table_of_tests():
    text = terms()
    said = re.findall(r"^\| (?!---).+ \| .+ \| (.+) \|$", text, re.MULTILINE)
    assert len(said) > 12
    for cell in said:
        assert any(sentence in cell for sentence, *_ in TESTS), f"no test of: {cell}"
    for sentence, *_ in TESTS:
        assert sentence in " ".join(text.split()), f"the page does not have: {sentence}"


def test_each_test_of_the_table_exists():
    assert len(TESTS) > 15
    for _, file, name in TESTS:
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
