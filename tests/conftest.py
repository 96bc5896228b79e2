"""Servers, apps and processes for all tests.

A test with the fixture `server` or `redis_client` runs on Valkey, and also on Redis if `redis-server` is installed. A
test that also has the fixture `valkey` runs only on Valkey. With the mark `slow_on_redis`, a test runs on Redis only
among the slow tests. `support.servers` describes how to run all tests on another server.
"""

import importlib
import os
import signal
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import hypothesis  # early: its plugin would import it at the end, where garbage collection can run code of tests
import psutil
import pytest
import redis
from celery import _state

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.log_limit import LIMIT
from celery_affinity.schema.keys import Keys

from .support import servers, tiers
from .support.acl_users import as_user, lines, scheduler_of  # noqa: F401  # fixtures
from .support.apps import APP, apps_stay_here, forget_connections
from .support.cluster import Cluster
from .support.fleet import Fleet
from .support.in_flight import in_flight  # noqa: F401  # a fixture
from .support.order import dealt
from .support.processes import MARK, of_no_test, running_processes, wait_until
from .support.refusing_proxy import proxy  # noqa: F401  # a fixture
from .support.results_away import forget_results
from .support.template import TEMPLATE

os.environ[MARK] = uuid.uuid4().hex
_MARKED = f"{MARK}={os.environ[MARK]}".encode()

# A shell that starts the tests in the background has SIGINT ignored, and their child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines, because the duration of an example depends on the load of the machine.
hypothesis.settings.register_profile("without deadlines", deadline=None)
hypothesis.settings.load_profile("without deadlines")

servers.use_the_other()


def pytest_configure(config):
    # Result backends leave sockets to the garbage collector, so pytest would report them in an unrelated test.
    # `make soak` counts the open files of a fleet.
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_addoption(parser):
    parser.addoption("--tier", choices=tiers.TIERS, help="run the tests of one tier; default: all but the slow ones")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    kept = tiers.selected(items, config.getoption("tier"))
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    modules = {}
    for item in kept:
        modules.setdefault(item.path, []).append(item)
    order = dealt(modules, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    items[:] = [item for path in order for item in modules[path]]


# -- servers


def pytest_generate_tests(metafunc):
    if "server" in metafunc.fixturenames:
        names = ["valkey"] if "valkey" in metafunc.fixturenames else servers.INSTALLED
        if metafunc.definition.get_closest_marker("slow_on_redis"):
            names = [each if each == "valkey" else pytest.param(each, marks=pytest.mark.slow) for each in names]
        metafunc.parametrize("server", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def _servers():
    """Return a function that returns the server of a name. The first call starts it, and it runs until the end."""
    started = {}

    def get(name):
        if name not in started:
            started[name] = EmbeddedServer(executable=servers.EXECUTABLES[name])
            with of_no_test():
                started[name].start()
        return started[name]

    yield get
    for server in started.values():
        server.stop()


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory):
    with Cluster(directory=tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def cluster(_cluster):
    """An empty Valkey cluster with three primaries and three replicas. A test that breaks it must repair it."""
    _cluster.flush()
    return _cluster


@pytest.fixture(scope="session")
def valkey(_servers):
    return _servers("valkey")


@pytest.fixture(scope="session")
def server(request, _servers):
    return _servers(request.param)


@pytest.fixture
def redis_client(server):
    """A client of the server, which is empty at the start of the test."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client
        with suppress(redis.RedisError):  # the test can have stopped the server
            client.delete(Keys().key("schema"))  # tests that do not empty the server reject another schema number


# -- apps


@pytest.fixture(autouse=True)
def no_test_sees_the_apps_of_another():
    with apps_stay_here():
        yield


@pytest.fixture(autouse=True)
def no_test_uses_up_the_log_lines_of_another():
    LIMIT.forget()


@pytest.fixture(autouse=True)
def no_test_waits_for_the_results_of_another():
    yield
    forget_results()
    _state._set_task_join_will_block(False)  # a worker or an eager task in this process may have set it


@pytest.fixture
def load_app(request, monkeypatch):
    """Return a function that imports a module of `tests.support.apps` for the Valkey server, and returns its app.

    Python imports each module only once, in the first test that uses it.
    """

    def load(module):
        monkeypatch.setenv("BROKER_URL", request.getfixturevalue("valkey").url)
        app = importlib.import_module(module).app
        app.set_current()
        request.addfinalizer(lambda: forget_connections(app))
        return app

    return load


# -- processes


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, load_app):
    """Real workers. Test modules with other fleets override this fixture."""
    return Fleet(valkey, redis_client, tmp_path, load_app(APP))


@pytest.fixture(autouse=True)
def worker_processes_end():
    """Stop the processes that the test started, and fail the test if one of its processes still runs after that."""
    before = _marked_processes()
    yield
    for process in running_processes():
        process.end()
    strays = _marked_processes() - before
    try:
        wait_until(lambda: not _alive(strays), 5, f"the processes of this test are gone: {_described(strays)}")
    finally:
        for each in _alive(strays):
            each.kill()


@pytest.fixture(scope="session", autouse=True)
def _template_ends():
    yield
    TEMPLATE.end()


def _marked_processes():
    found = set()
    for pid in set(psutil.pids()) - {os.getpid(), TEMPLATE.pid}:
        with suppress(OSError, psutil.Error):  # the process has ended, or belongs to another user
            if _is_marked(pid):
                found.add(psutil.Process(pid))
    return found


def _is_marked(pid):
    if sys.platform == "linux":  # psutil takes three times as long, twice in each test
        return _MARKED in Path(f"/proc/{pid}/environ").read_bytes()
    return _mark_of(psutil.Process(pid)) == os.environ[MARK]


def _mark_of(process):
    try:
        return process.environ().get(MARK)
    except psutil.Error:  # the process has ended, or belongs to another user
        return None


def _alive(processes):
    return [each for each in processes if each.is_running() and _mark_of(each)]  # a zombie has no environment


def _described(processes):
    return [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]) if each in processes]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Show the logs of the processes that were running when a test failed."""
    report = yield
    if report.failed:
        for process in running_processes():
            last_lines = "\n".join(process.log().splitlines()[-60:])
            report.sections.append((f"log of {process.name}, pid {process.pid}", last_lines))
    return report
