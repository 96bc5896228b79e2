"""What was sent and is not answered yet: it is told once, whoever goes on with it, and the loop waits for nobody."""

import threading
import time
from collections import deque
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import redis
from kombu.asynchronous.hub import Hub

from celery_affinity.membership.held import ACKED
from celery_affinity.membership.membership import Membership
from celery_affinity.membership.outbox import Outbox
from celery_affinity.membership.reconciling import _voided
from celery_affinity.rules.keys import Keys
from celery_affinity.server.connections.in_flight import InFlight
from celery_affinity.server.replies import Claim
from celery_affinity.server.scheduler import Scheduler
from celery_affinity.server.scripts.assembling import load
from celery_affinity.worker.event_loop import Loop

from ..support.members import Host, claims_of, telling_of
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def in_flight(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=5, client_name="in-flight")
    in_flight = InFlight(pool)
    yield in_flight
    in_flight.close()
    pool.disconnect()


def connections(redis_client):
    return [each["id"] for each in redis_client.client_list() if each["name"] == "in-flight"]


# -- the exchange


def test_the_replies_come_in_order_on_one_connection(in_flight, redis_client):
    for _ in range(2):
        in_flight.send([("SET", "key", "value"), ("GET", "key")])
        assert in_flight.is_under_way
        assert in_flight.receive() == [b"OK", b"value"]
        assert not in_flight.is_under_way
    assert len(connections(redis_client)) == 1


def test_after_an_error_no_reply_is_taken_for_that_of_the_next(in_flight, redis_client):
    in_flight.send([("SET", "key", "value"), ("LPUSH", "key", "value"), ("GET", "key")])
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        in_flight.receive()
    assert in_flight.socket is None
    in_flight.send([("PING",)])
    assert in_flight.receive() == [b"PONG"]


def test_what_the_server_does_not_answer_in_time_is_late(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=0.05)
    in_flight = InFlight(pool)
    in_flight.send([("BLPOP", "nothing", 1)])
    assert not in_flight.is_late
    time.sleep(0.06)
    assert in_flight.is_late
    in_flight.close()
    assert not in_flight.is_late
    in_flight.send([("PING",)])
    assert in_flight.receive() == [b"PONG"]
    in_flight.close()


def test_a_reply_that_nobody_had_time_to_read_is_not_late(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=0.05)
    in_flight = InFlight(pool)
    in_flight.send([("ECHO", "one")])
    time.sleep(0.06)
    while in_flight.is_late:
        pass
    assert in_flight.receive() == [b"one"]
    in_flight.close()


# -- the event loop


class Turning:
    """A hub that a test turns by hand, and what it was called for."""

    def __init__(self, in_flight):
        self.hub = Hub()
        self.seen = []
        self.to_send = deque()
        self.loop = Loop(self.hub, in_flight, on_tick=self._tick, on_reply=self._reply)

    def _tick(self):
        self.seen.append("tick")
        if self.to_send and not self.loop.in_flight.is_under_way:
            self.loop.in_flight.send(self.to_send.popleft())

    def _reply(self):
        self.seen.append(self.loop.in_flight.receive())

    def turn(self, times=1):
        for _ in range(times):
            self.hub.run_once()


@pytest.fixture
def turning(in_flight):
    turning = Turning(in_flight)
    yield turning
    turning.loop.close()
    turning.hub.close()


def test_the_loop_reads_the_reply_when_it_is_there(turning, redis_client):
    turning.to_send += [[("ECHO", "one")], [("ECHO", "two")]]
    turning.turn(2)
    assert turning.seen == ["tick", [b"one"], "tick", [b"two"]]


def test_a_connection_that_the_server_closed_is_watched_no_more_and_another_is(turning, redis_client):
    turning.to_send.append([("ECHO", "one")])
    turning.turn()
    (first,) = connections(redis_client)
    fileno = turning.loop.in_flight.socket.fileno()
    redis_client.client_kill_filter(_id=first)
    turning.turn()
    assert turning.loop.in_flight.socket is None, "or each turn would find it readable, for ever"
    assert fileno not in turning.hub.readers, "it may be another's by now"
    turning.to_send.append([("ECHO", "two")])
    turning.turn()
    assert turning.seen[-1] == [b"two"]
    assert connections(redis_client) not in ([], [first])


