"""The publisher's warning that no live worker serves a type: shown to the publisher, once, with likely types."""

import json
import logging
import pkgutil
import sys

import pytest
import redis
from redis.exceptions import NoPermissionError

import celery_affinity
from celery_affinity.publishing import bulk
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.processes import Process, start_worker
from ..support.scripted_fleet import ScriptedFleet

APP = "tests.support.apps.spelt"
WARNING = "No live worker serves type 'viedo'"


@pytest.fixture
def fleet(redis_client, monkeypatch):
    monkeypatch.setattr(bulk, "_warned", {})
    return ScriptedFleet(Scheduler(redis_client, Keys()))


def said(caplog, fleet, type_):
    caplog.clear()
    bulk.warn_unserved(type_, fleet.scheduler)
    return caplog.text


@pytest.mark.parametrize(
    ("served", "type_", "meant"),
    [
        (("video", "pdf"), "viedo", "video"),
        (("video", "pdf"), "Video", "video"),
        (("video", "pdf"), "vid eo", "video"),
        (("pdf",), "pfd", "pdf"),
        (("image resize", "a:b"), "image-resize", "image resize"),
        (("video", "pdf"), "excel", None),
        ((), "video", None),
    ],
)
def test_type_close_to_a_served_one_is_suggested(fleet, caplog, served, type_, meant):
    if served:
        fleet.join("one", *served)
    text = said(caplog, fleet, type_)
    assert f"No live worker serves type {type_!r}" in text
    assert ("did you mean" in text) == (meant is not None)
    assert meant is None or text.rstrip().endswith(f"; did you mean {meant!r}?")
    assert said(caplog, fleet, type_) == "", "once for each type"


def test_served_types_are_read_rarely_with_few_commands(fleet, caplog, monkeypatch):
    fleet.join("one", "video")
    monkeypatch.setattr(bulk, "_TYPES", 1)
    client, key = fleet.scheduler.client, fleet.scheduler.keys.key("capacity")
    client.hset(key, mapping={f"t{number}": 1 for number in range(2000)})
    commands = []
    execute = client.execute_command
    monkeypatch.setattr(
        client, "execute_command", lambda *words, **options: commands.append(words) or execute(*words, **options)
    )
    assert "No live worker serves" in said(caplog, fleet, "viedo")
    assert [words[0] for words in commands] == ["HSCAN"] * bulk._PAGES
    assert said(caplog, fleet, "viedo") == ""
    assert len(commands) == bulk._PAGES


@pytest.mark.parametrize("error", [NoPermissionError("no"), redis.ConnectionError("gone"), OSError("gone")])
def test_unreadable_served_types_give_a_warning_without_suggestion(fleet, caplog, monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(fleet.scheduler.client, "execute_command", refuse)
    assert said(caplog, fleet, "viedo").rstrip().endswith("(start a worker with -Q viedo)")


def test_overwritten_key_prevents_no_warning(fleet, caplog):
    fleet.scheduler.client.set(fleet.scheduler.keys.key("capacity"), "spoiled")
    assert WARNING in said(caplog, fleet, "viedo")


def test_our_loggers_have_no_handler():
    """kombu's `get_logger` adds a silent handler, and Python's last resort serves only loggers without a handler."""
    for module in pkgutil.walk_packages(celery_affinity.__path__, "celery_affinity."):
        assert logging.getLogger(module.name).handlers == []
    assert logging.getLogger("celery_affinity").propagate


DICT_CONFIG = """
import logging.config
loggers = {"celery_affinity": {"handlers": ["to_stderr"]}}
handlers = {"to_stderr": {"class": "logging.StreamHandler"}}
logging.config.dictConfig(dict(version=1, disable_existing_loggers=False, handlers=handlers, loggers=loggers))
"""
PUBLISH_TWICE = f"import {APP} as tasks; [tasks.good.apply_async(queue='viedo') for _ in range(2)]"


@pytest.mark.parametrize(
    ("set_up", "begins"),
    [
        ("", "No live worker"),
        ("import logging; logging.basicConfig();", f"WARNING:{bulk.__name__}:No live worker"),
        ("import logging; logging.basicConfig(level='DEBUG');", f"WARNING:{bulk.__name__}:No live worker"),
        (DICT_CONFIG, "No live worker"),
        ("import logging; logging.getLogger('celery_affinity').setLevel('ERROR');", None),
    ],
    ids=["nothing", "basicConfig", "debug", "dictConfig", "silenced"],
)
def test_script_prints_the_warning_once_with_any_setup(valkey, redis_client, set_up, begins):
    script = Process("script", [sys.executable, "-c", set_up + PUBLISH_TWICE], {"BROKER_URL": valkey.url})
    assert script.wait(60) == 0, script.log()
    lines = [line for line in script.log().splitlines() if WARNING in line]
    assert len(lines) == (0 if begins is None else 1), script.log()
    assert begins is None or lines[0].startswith(begins)


@pytest.mark.parametrize("hijacks", [True, False])
def test_publishing_worker_logs_the_warning_once(valkey, redis_client, hijacks):
    conf = json.dumps({"worker_hijack_root_logger": hijacks, "task_acks_late": True})
    worker = start_worker(APP, valkey.url, ["celery"], env={"CONF": conf})
    worker.wait_ready(30)
    publisher = f"import {APP} as tasks; tasks.publishes.delay(3)"
    assert Process("script", [sys.executable, "-c", publisher], {"BROKER_URL": valkey.url}).wait(60) == 0
    worker.wait_for("succeeded", 30)
    worker.term()
    assert worker.wait(30) == 0
    assert worker.log().count(WARNING) == 1, worker.log()
