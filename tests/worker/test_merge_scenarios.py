"""Merged calls with Celery's call features, and the scenarios that users of other packages expect.

The other packages are celery-singleton and celery-batches. The scenarios come from their tests.
"""

import json
from collections import Counter

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import Reject, TaskRevokedError, TimeLimitExceeded

from celery_affinity.reports import dead_letters

from ..support.fleet import POOLS_IN_TIME
from ..support.merging import SOON_S
from ..support.processes import wait_until

pytestmark = pytest.mark.whole


def gets(results):
    return [each.get(timeout=SOON_S) for each in results]


# -- follow-up calls, in every pool


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_follow_up_calls_run_after_the_worker_was_killed(merging, pool):
    fold, add, total = map(merging.task, ("fold_late", "add", "total"))
    calls = [fold.s("HH", [n], 60.0) for n in range(9)]
    linked = [calls[n].apply_async(link=add.s([n])) for n in range(2)]
    chained = [chain(calls[n], add.s([n]))() for n in range(2, 4)]
    grouped = group(calls[4:6])()
    chorded = chord(calls[6:9], total.s())()
    worker = merging.start(pool)
    merging.go()
    wait_until(lambda: merging.runs("fold_late"), SOON_S, worker.log())
    worker.kill()
    merging.start(pool)
    whole = list(range(9))
    assert gets(linked) == gets(grouped.results) == [whole] * 2
    assert gets(chained) == [[*whole, 2], [*whole, 3]]
    assert chorded.get(timeout=SOON_S) == [whole] * 3
    wait_until(lambda: len(merging.runs("add")) >= 4, SOON_S, "all links")
    merging.leaves_nothing()
    assert Counter(str(link) for _, link in merging.runs("add")) == {str([n]): 1 for n in range(4)}
    assert merging.runs("fold_late") == [["HH", whole]] * 2
    assert len(merging.runs("total")) == 1


# -- Celery's call features


def test_calls_with_a_countdown_merge_when_due(merging):
    results = [merging.task("fold").apply_async(("HH", [n]), countdown=2) for n in range(2)]
    merging.start("threads")
    # Wait for both calls. They become due some milliseconds apart, and a run may start in between.
    wait_until(lambda: merging.calls_that_wait_together() == 2, SOON_S, "both are due")
    merging.go()
    assert [sorted(each) for each in gets(results)] == [[0, 1]] * 2
    assert len(merging.runs("fold")) == 1


def test_revoked_stamp_revokes_only_its_own_call(merging):
    stamped = merging.task("fold").s("HH", [0])
    stamped.stamp(customer="acme")
    first, other = stamped.apply_async(), merging.task("fold").delay("HH", [1])
    merging.start("threads")
    merging.app.control.revoke_by_stamped_headers({"customer": "acme"})
    wait_until(lambda: first.state == "REVOKED", SOON_S, "it is revoked")
    merging.go()
    assert gets([other]) == [[1]]
    with pytest.raises(TaskRevokedError):
        first.get(timeout=SOON_S)


def test_links_run_for_calls_with_ignored_results(merging):
    fold, add = merging.task("fold"), merging.task("add")
    results = [fold.apply_async(("HH", [n]), ignore_result=n > 0, link=add.s([n])) for n in range(3)]
    merging.start("threads")
    merging.go()
    assert results[0].get(timeout=SOON_S) == [0, 1, 2]
    wait_until(lambda: len(merging.runs("add")) == 3, SOON_S, "all links")
    merging.leaves_nothing()
    assert [merging.redis.exists(f"celery-task-meta-{each.id}") for each in results] == [1, 0, 0]


def test_calls_with_different_serializers_merge(merging):
    results = [
        merging.task("fold").apply_async(("HH", [n]), serializer=serializer)
        for n, serializer in enumerate(("json", "msgpack", "yaml"))
    ]
    merging.start("threads", CONF=json.dumps({"accept_content": ["json", "msgpack", "yaml"]}))
    merging.go()
    assert gets(results) == [[0, 1, 2]] * 3


def test_state_stored_by_the_task_applies_to_each_caller(merging):
    results = [merging.task("ignores").delay("HH") for _ in range(3)]
    merging.start()
    merging.go()
    assert gets(results) == ["HH by itself"] * 3


def test_calls_requeued_too_often_are_one_dead_letter(merging):
    results = [merging.task("never_runs_well").delay("HH") for _ in range(3)]
    merging.start("threads", CONF=json.dumps({"affinity_max_requeues": 1}))
    merging.go()
    for each in results:
        with pytest.raises(Reject, match="affinity_max_requeues"):
            each.get(timeout=SOON_S)
    (letter,) = dead_letters.find_letters(merging.scheduler.reader, dead_letters.LetterFilter())
    assert letter.reason == "max_requeues"


