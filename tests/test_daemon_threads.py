"""Daemon threads for foreign code: a piece of work that hangs holds up neither the others nor the caller."""

import threading

import pytest

from celery_affinity import background
from celery_affinity.background import SLOW_AFTER_S, DaemonPool

from .support.clocked import Clock
from .support.processes import wait_until


class Pieces:
    """Work in pieces: functions, some of which hang until `let_go` is set."""

    def __init__(self):
        self.to_do, self.done, self.hanging = [], [], []
        self.let_go = threading.Event()

    def hang(self):
        self.hanging.append(threading.current_thread())
        self.let_go.wait(30)

    def __call__(self):
        if not self.to_do:
            return False
        name, piece = self.to_do.pop(0)
        piece()
        self.done.append(name)
        return True


@pytest.fixture
def pieces():
    pieces = Pieces()
    yield pieces
    pieces.let_go.set()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def daemons(pieces, clock):
    daemons = DaemonPool("daemon", pieces, max_threads=2, now_s=clock)
    yield daemons
    pieces.let_go.set()
    daemons.stop(10)


def threads():
    return [each for each in threading.enumerate() if each.name == "daemon"]


def nothing():
    pass


def test_there_is_no_thread_before_there_is_work(daemons):
    assert threads() == []


def test_one_thread_does_all_while_no_piece_takes_long(daemons, pieces):
    seen = []
    pieces.to_do = [(number, lambda: seen.append(threading.current_thread())) for number in range(20)]
    for _ in range(20):
        daemons.call()
    wait_until(lambda: pieces.done == list(range(20)), 10, "all is done")
    assert len(set(seen)) == 1


def test_a_piece_that_hangs_keeps_one_thread_and_the_next_call_brings_another(daemons, pieces, clock):
    pieces.to_do = [("hangs", pieces.hang), ("next", nothing)]
    daemons.call()
    wait_until(lambda: pieces.hanging, 10, "it hangs")
    daemons.call()
    assert len(threads()) == 1, "it may be done in a moment"
    clock.at_s += SLOW_AFTER_S
    daemons.call()
    wait_until(lambda: pieces.done == ["next"], 10, "the next is done")
    assert len(pieces.hanging) == 1
    assert SLOW_AFTER_S in daemons.busy_for_s


def test_there_are_never_more_threads_than_the_most(daemons, pieces, clock):
    pieces.to_do = [(number, pieces.hang) for number in range(9)]
    for hanging in (1, 2):
        daemons.call()
        wait_until(lambda hanging=hanging: len(pieces.hanging) == hanging, 10, "what is taken hangs")
        clock.at_s += SLOW_AFTER_S
    for _ in range(3):
        daemons.call()
        clock.at_s += SLOW_AFTER_S
    assert len(threads()) == 2
    pieces.let_go.set()
    wait_until(lambda: len(pieces.done) == 9, 10, "who comes back goes on")


def test_an_error_is_logged_and_the_next_call_goes_on(daemons, pieces, caplog):
    def fail():
        raise ValueError("no good")

    pieces.to_do = [("fails", fail), ("leaves", lambda: exit(3)), ("next", nothing)]
    for _ in range(3):
        daemons.call()
        wait_until(lambda: not daemons.busy_for_s, 10, "it is done")
        wait_until(lambda: not daemons._is_wanted, 10, "it has looked")
    wait_until(lambda: pieces.done == ["next"], 10, "the next is done")
    first, second = caplog.records
    assert first.exc_info[0] is ValueError
    assert second.getMessage().endswith(": SystemExit: 3")  # the lines of a second traceback are used up


def test_a_thread_that_has_nothing_to_do_ends(daemons, pieces, monkeypatch):
    monkeypatch.setattr(background, "_IDLE_S", 0.01)
    pieces.to_do = [("one", nothing)]
    daemons.call()
    wait_until(lambda: pieces.done == ["one"] and not threads(), 10, "it has ended")
    pieces.to_do = [("two", nothing)]
    daemons.call()
    wait_until(lambda: pieces.done == ["one", "two"], 10, "a new one does what comes later")


def test_who_stops_it_waits_for_what_is_under_way_but_not_for_what_hangs(daemons, pieces, clock):
    pieces.to_do = [("hangs", pieces.hang), ("next", nothing)]
    daemons.call()
    wait_until(lambda: pieces.hanging, 10, "it hangs")
    assert daemons.stop(0.05) == 1
    daemons.call()
    clock.at_s += SLOW_AFTER_S
    daemons.call()
    pieces.let_go.set()
    assert daemons.stop(10) == 0
    assert pieces.done == ["hangs"], "nothing is begun after that"


def test_its_threads_do_not_keep_the_process(daemons, pieces):
    pieces.to_do = [("hangs", pieces.hang)]
    daemons.call()
    wait_until(lambda: pieces.hanging, 10, "it hangs")
    assert pieces.hanging[0].daemon


def test_a_system_that_has_no_room_for_a_thread_is_asked_again(daemons, pieces, monkeypatch, caplog):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    pieces.to_do = [("one", nothing)]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        daemons.call()
    assert "can't start new thread" in caplog.text
    daemons.call()
    wait_until(lambda: pieces.done == ["one"], 10, "it is done")
