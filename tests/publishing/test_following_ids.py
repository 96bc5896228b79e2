"""Ids of follow-up calls: a repeat of the same end has the same ids, and no other call has them."""

import pytest
from celery import chain, chord, group

from celery_affinity.publishing.canvas import follow_up_ids, new_publish_id


def ids(origin, *signatures, names=("a", "a", "b")):
    with follow_up_ids(origin, *signatures):
        return [new_publish_id(name) for name in names]


def test_follow_up_calls_of_an_end_have_stable_ids(app):
    assert ids("job") == ids("job")
    assert len({*ids("job"), *ids("other"), new_publish_id("a"), new_publish_id("a")}) == 8


def test_call_of_another_task_in_between_changes_no_id(app):
    assert ids("job", names=("a", "audit", "a")) == [ids("job")[0], ids("job", names=("audit",))[0], ids("job")[1]]


def test_ids_are_random_again_after_an_error(app):
    with pytest.raises(ValueError, match="no broker"), follow_up_ids("job"):
        raise ValueError("no broker")
    assert new_publish_id("a") not in ids("job")


@pytest.mark.parametrize("is_read", [False, True])
def test_chord_has_new_ids_each_time(app, is_read):
    def s():
        return app.signature("proj.a")

    new = [
        chord([s()], s()),
        group([s(), chord([s()], s())]),
        chain(group([s(), s()]), s()),
        chain(chord([s(), s()], s()), s()),
    ]
    known = [s(), group([s(), s()]), chain(s(), s()), chain(s(), group([s(), s()]), s()), s().set(link=s()), None]
    for signatures, are_known in ((new, False), (known, True)):
        for each in signatures:
            read = app.signature(dict(each)) if is_read and each else each
            assert (ids("job", s(), read) == ids("job", s(), read)) is are_known, read


def test_repeated_follow_up_call_publishes_nothing(app):
    for count in (1, 1):
        with follow_up_ids("job", app.signature("proj.a")):
            app.send_task("proj.a")
        assert len(app.redis.keys("*job:*")) == count
    app.send_task("proj.a")
    assert len(app.redis.keys("*job:*")) == 2
