"""Setups of pytest-celery on this transport, in containers if Docker is available and in processes otherwise."""

import pytest
from celery import chain, chord, group
from kombu import pools
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
)
from pytest_celery.vendors.worker.tasks import add, xsum
from pytest_docker_tools import build, container, fxtr

from celery_affinity import explain

from ..support import process_nodes
from ..support.apps import celery_tasks
from ..support.apps.celery_tasks import excel, pdf, slow_at_first
from ..support.processes import ROOT, wait_until

pytest_plugins = ["pytest_celery.plugin"]  # the plugin's entry point is off: it would load the plugin for all tests

if process_nodes.docker_answers():
    celery_base_worker_image = build(path=str(ROOT), tag="celery-affinity/worker:test")

    def worker(cls):
        return container(
            image="{celery_base_worker_image.id}",
            environment=fxtr("default_worker_env"),
            network="{default_pytest_celery_network.name}",
            volumes={"{default_worker_volume.name}": {"bind": "/app", "mode": "rw"}},
            wrapper_class=cls,
            timeout=60,
            command=cls.command(),
        )
else:
    from ..support.process_nodes import default_redis_backend, default_redis_broker, default_worker_container, worker  # noqa: F401


class Specialist(CeleryWorkerContainer):
    @classmethod
    def worker_name(cls):
        return cls.__name__.lower()

    @classmethod
    def worker_queue(cls):
        return cls.worker_name()


class Pdf(Specialist):
    pass


class Excel(Specialist):
    pass


pdf_container = worker(Pdf)
excel_container = worker(Excel)


class Setup(CeleryTestSetup):
    @classmethod
    def update_app_config(cls, app):
        app.conf.broker_transport = "celery_affinity:Transport"
        # The guard ends with the container: the death is noticed by silence.
        app.conf.affinity_worker_timeout = 3
        app.conf.affinity_heartbeat_interval = 1
        app.conf.broker_connection_retry_on_startup = True
        app.conf.worker_cancel_long_running_tasks_on_connection_loss = False


# -- pytest-celery's fixtures, overridden like in its manual


@pytest.fixture
def celery_setup_cls():
    return Setup


@pytest.fixture
def celery_broker_cluster(celery_redis_broker):
    return CeleryBrokerCluster(celery_redis_broker)


@pytest.fixture
def celery_backend_cluster(celery_redis_backend):
    return CeleryBackendCluster(celery_redis_backend)


@pytest.fixture
def default_redis_broker_command(default_redis_broker_cls):
    return default_redis_broker_cls.command("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def default_worker_tasks(default_worker_tasks):
    return {*default_worker_tasks, celery_tasks}


@pytest.fixture
def specialists(pdf_container, excel_container, celery_setup_app):
    return [CeleryTestWorker(each, app=celery_setup_app) for each in (pdf_container, excel_container)]


@pytest.fixture(autouse=True)
def connections_end_with_the_test():
    yield
    pools.reset()


def state(setup, result):
    return explain(setup.app, result.id).state


# -- the tests


def test_setup_answers_tasks_and_remote_control(celery_setup):
    assert celery_setup.ready(ping=True, control=True, docker=True)
    replies = celery_setup.app.control.ping(timeout=10, limit=1)
    assert replies == [{celery_setup.worker.hostname(): {"ok": "pong"}}]


def test_canvas_runs_on_specialists(celery_setup):
    assert chain(add.s(1, 2), add.s(3), add.s(4))().get(timeout=30) == 10
    assert group(add.s(n, n) for n in range(3))().get(timeout=30) == [0, 2, 4]
    assert chord([add.s(n, 1) for n in range(4)])(xsum.s()).get(timeout=30) == 10
    assert chain(group(add.s(n, 1) for n in range(2)), xsum.s(), add.s(10))().get(timeout=30) == 13


def test_job_of_a_killed_worker_container_runs_again(celery_setup):
    result = slow_at_first.delay()
    wait_until(lambda: state(celery_setup, result) == "running", 30, "it runs")
    celery_setup.worker.kill()
    celery_setup.worker.restart()
    assert result.get(timeout=60) == "again"


def test_jobs_survive_a_restart_of_the_broker(celery_setup):
    waiting = pdf.delay()
    assert add.s(1, 1).delay().get(timeout=30) == 2
    celery_setup.broker.restart()
    wait_until(lambda: state(celery_setup, waiting) == "pending", 30, "it waits for a worker")
    assert add.s(2, 2).delay().get(timeout=60) == 4


class TestSpecialists:
    @pytest.fixture
    def celery_worker_cluster(self, specialists):
        return CeleryWorkerCluster(*specialists)

    def test_each_job_goes_to_the_worker_of_its_type(self, celery_setup):
        of_pdf, of_excel = celery_setup.worker_cluster
        results = [task.delay() for task in (pdf, excel, excel, pdf)]
        done_by = [result.get(timeout=30) for result in results]
        assert done_by == [each.hostname() for each in (of_pdf, of_excel, of_excel, of_pdf)]

        of_excel.kill()
        assert pdf.delay().get(timeout=30) == of_pdf.hostname()
        unserved = excel.delay()

        def is_unserved():
            waiting = explain(celery_setup.app, unserved.id).waiting
            return waiting is not None and waiting.slots == []

        wait_until(is_unserved, 30, "the dead worker's slots are deleted, and the job is pending")
