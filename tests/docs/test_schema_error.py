"""The page on schema errors is followed with two releases: this one, and a copy of it with the next schema."""

import os
import shutil
import subprocess
import sys

import pytest

import celery_affinity
from celery_affinity.schema.keys import SCHEMA

from ..support.pages import blocks, commands
from ..support.processes import ROOT, WorkerProcess, wait_until

PAGE = "docs/how-to/upgrade.md"

SHOP = """
from celery import Celery
app = Celery("shop", broker={url!r}, backend={url!r})
app.conf.broker_transport = "celery_affinity:Transport"
{more}

@app.task(name="shop.render", affinity="pdf")
def render(page):
    return page
"""


class Release:
    """A release in a folder of its own, with the app of the page."""

    def __init__(self, folder, url, schema):
        self.folder, self.url = folder, url
        package = shutil.copytree(os.path.dirname(celery_affinity.__file__), folder / "celery_affinity")
        keys = package / "schema" / "keys.py"
        line = f"SCHEMA = {SCHEMA}\n"
        assert line in keys.read_text()
        keys.write_text(keys.read_text().replace(line, f"SCHEMA = {schema}\n"))
        self.env = {"PYTHONPATH": str(folder)}
        self.configure("")

    def configure(self, more):
        (self.folder / "shop.py").write_text(SHOP.format(url=self.url, more=more))

    def worker(self, name):
        command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-Q", "pdf", "-P", "solo"]
        return WorkerProcess(name, [*command, "-l", "INFO", "-n", f"{name}@host"], self.env, self.folder)

    def run(self, *words):
        env = {**os.environ, **self.env}
        return subprocess.run([sys.executable, *words], env=env, cwd=self.folder, capture_output=True, text=True)

    def publish(self, page):
        return self.run("-c", f"from shop import render; render.apply_async(({page!r},), task_id={page!r})")

    def printed(self, block):
        done = [self.run("-m", *words) for words in commands(blocks(PAGE)[block])]
        return "".join(each.stdout for each in done)

    def result(self, page):
        get = f"from shop import render; print(render.AsyncResult({page!r}).get(timeout=20))"
        return self.run("-c", get).stdout.strip()


@pytest.fixture
def releases(valkey, redis_client, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    return Release(tmp_path / "old", valkey.url, SCHEMA), Release(tmp_path / "new", valkey.url, SCHEMA + 1)


def error(data, release):
    """Return the line of the page for data of one schema and a release of another."""
    line = blocks(PAGE)["error"].strip()
    assert line.count("schema 2,") == line.count("schema 3 only") == 1
    before, _, after = line.partition("schema 2,")
    return f"{before}schema {data},{after.replace('schema 3 only', f'schema {release} only')}"


@pytest.mark.slow  # two releases, each with processes of its own
def test_the_way_forth_and_back(releases):
    old, new = releases
    old_worker = old.worker("old")
    old_worker.wait_ready(30)

    refused = new.worker("refused")
    assert refused.wait(30) != 0
    assert error(SCHEMA, SCHEMA + 1) in refused.log()
    assert error(SCHEMA, SCHEMA + 1) in new.publish("refused").stderr
    assert f"The data on the server has schema {SCHEMA}," in new.printed("which").replace("\n        ", " ")
    assert old.publish("goes-on").returncode == 0
    assert old.result("goes-on") == "goes-on"

    new.configure(blocks(PAGE)["namespace"])
    new_worker = new.worker("new")
    new_worker.wait_ready(30)
    assert new.publish("forth").returncode == 0
    assert new.result("forth") == "forth"
    assert "old@host" in old.printed("left")
    assert "new@host" not in old.printed("left")
    assert "worker-elsewhere" in new.printed("which")

    new_worker.term()
    new_worker.wait(20)
    assert new.publish("waits").returncode == 0
    assert old.publish("back").returncode == 0
    assert old.result("back") == "back", "the old release and its namespace work at once"
    new.worker("finishes").wait_ready(30)
    assert new.result("waits") == "waits", "a worker of the new release runs what waits there"


@pytest.mark.slow  # two releases, each with processes of its own
def test_an_old_release_beside_data_of_a_new_one(releases):
    old, new = releases
    worker = new.worker("new")
    worker.wait_ready(30)
    assert error(SCHEMA + 1, SCHEMA) in old.publish("refused").stderr
    namespace = blocks(PAGE)["namespace"].replace("affinity-3", "affinity-2")
    assert '(`"affinity-2"`)' in (ROOT / PAGE).read_text()
    old.configure(namespace)
    old.worker("old").wait_ready(30)
    assert old.publish("back").returncode == 0
    assert old.result("back") == "back"
    assert new.publish("rest").returncode == 0
    wait_until(lambda: new.result("rest") == "rest", 20, "the new release finishes its jobs")
