"""Merged calls on real workers: they are one run, whose end every caller gets, in every pool."""

import json
import time

import pytest
from celery import Celery, chain, chord
from celery.exceptions import InvalidTaskError, Reject, TaskRevokedError, TimeLimitExceeded, WorkerLostError

from celery_affinity import jobs
from celery_affinity.reports import dead_letters
from celery_affinity.reports.explain import explain
from celery_affinity.worker import merged_run

from ..support.fleet import POOLS_IN_TIME, in_time
from ..support.merging import APP, SOON_S
from ..support.processes import wait_until, wait_until_it_listens
from ..support.since import RUNNING_IS_REVOKED_AT_ONCE


def results_of(app, ids):
    """Return the stored results of tasks that may have failed before."""
    return [app.backend.get_task_meta(each.id, cache=False)["result"] for each in ids]


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_merged_calls_are_one_run_whose_result_all_get(merging, pool):
    fold, add, total = map(merging.task, ("fold", "add", "total"))
    results = [fold.delay("HH", changes=[n]) for n in range(3)]
    linked = fold.apply_async(("HH", [3]), link=add.s([9]))
    chained = chain(fold.s("HH", [4]), add.s([5]))()
    chorded = chord([fold.s("HH", [5]), fold.s("HH", [6]), add.si(1, 1)], total.s())()
    other = fold.delay("B", [7])
    merging.start(pool)
    merging.go()
    whole = list(range(7))
    assert [each.get(timeout=SOON_S) for each in [*results, linked]] == [whole] * 4
    assert chained.get(timeout=SOON_S) == [*whole, 5]
    assert chorded.get(timeout=SOON_S) == [whole, whole, 2]
    assert other.get(timeout=SOON_S) == [7]
    wait_until(lambda: [whole, [9]] in merging.runs("add"), 5, "the link is called")
    assert sorted(merging.runs("fold")) == [["B", [7]], ["HH", whole]]
    assert len(merging.runs("add")) == 3
    merging.leaves_nothing()


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_one_broker_connection_is_enough_for_reports_and_links(merging, pool):
    add = merging.task("add")
    results = [merging.task("fold").apply_async(("HH", [n]), link=add.s([9])) for n in range(3)]
    merging.start(pool, concurrency=4, CONF='{"broker_pool_limit": 1}')
    merging.go()
    assert [each.get(timeout=SOON_S) for each in results] == [[0, 1, 2]] * 3
    wait_until(lambda: len(merging.runs("add")) == 3, SOON_S, "each link is called")
    merging.leaves_nothing()


def test_run_gets_arguments_of_first_last_or_all_calls(merging):
    first = [merging.task("first").delay("HH", n) for n in range(3)]
    last = [merging.task("last").delay("HH", number=n) for n in range(3)]
    every = [merging.task("every").delay(n) for n in range(3)]
    too_few = [merging.task("too_few").delay(n) for n in range(3)]
    merging.start()
    merging.go()
    assert [each.get(timeout=SOON_S) for each in first] == [[0, 3, [0, 1, 2]]] * 3
    assert [each.get(timeout=SOON_S) for each in last] == [2] * 3
    assert [each.get(timeout=SOON_S) for each in every] == [0, 10, 20]
    for each in too_few:
        with pytest.raises(ValueError, match=r"^split returned 1 results for 3 calls$"):
            each.get(timeout=SOON_S)
    assert merging.task("every").delay(5).get(timeout=SOON_S) == 50, "alone"


def test_calls_of_a_run_are_in_publish_order(merging):
    names = ("first", "last", "fold", "every")
    ways = {
        "first": lambda n: ("HH", n),
        "last": lambda n: ("HH", n),
        "fold": lambda n: ("HH", [n]),
        "every": lambda n: (n,),
    }
    results = {name: [merging.task(name).apply_async(ways[name](0), countdown=0.2)] for name in names}
    for name in names:
        results[name] += [merging.task(name).delay(*ways[name](n)) for n in (1, 2)]
    wait_until(lambda: merging.scheduler.tick() and all_merged(merging, results), SOON_S, "they wait together")
    merging.start()
    merging.go()
    ended = {name: [each.get(timeout=SOON_S) for each in results[name]] for name in names}
    assert ended == {"first": [[0, 3, [0, 1, 2]]] * 3, "last": [2] * 3, "fold": [[0, 1, 2]] * 3, "every": [0, 10, 20]}


