"""`celery affinity cancel`, `move` and `prioritise`, run as a user runs them."""

import json
import sys

import pytest

from celery_affinity.cli import jobs as cli_jobs
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.command import affinity
from ..support.messages import wire
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(valkey, redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.fixture
def stamped(fleet):
    """Jobs of two customers."""
    jobs = [
        NewJob(
            f"{customer}{number}", "pdf", "message", task_id=f"task-{customer}{number}", stamps=[f"customer:{customer}"]
        )
        for customer in ("a%20b", "c")
        for number in range(7)
    ]
    fleet.scheduler.publish(*jobs)
    return fleet


def states(fleet, ids):
    return {fleet.state(each) for each in ids}


def test_jobs_are_cancelled_by_id_once(valkey, fleet):
    fleet.publish("one", "pdf")
    fleet.publish("two", "pdf")
    run = affinity(valkey.url, "cancel", "task-one", "two")
    said = "task-one (pending): revoked: it does not start\ntwo (pending): revoked: it does not start\n"
    assert (run.returncode, run.stdout) == (0, said)
    again = affinity(valkey.url, "cancel", "task-two", "--json")
    change = {"id": "task-two", "found": "revoked", "done": False, "note": "it has ended: revoked"}
    assert (again.returncode, json.loads(again.stdout)) == (1, [change])


def test_all_jobs_of_a_customer_are_cancelled_after_a_question(valkey, stamped):
    shown = affinity(valkey.url, "cancel", "--stamp", "customer=a b", "--dry-run").stdout.splitlines()
    assert [line.split()[0] for line in shown[1:6]] == [f"task-a%20b{number}" for number in range(5)]
    assert shown[6:] == ["... and 2 more", "7 jobs found; nothing was done"]
    asked = affinity(valkey.url, "cancel", "--stamp", "customer=a b")
    assert (asked.returncode, "Cancel 7 jobs? [y/N]" in asked.stderr) == (1, True)
    assert states(stamped, ["a%20b0", "c0"]) == {"pending"}
    run = affinity(valkey.url, "cancel", "--stamp", "customer=a b", "--yes", "--json")
    assert json.loads(run.stdout) == {"found": 7, "calls": 7, "done": 7, "left": {}, "warning": None}
    assert states(stamped, [f"a%20b{number}" for number in range(7)]) == {"revoked"}
    assert states(stamped, [f"c{number}" for number in range(7)]) == {"pending"}
    nothing = affinity(valkey.url, "cancel", "--stamp", "customer=a b", "--yes")
    assert (nothing.returncode, nothing.stdout) == (0, "0 jobs found; nothing was done\n")


def test_all_calls_of_a_merged_run_are_cancelled(valkey, fleet):
    for name in ("one+", "two+", "three+"):
        fleet.publish(name, "pdf", rules="merge=m most=10 bytes=1000000")
    asked = affinity(valkey.url, "cancel", "--type", "pdf")
    assert "Cancel 1 job of 3 calls?" in asked.stderr
    assert affinity(valkey.url, "cancel", "--type", "pdf", "--yes").stdout.endswith("3 done\n")
    assert states(fleet, ["one+", "two+", "three+"]) == {"revoked"}


def test_what_a_worker_has_is_left_unless_that_is_said(valkey, fleet):
    fleet.join("worker", "pdf")
    fleet.publish("runs", "pdf")
    fleet.ack("worker", *fleet.inbox("worker"))
    fleet.publish("waits", "pdf")
    assert affinity(valkey.url, "cancel", "--type", "pdf", "--yes").stdout.endswith("1 done\n")
    run = affinity(valkey.url, "cancel", "--state", "running", "--terminate", "--yes")
    assert run.stdout.endswith("1 done\n")


def test_jobs_of_a_misspelt_type_are_moved_and_run(valkey, fleet):
    fleet.join("worker", "pdf", slots=9)
    for number in range(12):
        fleet.publish(f"job{number}", "pfd", delay_s=600 * (number > 7))
    run = affinity(valkey.url, "move", "--type", "pfd", "--to", "pdf", "--yes")
    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, "12 done")
    assert len(fleet.jobs("worker")) == 8
    assert json.loads(affinity(valkey.url, "jobs", "--type", "pdf", "--state", "scheduled", "--json").stdout)["jobs"]


