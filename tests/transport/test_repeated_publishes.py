"""A publish loses its connection several times, each time after a successful reconnect."""

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

#: A lost connection, and transient errors of servers.
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


@pytest.mark.parametrize(("before", "losses"), [(0, 2), (1, 3)])
def test_publish_survives_lost_connections_by_default(app, proxy, publish_command, before, losses):
    for _ in range(before):
        send(app)
    proxy.refused[publish_command] = [LOST[0]] * losses
    send(app)
    assert [pending(app), len(proxy.said)] == [before + 1, losses]


@pytest.mark.parametrize("error", LOST)
def test_publish_retries_lost_connections_according_to_its_policy(app, proxy, publish_command, error):
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


def test_publish_without_retry_fails_at_the_first_loss(app, proxy, publish_command):
    send(app)
    proxy.refused[publish_command] = [LOST[0]] * 2
    for said in (1, 2):
        with pytest.raises(OperationalError):
            send(app, retry=False)
        assert [pending(app), len(proxy.said)] == [1, said]
    send(app, retry=False)
    assert pending(app) == 2


def test_publish_many_survives_lost_connections(app, proxy, publish_command):
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


def test_retries_pause_according_to_the_policy(app, proxy, publish_command, monkeypatch):
    send(app)
    pauses = []
    monkeypatch.setattr(celery_hooks, "time", SimpleNamespace(sleep=pauses.append))
    proxy.refused[publish_command] = [LOST[0]] * 5
    policy = {"max_retries": None, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 0.8}
    send(app, retry_policy=policy)
    assert pauses == pytest.approx([0.4, 0.7, 0.7, 0.7]), "the first retry is immediate, on a new connection"


#: Errors that no reconnect fixes: a missing right, a login, a full server, and a cluster node used like one server.
STAYS = (
    *(each for each in PASSING if each not in LOST),
    *LOGIN,
    *REFUSES_WRITES,
    "NOPERM User publisher has no permissions to run the 'fcall' command",
)


@pytest.mark.parametrize("error", STAYS)
def test_lasting_error_is_retried_once_under_any_policy(app, proxy, publish_command, error):
    send(app)
    proxy.refused[publish_command] = [error] * 20
    with pytest.raises(OperationalError):
        send(app, retry_policy={"max_retries": None})
    assert [pending(app), len(proxy.said)] == [1, 2]


def test_key_error_of_a_publish_is_retried_once(app, monkeypatch):
    """kombu treats a KeyError as a lost connection, since its own code can raise one there."""
    send(app)
    tries = []
    monkeypatch.setattr(AffinityChannel, "_put", lambda *args, **options: [tries.append(1), {}["missing"]])
    with pytest.raises(OperationalError):
        send(app, retry_policy={"max_retries": None})
    assert len(tries) == 2


@pytest.fixture
def user(redis_client):
    """Create a user with the password "right"; return the name."""
    rights = {"keys": "*", "channels": "*", "categories": ["+@all"]}
    redis_client.acl_setuser("publisher", enabled=True, passwords="+right", **rights)
    redis_client.acl_log_reset()
    yield "publisher"
    redis_client.acl_deluser("publisher")


@pytest.mark.parametrize("options", [{}, {"retry": False}], ids=["repeated", "once"])
def test_wrong_password_is_tried_as_often_as_on_stock_celery(server, redis_client, user, options):
    tries = {}
    for transport in (None, "celery_affinity:Transport"):
        app = Celery(broker=f"redis://{user}:wrong@127.0.0.1:{server.port}/0", set_as_current=False)
        # A connection opened outside a policy pauses for `interval_start`.
        app.conf.update(broker_transport=transport, broker_transport_options={"max_retries": 3, "interval_start": 0.01})
        with pytest.raises(OperationalError, match="invalid username-password"):
            send(app, **options)
        app.close()
        tries[transport] = _denied(redis_client)
    ours, stocks = tries.values()
    assert ours == stocks > 1


@pytest.mark.parametrize("options", [{}, {"retry": False}], ids=["repeated", "once"])
def test_changed_password_ends_the_publish(server, redis_client, user, options):
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
    """Return the number of refused logins since the last call."""
    denied = sum(entry["count"] for entry in redis_client.acl_log() if entry["reason"] == "auth")
    redis_client.acl_log_reset()
    return denied