def all_merged(merging, results):
    reader = merging.scheduler.reader
    return all(explain(reader, each.id).calls == 3 for its in results.values() for each in its)


def test_retry_does_not_win_over_a_later_call(merging):
    merging.go()
    early = merging.task("last_again").delay("HH", 1)
    worker = merging.start("threads")
    worker.wait_ready(SOON_S)
    wait_until(lambda: merging.runs("gate"), SOON_S, "it runs")
    merging.scheduler.pause("type:merging")
    late = merging.task("last_again").delay("HH", 2)
    merging.ledger.with_name("ledger.gate").touch()
    reader = merging.scheduler.reader
    wait_until(lambda: explain(reader, late.id).calls == 2, SOON_S, "the retry waits as well")
    merging.go()
    assert [each.get(timeout=SOON_S) for each in (early, late)] == [2, 2]
    assert merging.runs("last_again") == [["HH", 1], ["HH", 2]]


def test_task_applied_locally_runs_for_its_own_call(load_app, valkey, monkeypatch, tmp_path):
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    app = load_app(APP)
    for _ in range(2):
        merged_run.install_merged_run(app)
    assert app.tasks["every"].apply((5,)).get() == 50
    assert app.tasks["fold"].apply(("HH", [1])).get() == app.tasks["fold"]("HH", [1]) == [1]
    assert app.tasks["first"].apply(("HH", 3)).get() == [3, 1, []]


@pytest.mark.parametrize("name", ["fails", "bad_fold"])
def test_failure_is_raised_for_each_caller(merging, name):
    merging.start("threads")
    results = [merging.task(name).delay("HH", n) for n in range(3)]
    errors = merging.task(name).apply_async(("HH", 3), link_error=merging.task("total").s())
    merging.go()
    for each in [*results, errors]:
        with pytest.raises((ValueError, ZeroDivisionError)):
            each.get(timeout=SOON_S)
    assert len(merging.runs(name)) == (name == "fails")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "pool", "error"), [("fails", "threads", "ValueError"), ("too_long", "prefork", "TimeLimitExceeded")]
)
def test_callers_of_a_failed_run_are_listed_with_reason(merging, name, pool, error):
    arguments = ("HH", 1) if name == "fails" else ("HH",)
    results = [merging.task(name).apply_async(arguments) for _ in range(3)]
    merging.start(pool, CONF='{"affinity_keep": 3600}').wait_ready(SOON_S)
    merging.go()
    found = jobs(merging.app)
    ids = [each.id for each in results]
    wait_until(lambda: {each.id for each in found.list("failed").jobs} == set(ids), SOON_S, f"{found.known_many(ids)}")
    assert {each.state for each in found.known_many(ids)} == {"failed"}
    assert all(each.why.startswith(error) for each in found.known_many(ids)), found.known_many(ids)
    assert dead_letters.find_letters(merging.scheduler.reader, dead_letters.LetterFilter()) == []


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "pool", "reason"),
    [("mended", "threads", "failed"), ("mended", "prefork", "failed"), ("mended_late", "threads", "rejected")],
)
def test_dead_letter_of_a_run_replays_for_all_callers(merging, name, pool, reason):
    results = [merging.task(name).delay("HH", n) for n in range(3)]
    add, failed = merging.task("add").s(1), merging.task("failed").s()
    linked = merging.task(name).apply_async(("HH", 3), link=add, link_error=failed)
    merging.start(pool, CONF=json.dumps({"affinity_keep_failed": reason == "failed"})).wait_ready(SOON_S)
    merging.go()
    for each in [*results, linked]:
        with pytest.raises(ValueError, match="3"):
            each.get(timeout=SOON_S)
    wait_until(lambda: merging.runs("failed") == [[linked.id]], SOON_S, "its error is linked")
    (letter,) = dead_letters.find_letters(merging.scheduler.reader, dead_letters.LetterFilter())
    assert (letter.reason, letter.why, letter.calls, letter.replayable) == (reason, "ValueError: 3", 4, True)
    found = jobs(merging.app)
    for each in results:
        assert (found.known(each.id).state, found.known(each.id).reason) == ("dead", reason)
    merging.mend()
    assert found.retry(results[1].id).note == "published again, with the other 3 of its run"
    wait_until(lambda: results_of(merging.app, [*results, linked]) == [3] * 4, SOON_S, "all of them know")
    wait_until(lambda: merging.runs("add") == [[3, 1]], SOON_S, "the link is called")
    assert merging.runs(name) == [["HH", 3]] * 2
    merging.leaves_nothing()


