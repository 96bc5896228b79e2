"""A publish whose connection is lost more than once, each time after a reconnect that succeeded."""

from types import SimpleNamespace

import pytest
from celery import Celery
from kombu import pools
from kombu.exceptions import OperationalError

from celery_affinity import PublishError, publish_many
from celery_affinity.lua.library import load_library
from celery_affinity.publishing import celery_hooks
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys
from celery_affinity.transport.channel import AffinityChannel

from ..support.apps import app_for
from ..support.passing_errors import LOGIN, PASSING, REFUSES_WRITES

#: A lost connection, and what servers say in a state that passes.
LOST = [each for each in PASSING if not each.startswith(("ASK", "MOVED"))]


@pytest.fixture
def app(proxy, redis_client):
    app = app_for(proxy.url, task_ignore_result=True)
    app.redis = redis_client
    yield app
    app.close()
    pools.reset()


@pytest.fixture
def publish_command():
    (_, name, *_) = load_library().by_function.command("publish", Keys().base, ())
    return f"FCALL {name}"


def pending(app, type_="pdf"):
    return Reader(app.redis, Keys()).pending(type_)


def send(app, **options):
    app.send_task("proj.work", queue="pdf", **options)


def test_a_publish_outlasts_three_lost_connections_by_default(app, proxy, publish_command):
    send(app)
    proxy.refused[publish_command] = [LOST[0]] * 3
    send(app)
    assert [pending(app), len(proxy.said)] == [2, 3]


@pytest.mark.parametrize("error", LOST)
def test_a_publish_outlasts_as_many_lost_connections_as_its_policy_says(app, proxy, publish_command, error):
    app.conf.task_publish_retry_policy = {"max_retries": 4, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    send(app)
    tries = 1 + 4
    proxy.refused[publish_command] = [error] * (tries - 1)
    send(app)
    assert [pending(app), len(proxy.said)] == [2, tries - 1]
    proxy.refused[publish_command] = [error] * tries
    with pytest.raises(OperationalError):
        send(app)
    assert [pending(app), len(proxy.said)] == [2, 2 * tries - 1]
    send(app)
    assert pending(app) == 3, "the connection works again"


def test_the_first_publish_of_a_connection_does_so_too(app, proxy, publish_command, redis_client):
    proxy.refused[publish_command] = [LOST[0]] * 2
    send(app)
    assert [pending(app), len(proxy.said)] == [1, 2]


def test_a_publish_without_repeats_ends_at_the_first(app, proxy, publish_command):
    send(app)
    proxy.refused[publish_command] = [LOST[0]] * 2
    for said in (1, 2):
        with pytest.raises(OperationalError):
            send(app, retry=False)
        assert [pending(app), len(proxy.said)] == [1, said]
    send(app, retry=False)
    assert pending(app) == 2


def test_many_calls_that_are_published_together_outlast_them_too(app, proxy, publish_command):
    @app.task(shared=False, affinity="pdf")
    def render(number):
        return number

    render.delay(0)
    proxy.refused[publish_command] = [LOST[0]] * 2
    publish_many(render, [(1,), (2,)])
    assert [pending(app), len(proxy.said)] == [3, 2]
    proxy.refused[publish_command] = [LOST[0]]
    with pytest.raises(PublishError):
        publish_many(render, [(3,), (4,)], retry=False)
    assert [pending(app), len(proxy.said)] == [3, 3]


def test_between_two_repeats_is_the_pause_that_the_policy_says(app, proxy, publish_command, monkeypatch):
    send(app)
    pauses = []
    monkeypatch.setattr(celery_hooks, "time", SimpleNamespace(sleep=pauses.append))
    proxy.refused[publish_command] = [LOST[0]] * 5
    policy = {"max_retries": None, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 0.8}
    send(app, retry_policy=policy)
    assert pauses == pytest.approx([0.4, 0.7, 0.7, 0.7]), "the first repeat comes at once, on a new connection"


#: Errors that no other connection fixes: what a user may not do, a login, a server without room, a node of a cluster
#: that is asked as if it were one server.
STAYS = (
    *(each for each in PASSING if each not in LOST),
    *LOGIN,
    *REFUSES_WRITES,
    "NOPERM User publisher has no permissions to run the 'fcall' command",
)


@pytest.mark.parametrize("error", STAYS)
def test_an_error_that_no_connection_fixes_is_repeated_once_whatever_the_policy(app, proxy, publish_command, error):
    send(app)
    proxy.refused[publish_command] = [error] * 20
    with pytest.raises(OperationalError):
        send(app, retry_policy={"max_retries": None})
    assert [pending(app), len(proxy.said)] == [1, 2]


def test_an_error_that_the_task_causes_is_not_repeated_for_ever(app, monkeypatch):
    """kombu takes a KeyError for a lost connection, since its own code can raise one there."""
    send(app)
    tries = []
    monkeypatch.setattr(AffinityChannel, "_put", lambda *args, **options: [tries.append(1), {}["missing"]])
    with pytest.raises(OperationalError):
        send(app, retry_policy={"max_retries": None})
    assert len(tries) == 2


@pytest.fixture
def user(redis_client):
    """The name of a user with the password "right"."""
    redis_client.acl_setuser(
        "publisher", enabled=True, passwords="+right", keys="*", channels="*", categories=["+@all"]
    )
    redis_client.acl_log_reset()
    yield "publisher"
    redis_client.acl_deluser("publisher")


@pytest.mark.parametrize("options", [{}, {"retry": False}], ids=["repeated", "once"])
def test_a_wrong_password_is_tried_as_often_as_by_stock_celery(server, redis_client, user, options):
    tries = {}
    for transport in (None, "celery_affinity:Transport"):
        app = Celery(broker=f"redis://{user}:wrong@127.0.0.1:{server.port}/0", set_as_current=False)
        # The second option is what a connection pauses by that is opened outside of a policy.
        app.conf.update(broker_transport=transport, broker_transport_options={"max_retries": 3, "interval_start": 0.01})
        with pytest.raises(OperationalError, match="invalid username-password"):
            send(app, **options)
        app.close()
        tries[transport] = _denied(redis_client)
    ours, stocks = tries.values()
    assert ours == stocks > 1


@pytest.mark.parametrize("options", [{}, {"retry": False}], ids=["repeated", "once"])
def test_a_password_that_is_another_by_now_ends_the_publish(server, redis_client, user, options):
    tries = {}
    for transport in (None, "celery_affinity:Transport"):
        redis_client.acl_setuser(user, enabled=True, reset_passwords=True, passwords="+right")
        app = app_for(f"redis://{user}:right@127.0.0.1:{server.port}/0", broker_transport=transport)
        send(app)
        redis_client.acl_setuser(user, enabled=True, reset_passwords=True, passwords="+other")
        redis_client.client_kill_filter(user=user)
        with pytest.raises(OperationalError):
            send(app, **options)
        app.close()
        tries[transport] = _denied(redis_client)
    ours, stocks = tries.values()
    assert 1 <= ours <= stocks


def _denied(redis_client):
    """Return how many logins were refused since this was asked last."""
    denied = sum(entry["count"] for entry in redis_client.acl_log() if entry["reason"] == "auth")
    redis_client.acl_log_reset()
    return denied
