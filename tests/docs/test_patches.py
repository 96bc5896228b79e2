"""The page on changes in Celery and kombu names every change, and no other."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from celery import canvas
from celery.worker.request import Request
from kombu.transport import redis as stock

from celery_affinity.transport.channel import AffinityChannel
from celery_affinity.transport.transport import Transport
from celery_affinity.worker import remote_control
from celery_affinity.worker.cancelled_request import CancelledRequest
from celery_affinity.worker.claimed_request import ClaimedRequest
from celery_affinity.worker.end_of_task import EndOfTask
from celery_affinity.worker.patches import PATCHED

ROOT = Path(__file__).parents[2]

#: Attributes that a worker assigns to objects of Celery and kombu without a replacement: new ones, or values.
NEW_IN_A_WORKER = {"__getattr__", "affinity", "affinity_kin", "inbox", "on_revoked"}
VALUES_IN_A_WORKER = {"__trace__", "_accepted", "accept", "chord", "fixups", "timestamp"}
OWN_IN_A_WORKER = {"following", "loop", "on_close", "on_open", "strays"}

#: Program that prints the changes in classes and modules of Celery and kombu when this package is imported.
CHANGED_BY_IMPORT = """
import sys, types
import celery.app.amqp, celery.app.routes, celery.canvas, celery.worker.consumer, celery.worker.control
import kombu.transport.redis

def found():
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("celery", "kombu", "billiard"):
            for what, value in list(vars(module).items()):
                if getattr(value, "__module__", "") == name:
                    if isinstance(value, type):
                        yield from ((name, f"{value.__qualname__}.{each}", of) for each, of in vars(value).items())
                    elif isinstance(value, types.FunctionType):
                        yield name, what, value

before = {(module, name): value for module, name, value in found()}
import celery_affinity
after = {(module, name): value for module, name, value in found()}
print(*(name for (module, name), value in before.items() if after[module, name] is not value))
"""


@cache
def on_the_page(heading):
    """Return the names in the first column of the table under *heading*."""
    page = (ROOT / "docs/internals/patches.md").read_text()
    (section,) = [each for each in page.split("\n## ") if each.startswith(heading)]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_what_an_import_changes_is_on_the_page():
    found = subprocess.run([sys.executable, "-c", CHANGED_BY_IMPORT], capture_output=True, text=True, check=True)
    named = on_the_page("In every process that publishes")
    if not hasattr(canvas, "_fold_chain"):
        named -= {"_fold_chain"}  # Celery 5.7 has it
    assert set(found.stdout.split()) == named


def private_overrides(ours, theirs):
    classes = [each for each in ours.__mro__ if each.__module__.startswith("celery_affinity")]
    names = {name for each in classes for name in vars(each) if name.startswith("_") and not name.startswith("__")}
    return {name for name in names if hasattr(theirs, name)}


def test_what_the_transport_overrides_of_kombus_private_methods_is_on_the_page():
    found = {f"Channel.{name}" for name in private_overrides(AffinityChannel, stock.Channel)}
    found |= {f"Transport.{name}" for name in private_overrides(Transport, stock.Transport)}
    assert found | {"Connection.switch", "Connection.info"} == on_the_page("In the transport")


def test_what_a_worker_changes_is_on_the_page():
    mixed_in = {name for each in (EndOfTask, CancelledRequest, ClaimedRequest) for name in vars(each)}
    request = {f"Request.{name}" for name in mixed_in if callable(getattr(EndOfTask, name, None))}
    request = {name for name in request if hasattr(Request, name.partition(".")[2])}
    commands = {name.replace("_stock_", "control.") for name in vars(remote_control) if name.startswith("_stock_")}
    assert request | set(PATCHED) | commands == on_the_page("In a worker")


def assigned(source):
    """Yield the attributes that *source* assigns to objects other than ``self``."""
    for node in ast.walk(ast.parse(source)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in [each for one in targets for each in (one.elts if isinstance(one, ast.Tuple) else [one])]:
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") != "self":
                yield target.attr
            if isinstance(target, ast.Subscript) and ast.unparse(target.value).startswith("vars("):
                yield target.slice.value


def test_what_a_worker_changes_is_listed():
    paths = [*(ROOT / "celery_affinity/worker").glob("*.py"), ROOT / "celery_affinity/callers/chord_parts.py"]
    found = {name for path in paths for name in assigned(path.read_text())}
    patched = {name.rpartition(".")[2] for name in PATCHED}
    assert found - NEW_IN_A_WORKER - VALUES_IN_A_WORKER - OWN_IN_A_WORKER == patched


@pytest.mark.parametrize("source", ["consumer.call_soon = f", "a, pool.flush = f, g", "vars(functional)['sleep'] = f"])
def test_an_assignment_is_found(source):
    assert list(assigned(source))[-1] in {"call_soon", "flush", "sleep"}


def test_what_is_changed_in_flower_is_on_the_page():
    source = (ROOT / "celery_affinity/observe/flower.py").read_text()
    assert set(re.findall(r"^ +([A-Z]\w+\.\w+) = ", source, re.M)) == on_the_page("In Flower")
