"""The page on deploying: its units and manifests can be read, and each command in them exists, with its options."""

import asyncio
import configparser
import re
import shlex
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import click
import httpx
import pytest
import yaml
from celery import Celery
from celery.bin.celery import celery as root

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.web import asgi

from ..support.apps import APP
from ..support.command import affinity
from ..support.pages import blocks
from ..support.processes import Process, wait_until, wait_until_it_listens

BLOCKS = {
    **blocks("docs/how-to/deploy.md"),
    "dispatcher.yaml": blocks("docs/how-to/scale.md")["dispatcher.yaml"],
    "redis.conf": blocks("docs/how-to/redis.md")["redis.conf"],
}
MANIFESTS = [name for name in BLOCKS if name.endswith(".yaml") and name != "compose.yaml"]


def unit():
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str
    found.read_string(BLOCKS["pdf@.service"])
    return found


def container(name):
    pod = yaml.safe_load(BLOCKS[name])["spec"]["template"]["spec"]
    (found,) = pod["containers"]
    return found


def started(name):
    """Return the words of a worker's command line that the block says."""
    if name == "pdf@.service":
        return shlex.split(unit()["Service"]["ExecStart"].replace("%%", "%").replace("%i", "1"))
    if name == "compose.yaml":
        return shlex.split(yaml.safe_load(BLOCKS[name])["services"]["pdf"]["command"])
    return [*container(name)["command"], *container(name).get("args", [])]


def accept(words):
    """Have Celery's command line take *words*; fail if it has not such a command or option."""
    assert words[0].rpartition("/")[2] == "celery"
    assert words[1:3] == ["-A", "shop"]
    context = click.Context(root, obj=SimpleNamespace(app=Celery(set_as_current=False)))
    command, left = root, words[3:]
    while isinstance(command, click.Group) and command.get_command(None, left[0]):
        command = command.get_command(None, left.pop(0))
    try:
        command.parse_args(click.Context(command, parent=context), left)
    except click.UsageError as exc:
        pytest.fail(f"{words}: {exc.format_message()}")


@pytest.mark.parametrize("name", ["pdf@.service", "compose.yaml", *MANIFESTS])
def test_what_is_started_is_a_command_with_its_options(name, tmp_path):
    words = started(name)
    if "--token-file" in words:
        (tmp_path / "tokens").write_text("admin s3cret-s3cret-s3cret\n")
        words = [str(tmp_path / "tokens") if word == "/run/tokens/tokens" else word for word in words]
    accept(words)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_deployment_selects_its_own_pods(name):
    manifest = yaml.safe_load(BLOCKS[name])
    assert (manifest["apiVersion"], manifest["kind"]) == ("apps/v1", "Deployment")
    spec = manifest["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    mounted = {each["name"] for each in container(name).get("volumeMounts", ())}
    assert mounted == {each["name"] for each in pod.get("volumes", ())}


def test_the_probes_of_the_web_application_are_paths_that_need_no_token(valkey, load_app):
    web = container("web.yaml")
    paths = {web[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")}
    ports = {web[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")}
    assert ports == {each["containerPort"] for each in web["ports"]} == {5556}
    assert paths <= open_paths(load_app(APP))


def open_paths(app):
    async def asked():
        transport = httpx.ASGITransport(asgi(app, tokens={"s3cret-s3cret-s3cret": "admin"}))
        async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.7:5556") as client:
            return {
                path for path in ("/healthz", "/readyz", "/api/jobs") if (await client.get(path)).status_code == 200
            }

    return asyncio.run(asked())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path):
    program = tmp_path / "celery"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = BLOCKS["pdf@.service"].replace("/srv/shop/.venv/bin/celery", str(program)).replace("User=shop", "User=root")
    (tmp_path / "pdf@.service").write_text(text.replace("/srv/shop", str(tmp_path)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "pdf@.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_worker_of_the_page_starts_is_probed_drains_and_stops(valkey, redis_client, load_app):
    env = {"BROKER_URL": valkey.url, "LEDGER": "/dev/null", "HOSTNAME": socket.gethostname()}

    def words_of(words):
        return [sys.executable, "-m", "celery", "-A", APP, *words[3:]]

    def hook(said):
        shell, option, line = said["exec"]["command"]
        assert (shell, option) == ("sh", "-c")
        words = words_of(shlex.split(line.replace("$HOSTNAME", env["HOSTNAME"])))
        process = Process(line, words, env)
        assert process.wait(60) == 0, process.log()
        return process.log()

    manifest = container("worker.yaml")
    worker = Process("pdf", words_of(manifest["command"]), env)
    worker.wait_for(" ready.", 60)
    wait_until_it_listens(load_app(APP), "pdf")
    assert "pong" in hook(manifest["startupProbe"])
    hook(manifest["lifecycle"]["preStop"])
    wait_until(lambda: "takes no jobs" in affinity(valkey.url, "status").stdout, 30, "it drains")
    worker.term()
    assert worker.wait(60) == 0
    assert "celery_affinity: left the fleet; 0 jobs returned to the queue" in worker.log()


def test_check_finds_nothing_about_the_server_of_the_page():
    options = [word for line in BLOCKS["redis.conf"].splitlines() for word in f"--{line}".split(" ")]
    with EmbeddedServer(options=options) as server:
        said = affinity(server.url, "check", "--no-fleet").stdout
    server_findings = re.findall(r"^(?:ERROR|WARNING|NOTE) +(eviction|memory-|persistence-|snapshots-)", said, re.M)
    assert "0 errors" in said
    assert server_findings == []
