"""Job ends in every pool, with every ack mode: the texts of `explain` and of the dead letters."""

import json

import pytest
from billiard.exceptions import TimeLimitExceeded
from celery import Celery
from celery.exceptions import NotRegistered, Reject
from celery.utils.serialization import UnpickleableExceptionWrapper
from celery.worker.request import Request

from celery_affinity.reports import dead_letters
from celery_affinity.reports.explain import explain
from celery_affinity.results.reporter import describe_error
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.constants import MAX_WHY_BYTES
from celery_affinity.schema.keys import Keys

from ..support.fleet import POOLS, Pools, closing
from ..support.members import reporting_of
from ..support.processes import wait_until
from ..support.requests import request_of

FAILING = "tests.support.apps.failing"

#: Pools that can end a running task.
END_TASKS = ("prefork", "gevent", "eventlet")

#: Pools that, since Celery 5.7, spare a job whose process is lost.
SPARES_WHAT_IS_LOST = ("prefork",) if hasattr(Request, "_success_was_stored") else ()

FAILED, REJECTED, GIVEN_UP = ("failed", None), ("dead", "rejected"), ("dead", "max_deliveries")
REQUEUED_TOO_OFTEN = ("dead", "max_requeues")
DONE, REVOKED = ("done", None), ("revoked", None)

#: Task -> pools that can run the task; ends of the job if acked early, if acked late, and if acked late except after
#: failures; beginning of the recorded error.
ENDS = {
    "good": (POOLS, DONE, DONE, DONE, None),
    "fails": (POOLS, FAILED, FAILED, REJECTED, "ValueError: no such page\n\x1b[31m"),
    "fails_at_length": (POOLS, FAILED, FAILED, REJECTED, "LookupError: what it says: " + "\u00e9" * 186),
    "fails_unpicklably": (POOLS, FAILED, FAILED, REJECTED, "UnpicklableError: page 7: torn"),
    "returns_what_no_serializer_takes": (POOLS, FAILED, FAILED, REJECTED, "EncodeError: "),
    "retries": (POOLS, DONE, DONE, DONE, None),
    "retries_while_the_broker_is_away": (POOLS, FAILED, DONE, DONE, ""),
    "retries_in_vain": (POOLS, FAILED, FAILED, REJECTED, "OSError: the printer is off"),
    "ignores": (POOLS, DONE, DONE, DONE, None),
    "rejects": (POOLS, FAILED, REJECTED, REJECTED, "Reject: no such customer"),
    "rejects_because_of_an_error": (POOLS, FAILED, REJECTED, REJECTED, "Reject: ConnectionError: no way"),
    "wants_to_run_again": (POOLS, FAILED, DONE, DONE, "Reject: not now"),
    "never_runs_well": (POOLS, FAILED, REQUEUED_TOO_OFTEN, REQUEUED_TOO_OFTEN, "Reject: not today"),
    "exits": (("prefork", "threads", "gevent", "eventlet"), FAILED, FAILED, REJECTED, ""),
    "takes_too_long": (("prefork", "gevent"), FAILED, FAILED, DONE, "TimeLimitExceeded(1"),
    "takes_long": (("prefork",), FAILED, FAILED, REJECTED, "SoftTimeLimitExceeded("),
    "loses_its_process": (("prefork",), FAILED, FAILED, REJECTED, "WorkerLostError: "),
    "loses_each_process": (("prefork",), FAILED, GIVEN_UP, GIVEN_UP, "WorkerLostError: "),
    "is_retried_when_its_process_is_lost": (SPARES_WHAT_IS_LOST, DONE, DONE, DONE, None),
    "loses_its_process_when_it_has_succeeded": (SPARES_WHAT_IS_LOST, DONE, DONE, DONE, None),
    "is_revoked": (END_TASKS, REVOKED, REVOKED, REVOKED, None),
}


