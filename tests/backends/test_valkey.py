"""Results at ``valkey://`` and ``valkeys://``, and the entry points of all backends."""

import pickle
import tomllib

import pytest
import redis
from celery import Celery, states
from celery.app.backends import BACKEND_ALIASES

from celery_affinity.backends.valkey import ValkeyBackend

from ..support.processes import ROOT


@pytest.fixture
def backend_at():
    made = []

    def backend_at(url):
        made.append(Celery("results", backend=url, set_as_current=False))
        return made[-1].backend

    yield backend_at
    for app in made:
        app.close()


def test_the_entry_points_say_the_same_to_who_imports_nothing_of_ours():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {scheme: path for scheme, path in BACKEND_ALIASES.items() if path.startswith("celery_affinity.")}
    assert project["entry-points"]["celery.result_backends"] == ours


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery calls it
def test_a_result_is_stored_and_read(valkey, redis_client, backend_at):
    backend = backend_at(valkey.url.replace("redis://", "valkey://"))
    assert isinstance(backend, ValkeyBackend)
    backend.store_result("report-7", 7, states.SUCCESS)
    for each in (backend, pickle.loads(pickle.dumps(backend)), backend_at(valkey.url)):
        assert each.get_result("report-7") == 7


def test_an_s_at_the_end_means_tls(backend_at):
    backend = backend_at("valkeys://user:secret@example.org:6380/3?ssl_cert_reqs=required")
    assert issubclass(backend.connparams["connection_class"], redis.SSLConnection)
    assert (backend.connparams["host"], backend.connparams["port"], backend.connparams["db"]) == (
        "example.org",
        6380,
        3,
    )