def test_a_connection_that_is_closed_leaves_the_loop_before_another_has_its_number(turning):
    turning.to_send.append([("ECHO", "one")])
    turning.turn(2)
    fileno = turning.loop.in_flight.socket.fileno()
    assert fileno in turning.hub.readers
    turning.loop.in_flight.close()
    assert fileno not in turning.hub.readers


def test_whoever_took_its_place_in_the_loop_does_not_keep_the_reply(turning):
    turning.loop.in_flight.send([("ECHO", "one")])
    turning.loop.watch()
    turning.hub.add_reader(turning.loop.in_flight.socket.fileno(), lambda: None)
    turning.turn(2)
    assert [b"one"] in turning.seen


def test_a_reply_that_nobody_reads_is_read_when_it_is_late(turning, monkeypatch):
    turning.loop.in_flight.send([("ECHO", "one")])
    monkeypatch.setattr(turning.loop, "watch", lambda: None)
    turning.loop.in_flight._connection.socket_timeout = 0.05
    time.sleep(0.1)
    turning.turn()
    assert turning.seen[0] == [b"one"]


def test_another_thread_wakes_a_loop_that_waits(turning):
    turning.hub.timer.call_after(30, lambda: None)  # what it would wait for
    turning.turn()  # kombu's hub reads its own things
    waits = threading.Thread(target=turning.turn)
    waits.start()
    turning.loop.wake()
    waits.join(10)
    assert not waits.is_alive()


def test_nothing_wakes_a_loop_that_is_to_be_answered(turning, redis_client, monkeypatch):
    woken = []
    monkeypatch.setattr(turning.loop._waker, "wake", lambda: woken.append(1))
    turning.loop.in_flight.send([("ECHO", "one")])
    turning.loop.wake()
    assert not woken
    turning.loop.in_flight.receive()
    turning.loop.wake()
    assert woken


def test_a_loop_knows_its_own_thread(turning):
    elsewhere = []
    asking = threading.Thread(target=lambda: elsewhere.append(turning.loop.is_here))
    asking.start()
    asking.join()
    assert turning.loop.is_here
    assert elsewhere == [False]


# -- what is told


class Worker:
    """The claims of a worker that has one job and one that waits for its slot."""

    def __init__(self, server):
        self.pool = redis.ConnectionPool.from_url(server.url)
        self.scheduler = Scheduler(redis.Redis(connection_pool=self.pool), Keys())
        self.fleet = ScriptedFleet(self.scheduler)
        self.fleet.join("worker", "pdf")
        for job in ("first", "second"):
            self.fleet.publish(job, "pdf")
        self.claims = claims_of()
        self.beats = Mock()
        self.outbox = Outbox(self.claims, self.beats)
        self.claims.lease.renew(asked_at_s=time.monotonic(), timeout_s=30)
        self.scheduler.client.script_load(load("release").source)
        (claim,) = self.fleet.inbox("worker")
        tag = self.claims.hold(claim)
        self.claims.settle(tag, ACKED)  # without a request that is its end

    def held_there(self):
        return set(self.fleet.claims("worker"))


@pytest.fixture
def worker(server, redis_client):
    worker = Worker(server)
    yield worker
    worker.pool.disconnect()


def test_what_ended_is_told_and_the_next_job_comes_with_the_reply(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, lookahead=0)
    assert worker.outbox.is_telling
    assert [claim.job_id for claim in worker.outbox.receive(worker.scheduler, lookahead=0)] == ["second"]
    assert not worker.outbox.is_telling
    assert not worker.outbox.has_news


def test_what_is_told_at_once_wakes_nobody(worker, in_flight):
    (claim,) = _told(worker, in_flight)
    host, on_its_way = Host(in_flight), []
    host.wake = lambda: on_its_way.append(telling.outbox.is_telling) or True
    telling = telling_of(worker.claims, scheduler=worker.scheduler, host=host)
    telling.end(worker.claims.hold(claim))
    assert on_its_way == [True], "a loop that is to be answered is woken by the reply"
    telling.receive()