def test_each_job_end_has_its_state_and_reason(tmp_path, valkey, redis_client):
    wanted, sent, ended = {}, {}, {}
    reader = Reader(redis_client, Keys())

    def look():
        for job, task_id in sent.items():
            if job not in ended:
                found = explain(reader, task_id)
                if found.state not in ("scheduled", "pending", "claimed", "running"):
                    ended[job] = found.state, found.reason, found.why
        return len(ended) == len(sent)

    conf = json.dumps({"affinity_max_requeues": 1, "affinity_requeue_delay_max": 0})
    with closing(Pools(FAILING, valkey, tmp_path, slots=4, MAX_DELIVERIES="2", CONF=conf)) as pools:
        for task, (in_pools, *ends, why) in ENDS.items():
            for ack, end in zip(("early", "late", "strict"), ends, strict=True):
                for pool in in_pools:
                    job = f"{pool}-{task}-{ack}"
                    wanted[job] = *end, None if end in (DONE, REVOKED) else why
                    sent[job] = pools.send(f"{task}_{ack}", job, pool).id
        for job in [each for each in sent if "-is_revoked-" in each]:
            wait_until(lambda job=job: look() or job in pools.ledger.starts(), 60, f"{job} runs\n{pools.logs()}")
            pools.app.control.revoke(sent[job], terminate=True)
        try:
            wait_until(look, 60, "all end")
        except AssertionError:
            pytest.fail(f"no end of {set(sent) - set(ended)}\n{pools.logs()}")
        wait_until(pools.all_slots_are_free, 20, f"all slots are free\n{pools.logs()}")
        tries = {
            task_id: _states_of_its_jobs(redis_client, task_id)
            for job, task_id in sent.items()
            if "-retries-" in job or "-is_retried_" in job
        }
        dead = {
            each.task_id: (each.reason, each.why)
            for each in dead_letters.find_letters(reader, dead_letters.LetterFilter())
        }
    wrong = {job: (end, wanted[job]) for job, end in ended.items() if not _is_as(end, wanted[job])}
    assert wrong == {}
    assert set(tries.values()) <= {("done", "done")}, "a try that is followed by another has not failed"
    assert dead == {sent[job]: end[1:] for job, end in ended.items() if end[0] == "dead"}


def _states_of_its_jobs(redis_client, task_id):
    rows = [redis_client.hmget(name, "task", "state") for name in redis_client.scan_iter(Keys().key("job", "*"))]
    return tuple(state.decode() for task, state in rows if task == task_id.encode())


def _is_as(end, wanted):
    *how, why = end
    *wanted_how, begins = wanted
    return how == wanted_how and (why is None if begins is None else why is not None and why.startswith(begins))


class RudeError(Exception):
    """An exception that cannot be converted to text."""

    def __str__(self):
        raise SystemExit(self.args[0])


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ValueError("no such page"), "ValueError: no such page"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 1_000), "ValueError: " + "x" * 200),
        (ValueError("half a pair: \ud800"), "ValueError: half a pair: \\ud800"),
        (type("X" * 1_000, (Exception,), {})("why"), "X" * 80 + ": why"),
        (RudeError("why"), "RudeError: (what it says cannot be shown)"),
        (TimeLimitExceeded(1), "TimeLimitExceeded(1,)"),
        (NotRegistered("a.task"), "NotRegistered: 'a.task'"),
        (Reject("no such customer"), "Reject: no such customer"),
        (Reject(OSError("no way")), "Reject: OSError: no way"),
        (Reject(), "Reject"),
        (UnpickleableExceptionWrapper("a", "TornError", ("page 7",), "page 7"), "TornError: page 7"),
    ],
)
def test_recorded_error_has_its_type_and_shortened_message(error, kept):
    assert describe_error(error) == kept


def test_longest_recorded_error_fits_the_servers_limit():
    longest = describe_error(type("\U0001f4a5" * 100, (Exception,), {})("\U0001f4a5" * 300))
    assert len(longest.encode()) <= MAX_WHY_BYTES


class Told:
    """A scheduler that records the outcomes of ends."""

    def release_and_claim(self, worker, *, acks, ends, **_):
        self.outcomes = [end.outcome for end in ends]
        return []


@pytest.mark.parametrize(("expired", "outcome"), [(False, "revoked"), (True, "expired")])
def test_job_found_revoked_or_expired_ends_with_that_outcome(expired, outcome):
    reporting, told = reporting_of(), Told()
    with Celery("alone", broker="memory://", set_as_current=False) as app:
        request, message = request_of(app, reporting)
        message.ack_log_error.side_effect = lambda *_: reporting.set_outcome(message.delivery_tag, "acked")
        request._announce_revoked(outcome, False, None, expired)
    reporting.outbox.flush(told, inline=True)
    assert told.outcomes == [outcome]