@pytest.mark.parametrize("keeps", [False, True])
def test_failure_with_ignored_results_calls_each_error_link(merging, keeps):
    fails = merging.task("fails")
    for n in range(3):
        fails.apply_async(("HH", n), link_error=merging.task("failed").s(), ignore_result=True)
    merging.start("threads", CONF=json.dumps({"affinity_keep_failed": keeps}))
    merging.go()
    wait_until(lambda: len(merging.runs("failed")) == 3, SOON_S, "each is told")
    assert len(merging.runs("fails")) == 1


def test_call_published_during_an_equal_run_is_not_lost(merging):
    merging.start("threads")
    running = merging.task("fold_late").delay("HH", [1], 1.0)
    merging.go()
    wait_until(lambda: merging.runs("fold_late"), SOON_S, "it runs")
    next_ones = [merging.task("fold_late").delay("HH", [n]) for n in (2, 3)]
    assert running.get(timeout=SOON_S) == [1]
    assert {tuple(each.get(timeout=SOON_S)) for each in next_ones} <= {(2,), (3,), (2, 3)}


def test_revoked_caller_affects_no_other(merging):
    results = [merging.task("fold").delay("HH", [n]) for n in range(3)]
    merging.app.control.revoke(results[0].id)
    expired = merging.task("fold").apply_async(("HH", [3]), expires=0.01)
    merging.start()
    wait_until(lambda: results[0].state == "REVOKED", SOON_S, "the first is revoked")
    time.sleep(0.01)
    merging.go()
    assert [each.get(timeout=SOON_S) for each in results[1:]] == [[1, 2]] * 2
    for each in (results[0], expired):
        with pytest.raises(TaskRevokedError):
            each.get(timeout=SOON_S)


@pytest.mark.parametrize(
    ("name", "error"), [("too_long", TimeLimitExceeded), ("dies", WorkerLostError)], ids=["too_long", "dies"]
)
def test_dispatcher_reports_ends_that_a_lost_process_could_not(merging, name, error):
    results = [merging.task(name).delay("HH") for _ in range(3)]
    errors = chain(merging.task(name).s("HH"), merging.task("add").s(1))
    last = errors()
    merging.start()
    merging.go()
    for each in [*results, last.parent]:
        with pytest.raises(error):
            each.get(timeout=SOON_S)
    assert len(merging.runs(name)) == 1
    assert not merging.runs("add")


@pytest.mark.parametrize(("name", "result", "additions"), [("replaces", "HH!", 1), ("rejects", "again", 0)])
def test_replaced_or_requeued_run_returns_to_all_callers(merging, name, result, additions):
    results = [merging.task(name).delay("HH") for _ in range(3)]
    merging.start()
    merging.go()
    assert [each.get(timeout=SOON_S) for each in results] == [result] * 3
    assert len(merging.runs("add")) == additions


def test_run_terminated_for_one_caller_restarts_for_the_others(merging):
    first, *others = [merging.task("fold_late").delay("HH", [n], 30.0) for n in range(3)]
    merging.start()
    merging.go()
    wait_until(lambda: merging.runs("fold_late"), SOON_S, "it runs")
    merging.app.control.revoke(others[0].id)
    merging.app.control.revoke(first.id, terminate=True, signal="SIGKILL")
    for each in (first, others[0]):
        with pytest.raises(TaskRevokedError):
            each.get(timeout=SOON_S)
    wait_until(lambda: merging.runs("fold_late")[1:] == [["HH", [2]]], SOON_S, "it runs for the last one")
    merging.app.control.revoke(others[1].id, terminate=True, signal="SIGKILL")
    with pytest.raises(TaskRevokedError):
        others[1].get(timeout=SOON_S)


