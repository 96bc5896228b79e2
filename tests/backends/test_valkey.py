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


def test_entry_points_equal_the_registered_aliases():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {scheme: path for scheme, path in BACKEND_ALIASES.items() if path.startswith("celery_affinity.")}
    assert project["entry-points"]["celery.result_backends"] == ours


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery calls it
def test_valkey_url_stores_and_reads_results(valkey, redis_client, backend_at):
    backend = backend_at(valkey.url.replace("redis://", "valkey://"))
    assert isinstance(backend, ValkeyBackend)
    backend.store_result("report-7", 7, states.SUCCESS)
    for each in (backend, pickle.loads(pickle.dumps(backend)), backend_at(valkey.url)):
        assert each.get_result("report-7") == 7


def test_valkeys_url_enables_tls(backend_at):
    backend = backend_at("valkeys://user:secret@example.org:6380/3?ssl_cert_reqs=required")
    assert issubclass(backend.connparams["connection_class"], redis.SSLConnection)
    assert [backend.connparams[name] for name in ("host", "port", "db")] == ["example.org", 6380, 3]
