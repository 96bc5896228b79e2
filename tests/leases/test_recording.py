"""A worker continues its work when the server refuses a recording."""

import pytest
from redis.exceptions import ConnectionError as NoConnectionError

from celery_affinity.leases.capacity import Capacity
from celery_affinity.leases.trace_recording import TraceRecorder
from celery_affinity.scheduler import recordings
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.members import Pool, claims_of


@pytest.fixture
def recording():
    claims, pool = claims_of(), Pool(2)
    capacity = Capacity(pool, claims)
    capacity.types = ("pdf",)
    return TraceRecorder("w@here", claims, capacity, pool, 60)


def test_refused_recording_is_logged_once_and_not_repeated(redis_client, recording, caplog):
    scheduler = Scheduler(redis_client, Keys())
    redis_client.hset(Keys().key("recording"), "of", "another type")
    for _ in range(2):
        recording.heartbeat(scheduler)
    recording.leave(scheduler)
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        "The server refuses the recording that affinity_record asks for; none begins here"
    ]


def test_recording_begins_after_a_lost_connection(redis_client, recording, monkeypatch):
    scheduler = Scheduler(redis_client, Keys())
    with monkeypatch.context() as away:

        def no_answer(*_, **__):
            raise NoConnectionError

        away.setattr(recordings, "begin_recording", no_answer)
        with pytest.raises(NoConnectionError):
            recording.heartbeat(scheduler)
    recording.heartbeat(scheduler)
    assert recordings.current_recording(scheduler) is not None
