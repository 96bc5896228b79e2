"""Jobs that a worker holds beyond its slots: how many, in which order, and which of them go back."""

from celery_affinity.membership.lookahead import Lookahead
from celery_affinity.server.replies import Claim


def claim(job, type_="pdf", fence=1):
    return Claim(job, str(fence), type_, 0, 0, b"")


def test_long_tasks_are_not_taken_ahead():
    ahead = Lookahead(8)
    assert ahead.most(slots=1) == 8
    for _ in range(30):
        ahead.note_length(0.1)
    assert ahead.most(slots=1) in (4, 5)
    assert ahead.most(slots=2) == 8
    for _ in range(60):
        ahead.note_length(2.0)
    assert ahead.most(slots=1) == 0


def test_those_that_came_last_are_given_back_of_the_types_that_are_asked_for():
    ahead = Lookahead(8)
    for job, type_ in (("a", "pdf"), ("b", "excel"), ("c", "pdf"), ("d", "pdf")):
        ahead.add(claim(job, type_), job)
    assert ahead.give_back({"pdf"}, 2) == ["d", "c"]
    assert [ahead.next()[1] for _ in range(len(ahead))] == ["a", "b"]


def test_what_a_reply_carries_does_not_pass_what_was_claimed_before():
    ahead = Lookahead(8)
    for job, fence in (("a", 9), ("c", 11), ("d", 12), ("b", 10)):
        ahead.add(claim(job, fence=fence), job)
    assert [ahead.next()[1] for _ in range(len(ahead))] == ["a", "b", "c", "d"]
