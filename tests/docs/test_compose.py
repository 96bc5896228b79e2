"""docker-compose.yml, service by service: each command line is run as a process of this machine."""

import json
import re
import shlex
import sys
import tomllib
import urllib.request
from urllib.error import URLError

import pytest
import redis
import yaml
from celery import Celery

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.embedded.server import free_port

from ..support.processes import ROOT, Process, wait_until

TEXT = (ROOT / "docker-compose.yml").read_text()
#: Commands in the head of the file; the text after two spaces describes a command.
EXAMPLE, STATUS = re.findall(r"^#.* run --rm versatile (.+?)(?:  .*)?$", TEXT, re.MULTILINE)
COMPOSE = yaml.safe_load(TEXT)
ALL = COMPOSE["services"]
SERVICES = {name: service for name, service in ALL.items() if "profiles" not in service}
TYPES = {"pdf": ["pdf"], "excel": ["excel"], "index": ["index"], "versatile": ["pdf", "excel", "index"]}
DOCKERFILE = (ROOT / "Dockerfile").read_text()


class Local:
    """The services as processes here: addresses of the network of containers become addresses of this machine."""

    def __init__(self, broker):
        self.addresses = {"valkey:6379": f"127.0.0.1:{broker.port}", "--port=5555": f"--port={free_port()}"}
        self.flower_url = "http://127.0.0.1:" + self.addresses["--port=5555"].partition("=")[2]

    def start(self, service):
        program, *arguments = shlex.split(ALL[service]["command"])
        assert program == "celery"
        return self._start(service, ["celery", *map(self._local, arguments)], service)

    def run(self, command, service="versatile"):
        """Run a command that the file gives people for a container of *service*; return its output."""
        program, *arguments = shlex.split(command)
        process = self._start(command, ["celery", *arguments] if program == "celery" else arguments[1:], service)
        assert process.wait(60) == 0, process.log()
        return process.log()

    def workers_in_flower(self):
        try:
            with urllib.request.urlopen(f"{self.flower_url}/workers?json=1", timeout=5) as answer:
                return {worker["hostname"].partition("@")[0] for worker in json.load(answer)["data"]}
        except URLError:  # not up yet
            return set()

    def _start(self, name, arguments, service):
        environment = {key: self._local(value) for key, value in ALL[service]["environment"].items()}
        return Process(name, [sys.executable, "-m", *arguments], environment)

    def _local(self, text):
        for there, here in self.addresses.items():
            text = text.replace(there, here)
        return text


@pytest.fixture
def broker():
    """The service `valkey`: its own arguments, on another port."""
    program, *options = shlex.split(SERVICES["valkey"]["command"])
    assert program == "valkey-server"
    with EmbeddedServer(options=options) as server:
        yield server


def test_every_service_runs_by_its_own_command_line(broker):
    local = Local(broker)
    assert set(SERVICES) == {"valkey", "flower", *TYPES}
    with redis.Redis.from_url(broker.url, decode_responses=True) as client:
        how, program, *command = SERVICES["valkey"]["healthcheck"]["test"]
        assert (how, program) == ("CMD", "valkey-cli")
        assert client.execute_command(*command)
        assert client.config_get("appendonly", "maxmemory-policy") == {
            "appendonly": "yes",
            "maxmemory-policy": "noeviction",
        }

    services = {service: local.start(service) for service in (*TYPES, "flower")}
    for service in TYPES:
        services[service].wait_for(" ready.", 60)
    assert sorted(local.run(EXAMPLE).splitlines()) == [
        "indexed the figures of sales.xlsx",
        "indexed the text of report.pdf",
    ]
    assert "versatile@" in local.run(STATUS)
    with Celery(broker=broker.url, set_as_current=False) as asking:
        assert types_of(asking.control.inspect(timeout=10, limit=len(TYPES)).active_queues()) == TYPES
    wait_until(lambda: local.workers_in_flower() == set(TYPES), 30, "Flower shows every worker")

    for service in services.values():
        service.term()
    for service in services.values():
        assert service.wait(60) == 0, service.log()


def types_of(active_queues):
    return {name.partition("@")[0]: [queue["name"] for queue in queues] for name, queues in active_queues.items()}


def test_what_services_refer_to_is_there():
    for name, service in ALL.items():
        for needed, how in service.get("depends_on", {}).items():
            ends = how == {"condition": "service_completed_successfully"}
            assert ends or how == {"condition": "service_healthy"}, name
            assert ends or "healthcheck" in ALL[needed], needed
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in COMPOSE["volumes"]


@pytest.mark.slow
def test_a_node_and_a_worker_of_the_cluster_run_by_their_own_command_lines(cluster, broker):
    program, *options = shlex.split(ALL["node"]["command"])
    assert program == "valkey-server"
    options += ["--cluster-port", str(free_port())]  # by default one that may not be there
    with EmbeddedServer(options=options) as node, redis.Redis.from_url(node.url) as client:
        assert client.info("cluster")["cluster_enabled"] == 1
    local = Local(broker)
    local.addresses["redis-cluster://node:6379"] = cluster.url
    worker = local.start("on-cluster")
    worker.wait_for(" ready.", 60)
    assert sorted(local.run(EXAMPLE, "on-cluster").splitlines()) == [
        "indexed the figures of sales.xlsx",
        "indexed the text of report.pdf",
    ]


def test_a_published_port_is_the_one_that_the_service_listens_on_and_only_for_this_machine():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"flower": ["127.0.0.1:5555:5555"]}
    assert "--port=5555" in shlex.split(SERVICES["flower"]["command"])


def test_the_dockerfile_installs_and_copies_what_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r'pip install .*"\.\[(.+)\]"', DOCKERFILE)
    assert set(wanted.split(",")) <= set(extras)
    sources = [name for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]]
    ignored_but = (ROOT / ".dockerignore").read_text().splitlines()
    for name in sources:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored_but