def test_no_other_thread_waits_for_the_loop_or_tells_the_same(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, lookahead=0)
    assert worker.outbox.flush(worker.scheduler, inline=False) is None
    worker.outbox.receive(worker.scheduler, lookahead=0)


def test_while_another_thread_tells_the_loop_goes_on(worker, in_flight):
    with worker.outbox._flushing:
        worker.outbox.send(worker.scheduler, in_flight, lookahead=0)
    assert not worker.outbox.is_telling
    assert worker.outbox.has_news


def test_what_was_abandoned_is_told_again_and_brings_the_same_job(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, lookahead=0)
    while worker.held_there() != {"second"}:
        pass  # the server has it; the reply is lost
    worker.outbox.abandon()
    assert worker.outbox.has_news
    following = worker.outbox.flush(worker.scheduler, inline=False)
    assert [claim.job_id for claim in following] == ["second"]
    assert worker.held_there() == {"second"}


def test_another_thread_takes_over_what_a_loop_does_not_read(worker, in_flight):
    assert not worker.outbox.take_over()
    worker.outbox.send(worker.scheduler, in_flight, lookahead=0)
    assert _in_another_thread(worker.outbox.take_over)
    (following,) = _in_another_thread(lambda: worker.outbox.flush(worker.scheduler, inline=False))
    assert not worker.outbox.has_news
    assert worker.held_there() == {following.job_id}


def test_a_loop_that_turns_again_reads_nothing_of_what_was_taken_over(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, lookahead=0)
    worker.outbox.take_over()
    assert worker.outbox.receive(worker.scheduler, lookahead=0) == []
    assert in_flight.socket is None
    worker.outbox.take_over()  # nothing is on its way
    assert [claim.job_id for claim in _told(worker, in_flight)] == ["second"]


def test_what_is_sent_after_that_gets_no_reply_to_what_was_taken_over(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, lookahead=0)
    worker.outbox.take_over()
    in_flight.send([("ECHO", "next")])
    assert in_flight.receive() == [b"next"]


def test_nobody_takes_over_a_reply_that_is_read(worker, in_flight, monkeypatch):
    receive = in_flight.receive
    monkeypatch.setattr(in_flight, "receive", lambda: (worker.outbox.take_over(), receive())[1])
    assert [claim.job_id for claim in _told(worker, in_flight)] == ["second"]
    assert not worker.outbox.has_news


def test_a_loop_that_stands_still_is_done_without_once():
    membership = Membership.__new__(Membership)
    membership._pulse, membership._beats = SimpleNamespace(age_s=0.4), Mock()
    membership.telling = telling_of()
    membership.telling.claims.hold(_claim(1))
    membership.look_at_the_loop(0.5)
    assert not membership._beats.wake.called, "it turned a moment ago"
    membership._pulse.age_s = 0.6
    for _ in range(2):
        membership.look_at_the_loop(0.5)
    assert membership._beats.wake.call_count == 1, "the second time there is nothing new to tell"


def _in_another_thread(call):
    got = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    thread.join(10)
    return got[0]


def test_a_server_that_lost_its_scripts_is_given_them_again(worker, in_flight, redis_client):
    redis_client.script_flush()
    assert [claim.job_id for claim in _told(worker, in_flight)] == ["second"]


def test_a_connection_that_breaks_leaves_it_to_be_told(worker, in_flight, redis_client):
    in_flight.send([("PING",)])
    in_flight.receive()
    (connection,) = connections(redis_client)
    redis_client.client_kill_filter(_id=connection)
    with pytest.raises((redis.ConnectionError, OSError)):
        _told(worker, in_flight)
    assert not worker.outbox.is_telling
    following = worker.outbox.flush(worker.scheduler, inline=True)
    assert [claim.job_id for claim in following] == ["second"]


def _told(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, lookahead=0)
    return worker.outbox.receive(worker.scheduler, lookahead=0)


# -- acks that nobody waits for


