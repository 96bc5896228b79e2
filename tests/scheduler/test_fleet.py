"""Cohorts are asked side by side: one that is slow, or down, holds up no other, and no change is made twice."""

import threading
from types import SimpleNamespace

import pytest
import redis

from celery_affinity.errors import CohortDownError, OutcomeUnknownError
from celery_affinity.scheduler.cohorts import Cohorts

NAMES = ["default", "eu", "ml"]


class Server:
    """What stands for a cohort's scheduler. *asked*: what was done; *lost*: how many calls end without a reply."""

    def __init__(self, name):
        self.keys, self.client = SimpleNamespace(cohort=name), SimpleNamespace(ping=lambda: None)
        self.lock, self.asked, self.lost = threading.Lock(), 0, 0

    def __call__(self):
        with self.lock:
            self.asked += 1
            if self.lost:
                self.lost -= 1
                raise redis.ConnectionError("reset")
        return self.keys.cohort


@pytest.fixture
def servers():
    return {name: Server(name) for name in NAMES}


@pytest.fixture
def fleet(servers):
    return Cohorts(NAMES, lambda type_: type_, servers.__getitem__, patience_s=0.2)


def call(server):
    return server()


def test_cohorts_are_asked_at_once(fleet):
    together = threading.Barrier(3, timeout=10)

    def ask(server):
        together.wait()
        return server.keys.cohort

    assert list(fleet.each(ask).answers.values()) == NAMES


def test_one_that_is_slow_is_left_out_and_not_asked_again_until_it_has_answered(fleet, servers):
    goes_on = threading.Event()

    def ask(server):
        server()
        if server is servers["eu"]:
            goes_on.wait(10)
        return server.keys.cohort

    try:
        found = fleet.each(ask)
        assert (list(found.answers), found.down) == (["default", "ml"], {"eu": "no answer within 0.2 s"})
        assert list(fleet.each(ask).down) == ["eu"]
        with pytest.raises(CohortDownError, match="cohort 'eu' does not answer: no answer within"):
            fleet.ask("eu", ask)
        assert (servers["eu"].asked, servers["ml"].asked) == (1, 2)
        assert fleet.first(lambda server: server.keys.cohort == "ml" or None) == ("ml", True)
    finally:
        goes_on.set()
    while not fleet._late_answers["eu"].done():
        goes_on.wait()
    assert list(fleet.each(ask).answers) == NAMES


def test_a_long_answer_is_waited_for(fleet, servers):
    goes_on = threading.Timer(0.5, lambda: None)
    goes_on.start()
    found = fleet.each(lambda server: goes_on.join() if server is servers["eu"] else None, is_long=True)
    assert (list(found.answers), found.down) == (NAMES, {})


def test_a_question_is_repeated_and_a_change_is_not(fleet, servers):
    for server in servers.values():
        server.lost = 1
    assert fleet.ask("eu", call) == "eu"
    with pytest.raises(OutcomeUnknownError, match=r"'ml' was lost, and has made the change or not: res"):
        fleet.act("ml", call)
    with pytest.raises(OutcomeUnknownError, match="'default'"):
        fleet.act("default", call)
    assert [servers[name].asked for name in NAMES] == [1, 2, 1]


def test_a_change_in_each_says_where_it_may_not_have_been_made(fleet, servers):
    servers["eu"].lost = servers["default"].lost = 1
    found = fleet.act_in_each(call)
    assert found.answers == {"ml": "ml"}
    assert found.down == dict.fromkeys(
        ["default", "eu"], "the connection was lost during the change, which was made or not: reset"
    )
    assert [server.asked for server in servers.values()] == [1, 1, 1]


def test_a_connection_that_was_closed_as_idle_is_opened_before_a_change(fleet, servers):
    pings = []

    def ping():
        pings.append(1)
        if len(pings) == 1:
            raise redis.ConnectionError("closed")

    servers["eu"].client.ping = ping
    assert fleet.act("eu", call) == "eu"
    assert len(pings) == 2


def test_nothing_is_begun_elsewhere_while_the_first_server_is_down(fleet, servers):
    def ping():
        raise redis.ConnectionError("down")

    servers["default"].client.ping = ping
    with pytest.raises(redis.ConnectionError, match="down"):
        fleet.act_in_each(call)
    assert [server.asked for server in servers.values()] == [0, 0, 0]
