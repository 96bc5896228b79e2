"""Reports without a reply yet: each is applied once, whichever thread continues, and the loop never waits."""

from unittest.mock import Mock, patch

import pytest
import redis

from celery_affinity.broker.inflight import InFlightCommands
from celery_affinity.policy.slot_math import NOTHING

from ..support.in_flight import connections
from ..support.members import in_another_thread, report_end


def test_reply_to_an_end_contains_the_next_job(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, may_hold=NOTHING)
    assert worker.outbox.is_telling
    assert [claim.job_id for claim in worker.outbox.receive(worker.scheduler)] == ["second"]
    assert not worker.outbox.is_telling
    assert not worker.outbox.has_news


def test_other_threads_neither_wait_nor_repeat_the_report(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, may_hold=NOTHING)
    assert worker.outbox.flush(worker.scheduler, inline=False) is None
    worker.outbox.receive(worker.scheduler)


def test_loop_continues_while_another_thread_reports(worker, in_flight):
    with worker.outbox._flush_lock:
        worker.outbox.send(worker.scheduler, in_flight, may_hold=NOTHING)
    assert not worker.outbox.is_telling
    assert worker.outbox.has_news


def test_abandoned_report_is_repeated_and_returns_the_same_job(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, may_hold=NOTHING)
    while worker.held_there() != {"second"}:
        pass  # the server has it; the reply is lost
    worker.outbox.abandon()
    assert worker.outbox.has_news
    following = worker.outbox.flush(worker.scheduler, inline=False)
    assert [claim.job_id for claim in following] == ["second"]
    assert worker.held_there() == {"second"}


def test_another_thread_takes_over_a_stalled_loops_report(worker, in_flight):
    assert not worker.outbox.take_over()
    worker.outbox.send(worker.scheduler, in_flight, may_hold=NOTHING)
    assert in_another_thread(worker.outbox.take_over)
    (following,) = in_another_thread(lambda: worker.outbox.flush(worker.scheduler, inline=False))
    assert not worker.outbox.has_news
    assert worker.held_there() == {following.job_id}


def test_resumed_loop_reads_no_reply_that_was_taken_over(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, may_hold=NOTHING)
    worker.outbox.take_over()
    assert worker.outbox.receive(worker.scheduler) == []
    assert in_flight.socket is None
    worker.outbox.take_over()  # nothing is in flight
    assert [claim.job_id for claim in report_end(worker, in_flight)] == ["second"]


def test_next_command_gets_no_reply_that_was_taken_over(worker, in_flight):
    worker.outbox.send(worker.scheduler, in_flight, may_hold=NOTHING)
    worker.outbox.take_over()
    in_flight.send([("ECHO", "next")])
    assert in_flight.receive() == [b"next"]


def test_reply_being_read_is_not_taken_over(worker, in_flight, monkeypatch):
    receive = in_flight.receive
    monkeypatch.setattr(in_flight, "receive", lambda: (worker.outbox.take_over(), receive())[1])
    assert [claim.job_id for claim in report_end(worker, in_flight)] == ["second"]
    assert not worker.outbox.has_news


def test_end_is_sent_again_when_server_lost_its_scripts(worker, in_flight, redis_client):
    redis_client.script_flush()
    assert [claim.job_id for claim in report_end(worker, in_flight)] == ["second"]


def test_unanswered_end_is_reported_again_after_a_lost_connection(worker, in_flight, redis_client):
    in_flight.send([("PING",)])
    in_flight.receive()
    (connection,) = connections(redis_client)
    redis_client.client_kill_filter(_id=connection)
    with pytest.raises((redis.ConnectionError, OSError)):
        report_end(worker, in_flight)
    assert not worker.outbox.is_telling
    following = worker.outbox.flush(worker.scheduler, inline=True)
    assert [claim.job_id for claim in following] == ["second"]


# -- acks sent without waiting for the reply


def test_end_is_sent_before_the_acks_reply_is_read(acking, in_flight):
    acking.fleet.publish("third", "pdf")
    assert acking.sends(in_flight)
    assert not acking.outbox.is_telling
    assert not acking.outbox.has_news
    assert [claim.job_id for claim in acking.ends(in_flight)] == ["third"]
    assert not in_flight.is_under_way
    assert not acking.outbox.has_news
    assert not acking.heartbeats.wake.called


def test_receive_without_waiting_leaves_the_ends_reply_unread(acking, in_flight, monkeypatch):
    acking.sends(in_flight)
    acking.claims.end(acking.tag)
    acking.outbox.send(acking.scheduler, in_flight, may_hold=NOTHING)
    monkeypatch.setattr(InFlightCommands, "is_readable", False)
    assert acking.outbox.receive(acking.scheduler, waits=False) == []
    assert acking.outbox.is_telling
    monkeypatch.undo()
    acking.outbox.receive(acking.scheduler)
    assert acking.held_there() == set()