@pytest.mark.whole
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
@pytest.mark.parametrize("acks", ["early", "late"])
@pytest.mark.parametrize("ended", [[0], [1], [1, 2], [0, 2]])
def test_run_restarts_for_the_callers_not_terminated(merging, ended, acks, pool):
    results = [merging.task(f"fold_{acks}").delay("HH", [n], 4.0) for n in range(4)]
    worker = merging.start(pool)
    wait_until_it_listens(merging.app, worker.name)
    merging.go()
    wait_until(lambda: merging.runs(f"fold_{acks}"), SOON_S, "it runs")
    merging.app.control.revoke([results[n].id for n in ended], terminate=True)
    others = [n for n in range(4) if n not in ended]
    for n in ended:
        with pytest.raises(TaskRevokedError):
            results[n].get(timeout=SOON_S)
    assert [results[n].get(timeout=SOON_S) for n in others] == [others] * len(others)
    assert merging.runs(f"fold_{acks}") == [["HH", [0, 1, 2, 3]], ["HH", others]]
    merging.leaves_nothing()
    assert {results[n].state for n in ended} == {"REVOKED"}


@pytest.mark.whole
@pytest.mark.parametrize("ended", [[0], [0, 2], [1]])
def test_stamp_of_its_first_call_terminates_a_run(merging, ended):
    results = []
    for n in range(4):
        call = merging.task("fold_late").s("HH", [n], 4.0)
        call.stamp(customer="acme" if n in ended else "other")
        results.append(call.apply_async())
    worker = merging.start("prefork")
    wait_until_it_listens(merging.app, worker.name)
    merging.go()
    wait_until(lambda: merging.runs("fold_late"), SOON_S, "it runs")
    merging.app.control.revoke_by_stamped_headers({"customer": "acme"}, terminate=True)
    others = [n for n in range(4) if n not in ended]
    for n in ended:
        with pytest.raises(TaskRevokedError):
            results[n].get(timeout=SOON_S)
    runs = [[0, 1, 2, 3], others] if 0 in ended else [[0, 1, 2, 3]]
    assert [results[n].get(timeout=SOON_S) for n in others] == [runs[-1]] * len(others)
    assert merging.runs("fold_late") == [["HH", each] for each in runs]
    merging.leaves_nothing()


def test_run_continues_when_its_pool_cannot_terminate_it(merging):
    results = [merging.task("fold_late").delay("HH", [n], 4.0) for n in range(2)]
    worker = merging.start("threads")
    wait_until_it_listens(merging.app, worker.name)
    merging.go()
    wait_until(lambda: merging.runs("fold_late"), SOON_S, "it runs")
    for each in results:
        merging.app.control.revoke(each.id, terminate=True)
    with pytest.raises(TaskRevokedError):
        results[1].get(timeout=SOON_S)
    if not RUNNING_IS_REVOKED_AT_ONCE:
        assert results[0].get(timeout=SOON_S) == [0, 1], "as if it had been revoked without being terminated"
    reader = merging.scheduler.reader
    wait_until(lambda: explain(reader, results[0].id).state == "done", SOON_S, "it ran to its end")
    assert len(merging.runs("fold_late")) == 1


def test_explain_shows_each_caller_its_run(merging):
    fold = merging.task("fold_late")
    results = [fold.delay("HH", [0], 1.0), fold.apply_async(("HH", [1]), priority=5, on_demand=True)]
    alone = fold.delay("B", [2])
    reader = merging.scheduler.reader
    for each in results:
        found = explain(reader, each.id)
        assert (found.state, found.calls, found.priority, found.mode) == ("pending", 2, 5, "on_demand")
        assert found.note == "merged with 1 other call(s) of 'HH'"
        assert [str(rule) for rule in found.waiting.blocked_by]
    assert (explain(reader, alone.id).calls, explain(reader, alone.id).note) == (1, None)
    merging.start("threads", concurrency=1)
    merging.go()
    wait_until(lambda: {explain(reader, each.id).state for each in results} == {"running"}, SOON_S, "it runs")
    assert [each.get(timeout=SOON_S) for each in [*results, alone]] == [[0, 1], [0, 1], [2]]
    assert {explain(reader, each.id).state for each in results} == {"done"}


