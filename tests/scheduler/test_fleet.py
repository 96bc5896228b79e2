"""Cohorts are called concurrently: a slow or unavailable cohort blocks no other, and no change is made twice."""

import threading
from types import SimpleNamespace

import pytest
import redis

from celery_affinity.errors import CohortDownError, OutcomeUnknownError
from celery_affinity.scheduler.cohorts import Cohorts

NAMES = ["default", "eu", "ml"]


class Server:
    """A simulated scheduler of a cohort. *calls*: number so far; *lost*: number of further calls without a reply."""

    def __init__(self, name):
        self.keys, self.client = SimpleNamespace(cohort=name), SimpleNamespace(ping=lambda: None)
        self.lock, self.calls, self.lost = threading.Lock(), 0, 0

    def __call__(self):
        with self.lock:
            self.calls += 1
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


def test_cohorts_are_called_concurrently(fleet):
    together = threading.Barrier(3, timeout=10)

    def ask(server):
        together.wait()
        return server.keys.cohort

    assert list(fleet.each(ask).answers.values()) == NAMES


def test_slow_cohort_is_skipped_until_it_has_answered(fleet, servers):
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
        assert (servers["eu"].calls, servers["ml"].calls) == (1, 2)
        assert fleet.first(lambda server: server.keys.cohort == "ml" or None) == ("ml", True)
    finally:
        goes_on.set()
    while not fleet._late_answers["eu"].done():
        goes_on.wait()
    assert list(fleet.each(ask).answers) == NAMES


def test_long_call_has_no_short_timeout(fleet, servers):
    goes_on = threading.Timer(0.5, lambda: None)
    goes_on.start()
    found = fleet.each(lambda server: goes_on.join() if server is servers["eu"] else None, is_long=True)
    assert (list(found.answers), found.down) == (NAMES, {})


def test_read_is_repeated_but_a_change_is_not(fleet, servers):
    for server in servers.values():
        server.lost = 1
    assert fleet.ask("eu", call) == "eu"
    with pytest.raises(OutcomeUnknownError, match=r"'ml' was lost; whether it made the change is unknown: res"):
        fleet.act("ml", call)
    with pytest.raises(OutcomeUnknownError, match="'default'"):
        fleet.act("default", call)
    assert [servers[name].calls for name in NAMES] == [1, 2, 1]


def test_change_in_all_cohorts_names_uncertain_ones(fleet, servers):
    servers["eu"].lost = servers["default"].lost = 1
    found = fleet.act_in_each(call)
    assert found.answers == {"ml": "ml"}
    assert found.down == dict.fromkeys(
        ["default", "eu"], "the connection was lost during the change, which was made or not: reset"
    )
    assert [server.calls for server in servers.values()] == [1, 1, 1]


def test_idle_connection_is_reopened_before_a_change(fleet, servers):
    pings = []

    def ping():
        pings.append(1)
        if len(pings) == 1:
            raise redis.ConnectionError("closed")

    servers["eu"].client.ping = ping
    assert fleet.act("eu", call) == "eu"
    assert len(pings) == 2


def test_change_in_all_requires_the_first_server(fleet, servers):
    def ping():
        raise redis.ConnectionError("down")

    servers["default"].client.ping = ping
    with pytest.raises(redis.ConnectionError, match="down"):
        fleet.act_in_each(call)
    assert [server.calls for server in servers.values()] == [0, 0, 0]