def test_a_type_that_nobody_serves_is_said_after_a_move(valkey, fleet):
    fleet.join("worker", "pdf", slots=0)
    fleet.join("another", "excel")
    fleet.publish("job", "pdf")
    run = affinity(valkey.url, "move", "--task", "tests.*", "--to", "exel", "--yes")
    assert run.stderr == "no live worker serves type 'exel'; did you mean 'excel'?\n"
    by_id = affinity(valkey.url, "move", "task-job", "--to", "excl")
    assert (
        by_id.stdout
        == "task-job (pending): moved: type 'excl'; no live worker serves type 'excl'; did you mean 'excel'?\n"
    )


def test_jobs_get_another_priority_and_mode(valkey, fleet):
    fleet.publish("job", "pdf")
    run = affinity(valkey.url, "prioritise", "--older-than", "1d", "--priority", "9", "--yes")
    assert run.stdout == "0 jobs found; nothing was done\n"
    run = affinity(valkey.url, "prioritise", "task-job", "--priority", "9", "--on-demand")
    assert run.stdout == "task-job (pending): moved: priority 9, on demand\n"
    (job,) = json.loads(affinity(valkey.url, "jobs", "--json").stdout)["jobs"]
    assert (job["priority"], job["mode"]) == (9, "on_demand")
    affinity(valkey.url, "prioritise", "--state", "pending", "--queued", "--yes")
    (job,) = json.loads(affinity(valkey.url, "jobs", "--json").stdout)["jobs"]
    assert (job["priority"], job["mode"]) == (9, "queued")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["cancel"],
            "give ids, or some of --type, --task, --state, --older-than, --newer-than, --stamp, --key and --argument",
        ),
        (["cancel", "--argument", "customer", "--yes"], "argument must be a name and a value, name=value"),
        (
            ["cancel", "--older-than", "2h", "--newer-than", "1h", "--yes"],
            "newer_than must be a longer time than older_than (7200 s), got: 3600",
        ),
        (["cancel", "--stamp", "customer", "--yes"], "stamp must be a name and a value, name=value, got: 'customer'"),
        (["move", "one", "--to", "a,b"], "type must be the name of a queue"),
        (["prioritise", "one"], "give the jobs a new type, priority or mode"),
    ],
)
def test_what_cannot_be_meant_says_what_is_accepted(valkey, arguments, said):
    run = affinity(valkey.url, *arguments)
    assert (run.returncode in (1, 2), said in run.stderr) == (True, True), run.stderr


def test_the_calls_of_a_customer_are_cancelled_by_their_argument(valkey, fleet):
    for number, customer in enumerate(["acme", "globex", "acme"]):
        fleet.publish(f"job{number}", "pdf", message=wire(f"task-job{number}", args=(customer,)))
    both = ("--argument", "args[0]=acme", "--newer-than", "1h")
    assert len(json.loads(affinity(valkey.url, "jobs", *both, "--json").stdout)["jobs"]) == 2
    assert affinity(valkey.url, "move", *both, "--to", "slow", "--yes").stdout.endswith("2 done\n")
    assert affinity(valkey.url, "prioritise", *both, "--priority", "3", "--yes").stdout.endswith("2 done\n")
    assert affinity(valkey.url, "cancel", *both, "--yes").stdout.endswith("2 done\n")
    assert [fleet.state(f"job{number}") for number in range(3)] == ["revoked", "pending", "revoked"]


@pytest.mark.parametrize(("is_terminal", "printed"), [(True, ["2 jobs found", "4 jobs found", ""]), (False, [])])
def test_progress_is_printed_once_a_second_on_a_terminal(monkeypatch, capsys, is_terminal, printed):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    seconds = iter([0, 0.5, 1.1, 1.1, 2.0, 2.2, 2.2])
    monkeypatch.setattr(cli_jobs.time, "monotonic", lambda: next(seconds))
    with cli_jobs._progress("jobs found") as add:
        for _ in range(4):
            add(1)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "".join(f"\r\x1b[K{text}" for text in printed))