def test_finally_rejected_run_fails_for_each_caller(merging):
    results = [merging.task("rejects").delay("HH", requeue=False) for _ in range(3)]
    merging.start()
    merging.go()
    for each in results:
        with pytest.raises(Reject):
            each.get(timeout=SOON_S)
    (letter,) = dead_letters.find_letters(merging.scheduler.reader, dead_letters.LetterFilter())
    assert (letter.reason, letter.why) == ("rejected", "Reject: HH")
    for each in results:
        job = jobs(merging.app).known(each.id)
        assert (job.state, job.reason, job.why) == ("dead", "rejected", "Reject: HH")


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_each_call_is_retried_and_the_retries_merge(merging, pool):
    retries = merging.task("retries")
    results = [retries.delay("HH", [n]) for n in range(3)]
    results += [merging.task("retries_all").delay(n) for n in range(3)]
    chained = chain(retries.s("HH", [3]), merging.task("add").s([4]))()
    merging.start(pool)
    merging.go()
    found = [each.get(timeout=SOON_S) for each in results]
    assert [(n in each) for n, each in zip([0, 1, 2, 0, 1, 2], found, strict=True)] == [True] * 6
    assert set(chained.get(timeout=SOON_S)) >= {3, 4}
    tries = [changes for _, changes in merging.runs("retries")]
    assert tries[0] == [0, 1, 2, 3]
    assert sorted(change for changes in tries[1:] for change in changes) == [0, 1, 2, 3]


def test_retry_with_other_arguments_is_for_all_callers(merging):
    results = [merging.task("retries_with").delay("HH", [n]) for n in range(3)]
    merging.start()
    merging.go()
    assert [each.get(timeout=SOON_S) for each in results] == [[0, 1, 2]] * 3
    assert merging.runs("retries_with") == [["HH", [0, 1, 2]]] * 2


def test_killed_worker_loses_no_caller(merging):
    results = [merging.task("fold_late").delay("HH", [n], 60.0) for n in range(3)]
    worker = merging.start()
    merging.go()
    wait_until(lambda: merging.runs("fold_late"), SOON_S, "it runs")
    worker.kill()
    merging.start("threads")
    assert [each.get(timeout=SOON_S) for each in results] == [[0, 1, 2]] * 3


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_calls_of_stock_producers_merge_by_task_name(merging, pool):
    stock = Celery("stock", broker=merging.url, backend=merging.url, set_as_current=False)
    results = [stock.send_task("by_name", ("HH",), {"changes": [n]}, queue="merging") for n in range(3)]
    linked = stock.send_task("by_name", ("HH", [3]), queue="merging", link=merging.task("add").s([9]))
    rules = {"by*": {"merge": {"key": "{city}", "fold": f"{APP}.union"}, "exclusive": "{city}"}}
    worker = merging.start(pool, CONF=json.dumps({"affinity_task_rules": rules}))
    wait_until(lambda: not merging.redis.llen("merging"), SOON_S, worker.log)
    merging.go()
    assert [each.get(timeout=SOON_S) for each in [*results, linked]] == [[0, 1, 2, 3]] * 4
    wait_until(lambda: merging.runs("add"), SOON_S, "the link is called")
    assert len(merging.runs("by_name")) == 1
    stock.close()


def test_worker_whose_task_does_not_merge_loses_no_call(merging):
    far = Celery("far", broker=merging.url, backend=merging.url, set_as_current=False)
    far.conf.broker_transport = "celery_affinity:Transport"
    results = [far.send_task("by_name", ("HH", [n]), affinity="merging", merge_key="k") for n in range(2)]
    worker = merging.start("threads")
    merging.go()
    for each in results:
        with pytest.raises((InvalidTaskError, Reject), match=r"merged calls of task by_name|was rejected"):
            each.get(timeout=SOON_S)
    assert "its producer merged calls of task by_name, which this worker cannot run as one" in worker.log()
    assert not merging.runs("by_name")
    far.close()


def test_retry_policy_with_more_than_pauses_is_accepted(merging):
    policy = {"max_retries": 3, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2, "retry_errors": None}
    results = [merging.task("fold").delay("HH", [n]) for n in range(2)]
    merging.start("threads", CONF=json.dumps({"task_publish_retry_policy": policy}))
    merging.go()
    assert [each.get(timeout=SOON_S) for each in results] == [[0, 1]] * 2


@pytest.mark.parametrize("pool", in_time("prefork", "threads", "gevent"))
def test_connections_lost_during_the_run_block_no_caller(merging, pool):
    results = [merging.task("fold_late").delay("HH", [n], 1.0) for n in range(3)]
    merging.start(pool)
    merging.go()
    wait_until(lambda: merging.runs("fold_late"), SOON_S, "it runs")
    merging.redis.client_kill_filter(_type="normal", skipme=True)
    assert [each.get(timeout=SOON_S) for each in results] == [[0, 1, 2]] * 3