class Acking(Worker):
    """The same worker, in whose first job a task is about to start that acks early."""

    def __init__(self, server, in_flight):
        super().__init__(server)
        _told(self, in_flight)  # the connection is proven; the second job came
        self.claims.forget(dict(self.claims._held))
        self.scheduler.client.script_load(load("ack").source)
        (self.number,) = self.fleet.claims("worker").items()
        self.tag = self.claims.hold(Claim(*self.number, "pdf", 0, 0, b""))
        self.claims.bind(self.tag, "request")
        self.claims.settle(self.tag, ACKED)

    def is_acked(self):
        return self.scheduler.client.hget(self.scheduler.keys.key("job", self.number[0]), "acked") == b"1"

    def sends(self, in_flight):
        return self.outbox.send_acks(self.scheduler, in_flight)

    def ends(self, in_flight):
        self.claims.end(self.tag)
        return _told(self, in_flight)


@pytest.fixture
def acking(server, redis_client, in_flight):
    acking = Acking(server, in_flight)
    yield acking
    acking.pool.disconnect()


def test_the_end_follows_an_ack_whose_reply_nobody_has_read(acking, in_flight):
    acking.fleet.publish("third", "pdf")
    assert acking.sends(in_flight)
    assert not acking.outbox.is_telling
    assert not acking.outbox.has_news
    assert [claim.job_id for claim in acking.ends(in_flight)] == ["third"]
    assert not in_flight.is_under_way
    assert not acking.outbox.has_news
    assert not acking.beats.wake.called


def test_nobody_waits_for_the_reply_to_the_end_after_that_to_the_ack(acking, in_flight, monkeypatch):
    acking.sends(in_flight)
    acking.claims.end(acking.tag)
    acking.outbox.send(acking.scheduler, in_flight, lookahead=0)
    monkeypatch.setattr(InFlight, "is_readable", False)
    assert acking.outbox.receive(acking.scheduler, lookahead=0, waits=False) == []
    assert acking.outbox.is_telling
    monkeypatch.undo()
    acking.outbox.receive(acking.scheduler, lookahead=0)
    assert acking.held_there() == set()


def test_an_ack_that_another_thread_tells_at_this_moment_is_not_sent_as_well(acking, in_flight):
    assert _in_another_thread(lambda: acking.outbox.flush(acking.scheduler, inline=False)) == []
    assert not acking.sends(in_flight), "the caller waits for the other thread"
    assert not in_flight.is_under_way
    acking.fleet.publish("third", "pdf")
    assert [claim.job_id for claim in acking.ends(in_flight)] == ["third"], "no reply is taken for another"


def test_an_ack_waits_on_a_connection_of_which_nobody_knows_that_it_works(acking, in_flight, redis_client):
    in_flight.close()
    assert not acking.sends(in_flight), "it is a new one"
    assert acking.claims.has_acks
    in_flight.send([("PING",)])
    in_flight.receive()
    (connection,) = connections(redis_client)
    redis_client.client_kill_filter(_id=connection)
    assert not acking.sends(in_flight), "the server has closed it"
    acking.outbox.flush(acking.scheduler, inline=True)
    assert acking.is_acked()


@pytest.mark.parametrize("breaks", ["before the end is sent", "after it"])
def test_an_ack_and_an_end_are_said_again_if_their_connection_breaks(acking, in_flight, redis_client, breaks):
    acking.fleet.publish("third", "pdf")
    assert acking.sends(in_flight)
    if breaks == "after it":
        acking.claims.end(acking.tag)
        acking.outbox.send(acking.scheduler, in_flight, lookahead=0)
    (connection,) = connections(redis_client)
    redis_client.client_kill_filter(_id=connection)
    while in_flight.socket.recv(100):  # what was answered is gone as well
        pass
    with pytest.raises((redis.ConnectionError, OSError)):
        acking.outbox.receive(acking.scheduler, lookahead=0)
    assert not acking.outbox.is_telling
    acking.claims.end(acking.tag)
    following = acking.outbox.flush(acking.scheduler, inline=True)
    assert [claim.job_id for claim in following] == ["third"]
    assert acking.held_there() == {"third"}


def test_an_ack_is_said_again_by_another_thread_while_its_task_runs_and_the_loop_goes_on(acking, in_flight):
    acking.scheduler.send_acks = Mock(side_effect=lambda in_flight, *_, **__: in_flight.send([("ECHO", "0")]))
    assert acking.sends(in_flight)
    assert _in_another_thread(acking.outbox.take_over)
    assert _in_another_thread(lambda: acking.outbox.flush(acking.scheduler, inline=False)) == []
    assert acking.is_acked()
    assert not acking.outbox.take_over(), "once"
    connection = in_flight.socket
    acking.ends(in_flight)
    assert in_flight.socket is connection
    assert acking.held_there() == set()