def test_each_caller_gets_the_result_in_its_reply_queue(merging):
    with Celery("far", broker=merging.url, backend="rpc://", set_as_current=False) as far:
        far.conf.broker_transport = "celery_affinity:Transport"
        calls = [("fold", ("HH", [n]), {"affinity": "merging", "merge_key": "HH"}) for n in range(3)]
        results = [far.send_task(name, args, **options) for name, args, options in calls]
        merging.start("threads", RESULT_URL="rpc://")
        merging.go()
        assert gets(results) == [[0, 1, 2]] * 3


# -- celery-singleton


def test_equal_calls_run_once_and_share_the_result(merging):
    pair = merging.task("pair")
    alike = [pair.delay(1, 2), pair.delay(1), pair.delay(b=2, a=1), pair.apply_async(kwargs={"a": 1, "b": 2})]
    alike.append(pair.delay(1, 2, other="is no part of the key"))
    others = [pair.delay(2, 1), pair.delay(1, 3)]
    assert len({each.id for each in [*alike, *others]}) == 7
    merging.start("threads")
    merging.go()
    assert gets(alike) == [[1, 2]] * 5
    assert gets(others) == [[2, 1], [1, 3]]
    assert sorted(merging.runs("pair")) == [[1, 2], [1, 3], [2, 1]]


@pytest.mark.parametrize(
    ("name", "args", "error"), [("pair", ("bad",), ValueError), ("too_long", ("HH",), TimeLimitExceeded)]
)
def test_call_after_a_failure_runs_again(merging, name, args, error):
    merging.start()
    merging.go()
    for runs in (1, 2):
        with pytest.raises(error):
            merging.task(name).delay(*args).get(timeout=SOON_S)
        assert len(merging.runs(name)) == runs


def test_call_after_revoked_equal_calls_runs(merging):
    revoked = [merging.task("pair").delay(1) for _ in range(2)]
    merging.start("threads")
    for each in revoked:
        each.revoke()
    wait_until(lambda: {each.state for each in revoked} == {"REVOKED"}, SOON_S, "they are revoked")
    again = merging.task("pair").delay(1)
    merging.go()
    assert again.get(timeout=SOON_S) == [1, 2]


def test_chord_of_equal_calls_gets_a_result_per_call(merging):
    same = chord([merging.task("pair").s(1)] * 3, merging.task("total").s())()
    merging.start("threads")
    merging.go()
    assert same.get(timeout=SOON_S) == [[1, 2]] * 3
    assert len(merging.runs("pair")) == 1


def test_chains_that_begin_with_equal_calls_all_continue(merging):
    pair, add = merging.task("pair"), merging.task("add")
    begun = [chain(pair.si(1), add.s([n]))() for n in range(2)]
    goes_through = [chain(add.si("a", "b"), pair.si(1), add.s([n]))() for n in (2, 3)]
    merging.start("threads")
    merging.go()
    assert gets([*begun, *goes_through]) == [[1, 2, n] for n in range(4)]
    assert gets([each.parent for each in [*begun, *goes_through]]) == [[1, 2]] * 4
    assert merging.runs("pair")[0] == [1, 2]
    assert len(merging.runs("pair")) <= 3


# -- celery-batches


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_all_calls_are_one_run_with_one_signal_set(merging, pool):
    names = ["task_prerun", "task_postrun", "task_success", "task_failure", "task_retry", "task_revoked"]
    sums, stores = merging.task("sums"), merging.task("stores")
    results = [sums.delay(1), sums.delay(2, 3), sums.delay(a=4, b=5), sums.apply_async(kwargs={"a": 6})]
    stored = [stores.delay(n) for n in range(3)]
    merging.start(pool, SIGNALS=" ".join(names))
    merging.go()
    assert gets(results) == [21] * 4
    assert gets(stored) == [0, 10, 20], "the task stored them itself"
    merging.leaves_nothing()
    assert merging.runs("sums") == [[4, "sums"]]
    wait_until(lambda: len(merging.runs("signal")) >= 6, SOON_S, "all signals")
    assert sorted(merging.runs("signal")) == sorted(
        [name, task, task] for name in names[:3] for task in ("sums", "stores")
    )


def test_calls_beyond_the_batch_limit_are_the_next_run(merging):
    results = [merging.task("few").delay(n) for n in range(7)]
    merging.start("threads", concurrency=1)
    merging.go()
    assert gets(results) == list(range(7))
    assert merging.runs("few") == [[3], [3], [1]]


def test_run_begins_after_the_merge_window_although_not_full(merging):
    merging.go()
    merging.start("threads")
    results = [merging.task("patient").delay("HH", [n]) for n in range(3)]
    assert gets(results) == [[0, 1, 2]] * 3
    assert merging.runs("patient") == [["HH", [0, 1, 2]]]