def test_ack_sent_by_another_thread_is_not_sent_twice(acking, in_flight):
    assert in_another_thread(lambda: acking.outbox.flush(acking.scheduler, inline=False)) == []
    assert not acking.sends(in_flight), "the caller waits for the other thread"
    assert not in_flight.is_under_way
    acking.fleet.publish("third", "pdf")
    assert [claim.job_id for claim in acking.ends(in_flight)] == ["third"], "no reply is mistaken for another"


def test_ack_is_not_pipelined_on_an_unproven_connection(acking, in_flight, redis_client):
    in_flight.close()
    assert not acking.sends(in_flight), "the connection is new"
    assert acking.claims.has_acks
    in_flight.send([("PING",)])
    in_flight.receive()
    (connection,) = connections(redis_client)
    redis_client.client_kill_filter(_id=connection)
    assert not acking.sends(in_flight), "the server has closed it"
    acking.outbox.flush(acking.scheduler, inline=True)
    assert acking.is_acked()


@pytest.mark.parametrize("breaks", ["before the end is sent", "after it"])
def test_ack_and_end_are_sent_again_after_a_lost_connection(acking, in_flight, redis_client, breaks):
    acking.fleet.publish("third", "pdf")
    assert acking.sends(in_flight)
    if breaks == "after it":
        acking.claims.end(acking.tag)
        acking.outbox.send(acking.scheduler, in_flight, may_hold=NOTHING)
    (connection,) = connections(redis_client)
    redis_client.client_kill_filter(_id=connection)
    while in_flight.socket.recv(100):  # the earlier replies are lost as well
        pass
    with pytest.raises((redis.ConnectionError, OSError)):
        acking.outbox.receive(acking.scheduler)
    assert not acking.outbox.is_telling
    acking.claims.end(acking.tag)
    following = acking.outbox.flush(acking.scheduler, inline=True)
    assert [claim.job_id for claim in following] == ["third"]
    assert acking.held_there() == {"third"}


def test_another_thread_repeats_an_ack_while_its_task_runs(acking, in_flight):
    acking.scheduler.send_acks = Mock(side_effect=lambda in_flight, *_, **__: in_flight.send([("EXISTS", "none")]))
    assert acking.sends(in_flight)
    assert in_another_thread(acking.outbox.take_over)
    assert in_another_thread(lambda: acking.outbox.flush(acking.scheduler, inline=False)) == []
    assert acking.is_acked()
    assert not acking.outbox.take_over(), "once"
    connection = in_flight.socket
    acking.ends(in_flight)
    assert in_flight.socket is connection
    assert acking.held_there() == set()


@pytest.mark.parametrize("command", [("LRANGE", "none", "0", "1"), ("ECHO", "0")], ids=["list", "text"])
@pytest.mark.parametrize("method", ["send_acks", "send_ends"])
def test_reply_of_another_type_closes_the_connection(acking, in_flight, method, command):
    assert acking.sends(in_flight)
    acking.outbox.receive(acking.scheduler)
    send = Mock(side_effect=lambda in_flight, *_, **__: in_flight.send([command, ("ECHO", "more")]))
    with patch.object(acking.scheduler, method, send):
        acking.claims.requeue_acks({acking.tag: acking.claims.find(acking.tag)})
        if method == "send_acks":
            acking.sends(in_flight)
        else:
            acking.claims.end(acking.tag)
            acking.outbox.send(acking.scheduler, in_flight, may_hold=NOTHING)
    with pytest.raises(redis.InvalidResponse):
        acking.outbox.receive(acking.scheduler)
    assert in_flight.socket is None
    acking.claims.end(acking.tag)
    acking.outbox.flush(acking.scheduler, inline=True)
    assert acking.held_there() == set()


def test_ack_is_sent_again_when_server_lost_its_scripts(acking, in_flight, redis_client):
    redis_client.script_flush()
    assert acking.sends(in_flight)
    assert acking.outbox.receive(acking.scheduler) == []
    assert acking.is_acked()


def test_rejected_ack_voids_its_claim(acking, in_flight):
    acking.fleet.scheduler.requeue("worker", [acking.number], counted=False)
    assert acking.sends(in_flight)
    assert acking.outbox.receive(acking.scheduler) == []
    assert acking.heartbeats.wake.called, "a sync finds other void claims"
    assert acking.claims.is_void(acking.tag)
    assert not acking.is_acked()


def test_rejected_inline_ack_voids_its_claim_before_the_start(acking):
    acking.fleet.scheduler.requeue("worker", [acking.number], counted=False)
    acking.outbox.flush(acking.scheduler, inline=True)
    assert acking.claims.is_void(acking.tag)