def test_a_server_that_lost_its_scripts_gets_the_ack_again(acking, in_flight, redis_client):
    redis_client.script_flush()
    assert acking.sends(in_flight)
    assert acking.outbox.receive(acking.scheduler, lookahead=0) == []
    assert acking.is_acked()


def test_an_ack_that_does_not_count_is_noticed(acking, in_flight):
    acking.fleet.scheduler.requeue("worker", [acking.number], counted=False)
    assert acking.sends(in_flight)
    assert acking.outbox.receive(acking.scheduler, lookahead=0) == []
    assert acking.beats.wake.called, "a sync tells what else is void"
    assert acking.claims.is_void(acking.tag)
    assert not acking.is_acked()


def test_an_ack_that_was_waited_for_and_does_not_count_is_noticed_before_the_start(acking):
    acking.fleet.scheduler.requeue("worker", [acking.number], counted=False)
    acking.outbox.flush(acking.scheduler, inline=True)
    assert acking.claims.is_void(acking.tag)


def test_what_is_sent_while_a_reply_is_due_is_not_taken_for_another_reply(server, redis_client):
    """redis-py sends a PING of its own on a connection on which nothing was read for a while."""
    pool = redis.ConnectionPool.from_url(server.url, health_check_interval=1)
    in_flight = InFlight(pool)
    in_flight.send([("ECHO", "first")])
    in_flight._connection.next_health_check = 0
    in_flight.go_on([("ECHO", "second")])
    assert in_flight.receive() == [b"first", b"second"]
    in_flight.close()
    pool.disconnect()


def _telling(acking, in_flight):
    telling = telling_of(acking.claims, scheduler=acking.scheduler, host=Host(in_flight))
    telling.outbox = acking.outbox
    return telling


def test_an_ack_that_another_thread_is_about_to_tell_is_waited_for(acking, in_flight):
    acking.fleet.scheduler.requeue("worker", [acking.number], counted=False)
    settle, is_waiting = acking.scheduler.tell_ends, threading.Event()
    acking.scheduler.tell_ends = lambda *args, **options: (is_waiting.wait(10), settle(*args, **options))[1]
    other = threading.Thread(target=lambda: acking.outbox.flush(acking.scheduler, inline=False))
    other.start()
    while acking.claims.has_acks:
        pass
    threading.Timer(0.1, is_waiting.set).start()
    _telling(acking, in_flight).ack_now()
    other.join(10)
    assert acking.claims.is_void(acking.tag), "known when the task would start"


@pytest.mark.parametrize(("fresh", "waits"), [(True, False), (False, True)])
def test_a_worker_that_may_soon_be_taken_for_dead_waits_for_the_reply_to_an_ack(acking, in_flight, fresh, waits):
    telling = _telling(acking, in_flight)
    acking.claims.lease.renew(asked_at_s=time.monotonic() - (14 if fresh else 16), timeout_s=30)
    flush = telling._flush = Mock(wraps=telling._flush)
    telling.ack_now()
    assert flush.called == waits
    assert in_flight.is_under_way
    acking.outbox.receive(acking.scheduler, lookahead=0)
    assert acking.is_acked()


# -- what is void


def _claim(fence):
    return Claim("job", str(fence), "pdf", 0, 0, b"")


@pytest.mark.parametrize("both_were_named", [False, True])
def test_a_job_that_came_back_meanwhile_is_not_void(both_were_named):
    claims = claims_of()
    claims.end(claims.hold(_claim(1)))  # its release is on its way while a sync names it
    named = claims.running()
    again = claims.hold(_claim(2))  # it came back with the reply
    if both_were_named:
        named = claims.running()
    assert claims.void(_voided(named, ["job"])) == []
    assert not claims.is_void(again)


def test_what_was_named_and_is_another_s_is_void():
    claims = claims_of()
    tag = claims.hold(_claim(1))
    assert [held.number for held in claims.void(_voided(claims.running(), ["job"]))] == [("job", "1")]
    assert claims.is_void(tag)
