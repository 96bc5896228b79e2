"""What is learnt of the result backend: its name, whether it can be made, and whether its server answers."""

import socket
from time import monotonic

import pytest

from celery_affinity.check import check
from celery_affinity.check import results as results_module
from celery_affinity.check.facts import ResultFacts
from celery_affinity.check.gather import gather_facts
from celery_affinity.check.results import BackendQuery


def found(new_app, backend):
    return BackendQuery(new_app(result_backend=backend)).answer()


@pytest.fixture
def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@pytest.mark.parametrize("backend", [None, "", "disabled://"])
def test_an_app_without_a_result_backend_has_no_results(new_app, backend):
    assert found(new_app, backend) is None


@pytest.mark.parametrize(
    ("url", "unknown", "meant"),
    [
        ("redsi://:secret@localhost/0", "redsi", "redis"),
        ("REDIS://localhost/0", "REDIS", None),
        ("xyz+tcp://localhost", "xyz", None),
        ("redsi", "redsi", "redis"),
        ("mongo://localhost", "mongo", "mongodb"),
    ],
)
def test_a_name_that_is_no_backend_is_named_with_what_may_be_meant(new_app, url, unknown, meant):
    results = found(new_app, url)
    assert (results.unknown, results.meant) == (unknown, meant)
    assert "secret" not in str(results)


@pytest.mark.parametrize("url", ["no.such.module:Backend", "cassandra://", "redis://localhost:port/0", "os:path"])
def test_a_backend_that_cannot_be_made_says_why(new_app, url):
    results = found(new_app, url)
    assert (results.unknown, results.down) == (None, None)
    assert results.fails


def test_a_server_that_answers_is_fine_in_each_form_of_url(valkey, new_app):
    assert found(new_app, valkey.url) == ResultFacts(found(new_app, valkey.url).url)
    path = valkey.url.replace("redis://", "")
    assert found(new_app, f"redis://{path}").down is None


def test_a_refused_port_and_a_wrong_password_are_said_without_the_password(valkey, new_app, free_port):
    refused = found(new_app, f"redis://:secret@127.0.0.1:{free_port}/0")
    assert "refused" in refused.down
    wrong = found(new_app, valkey.url.replace("redis://", "redis://nobody:secret@"))
    assert wrong.down
    assert "secret" not in f"{refused} {wrong}"


def test_a_server_that_never_answers_is_down_in_bounded_time(new_app, monkeypatch):
    monkeypatch.setattr(results_module, "PATIENCE_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(20)
        began = monotonic()
        assert found(new_app, f"redis://127.0.0.1:{silent.getsockname()[1]}/0").down
        assert monotonic() - began < 10


def test_a_backend_that_hangs_is_given_up(new_app, monkeypatch):
    monkeypatch.setattr(results_module, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(results_module, "_check_backend", lambda *_: __import__("time").sleep(5))
    assert found(new_app, "redis://localhost/0").down == "no end within 0.2 s"


def test_another_backend_than_redis_is_not_asked(new_app, tmp_path):
    assert found(new_app, f"file://{tmp_path}") == ResultFacts(f"file://{tmp_path}")


def test_the_check_has_what_is_wrong_with_the_results_even_if_the_broker_is_down(new_app, free_port):
    app = new_app(f"redis://127.0.0.1:{free_port}/0", result_backend="redsi://localhost")
    assert {"backend-unknown", "broker-down"} <= {each.id for each in check(gather_facts(app, fleet=False))}
