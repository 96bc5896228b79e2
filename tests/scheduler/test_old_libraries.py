"""Libraries of several versions: each version calls its own library, and an idle library is deleted."""

import pytest
import redis

from celery_affinity.dispatcher import dispatcher
from celery_affinity.dispatcher.dispatcher import LibraryCollector, delete_idle_libraries
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet


class OtherVersion(Scheduler):
    """A scheduler whose library has another text."""

    library = Scheduler.library.changed(lambda text: f"{text}\n-- another version\n")


@pytest.fixture
def both(redis_client):
    redis_client.function_flush()
    ours, other = Scheduler(redis_client, Keys()), OtherVersion(redis_client, Keys())
    ScriptedFleet(ours).join("worker", "pdf")
    other.publish(NewJob("job", "pdf", "message"))
    return ours, other


def names(client):
    return {each[1].decode() for each in client.function_list("affinity_*")}


def test_two_versions_call_their_own_functions(both, redis_client):
    ours, other = both
    assert names(redis_client) == {ours.library.name, other.library.name}
    (claim,) = ScriptedFleet(ours).inbox("worker")
    assert claim.job_id == "job"


def test_only_libraries_idle_for_a_day_are_deleted(both, redis_client):
    ours, other = both
    assert delete_idle_libraries(ours) == []
    assert delete_idle_libraries(ours, idle_s=0) == [other.library.name]
    assert names(redis_client) == {ours.library.name}
    assert other.publish(NewJob("another", "pdf", "message")), "who calls it again brings it back"
    assert names(redis_client) == {ours.library.name, other.library.name}


def test_unused_library_reports_its_idle_time(both, redis_client):
    """This happens on a replica that has become the primary."""
    _, other = both
    redis_client.function_flush()
    redis_client.function_load(other.library.functions)
    assert redis_client.fcall(f"{other.library.name}_idle", 0) == 0


def test_library_of_another_owner_is_not_deleted(both, redis_client):
    ours, other = both
    source = "#!lua name=affinity_mine\nredis.register_function('mine', function() return 1 end)"
    redis_client.function_load(source)
    assert delete_idle_libraries(ours, idle_s=0) == [other.library.name]
    assert "affinity_mine" not in delete_idle_libraries(ours, idle_s=1)


def test_missing_permission_leaves_libraries_in_place(both, monkeypatch):
    ours, _ = both
    execute = ours.client.execute_command

    def refuse(*words):
        if words[:2] == ("FUNCTION", "DELETE"):
            raise redis.exceptions.NoPermissionError("no right")
        return execute(*words)

    monkeypatch.setattr(ours.client, "execute_command", refuse)
    assert delete_idle_libraries(ours, idle_s=0) == []


def test_libraries_are_checked_once_an_hour(both, redis_client, monkeypatch):
    ours, _ = both
    looks = []
    monkeypatch.setattr(dispatcher, "delete_idle_libraries", lambda scheduler: looks.append(1) or ["old"])
    old = LibraryCollector()
    old.delete(ours)
    old.delete(ours)
    assert looks == [1]
