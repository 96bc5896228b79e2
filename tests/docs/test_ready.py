"""The checks before the first day of production: each command exists, with its options, and is fine on such a fleet."""

import os
import re
import shlex
from types import SimpleNamespace

import click
import pytest
import redis
from celery import Celery
from celery.bin.celery import celery as root

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.schema.keys import Keys

from ..support.pages import blocks
from ..support.processes import ROOT, run_celery, start_worker, wait_until

PAGE = (ROOT / "docs/how-to/production-checklist.md").read_text()
COMMANDS = sorted(set(re.findall(r"`(celery -A shop [^`]+)`", PAGE)))
ASKED = sorted(set(re.findall(r"`redis-cli ([^`]+)`", PAGE)))

#: An app that is ready, and what its fleet's answers say of that.
SHOP = """
import os
from celery import Celery
from celery_affinity import Bound, Tenant

app = Celery("shop", broker=os.environ["BROKER_URL"])
app.conf.update(
    broker_transport="celery_affinity:Transport",
    broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 2},
    task_ignore_result=True,
    task_acks_late=True,
    task_time_limit=600,
    affinity_keep=3600,
    affinity_reserve={"pdf": {"queued": 1}},
    affinity_max_pending={"pdf": Bound(1000)},
    affinity_tenants={"*": Tenant(max=1)},
)


@app.task(affinity="pdf")
def render(path): ...
"""
FINE = {
    "celery -A shop affinity check --strict": ["1 alive, 1 worker answered"],  # without hiredis it has a note
    "celery -A shop affinity status": ["pdf"],
    "celery -A shop affinity explain TASK_ID": ["state"],
    "celery -A shop affinity metrics --once": ["celery_affinity_pending_jobs"],
    "celery -A shop affinity settings": ["reserve", "keep"],
    "celery -A shop inspect conf": ["task_acks_late", "task_time_limit"],
    "celery -A shop report": ["broker_transport_options", "socket_timeout"],
    "config get maxmemory-policy": ["noeviction"],
}


def test_each_check_says_how_and_when_it_is_fine():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| check")]
    assert len(rows) >= 25
    for row in rows:
        check, how, fine = (cell.strip() for cell in re.sub(r"`[^`]*`", "x", row).strip("|").split(" | "))
        assert all((check, how, fine)), row


def test_each_command_exists_with_its_options(subtests):
    for command in COMMANDS:
        with subtests.test(str(command)):
            words = shlex.split(command)[3:]
            context = click.Context(root, obj=SimpleNamespace(app=Celery(set_as_current=False)))
            found = root
            while isinstance(found, click.Group) and words and found.get_command(context, words[0]):
                found = found.get_command(context, words.pop(0))
            assert found is not root
            found.parse_args(click.Context(found, parent=context), words)


@pytest.mark.slow  # other tests have each command; this one has the page as a whole
def test_each_command_is_fine_on_a_fleet_that_is_ready(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    conf = blocks("docs/how-to/redis.md")["redis.conf"]
    options = [word for line in conf.splitlines() for word in f"--{line}".split(" ")]
    said = {}
    with EmbeddedServer(options=options, password="long and hard to guess") as server:
        env = {**os.environ, "BROKER_URL": server.url, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        worker = start_worker("shop", server.url, ["pdf"], concurrency=2, name="pdf1", env=env)
        worker.wait_ready(60)
        assert re.search(r"celery_affinity .*: serves pdf", worker.log())  # what the check of the logs looks for
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            said |= {each: str(client.execute_command(*each.split())) for each in ASKED}
            wait_until(lambda: client.hexists(Keys().key("clock"), "ticked"), 20, "its dispatcher ticks")
        task_id = run_celery("-A", "shop", "call", "shop.render", "--args", '["a"]', env=env).stdout.strip()
        for command in COMMANDS:
            words = shlex.split(command.replace("TASK_ID", task_id))[1:]
            done = run_celery(*words, env=env)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            said[command] = done.stdout
    lacks = {each: said[each] for each, words in FINE.items() if not all(word in said[each] for word in words)}
    assert lacks == {}
