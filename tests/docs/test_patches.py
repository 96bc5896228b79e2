"""The page on changes in Celery and kombu names every change, and every private name that is read, and no other."""

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from celery import canvas
from celery.concurrency import asynpool
from celery.concurrency.base import BasePool
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu.transport import redis as stock

from celery_affinity.publishing import option_sources
from celery_affinity.transport.channel import AffinityChannel
from celery_affinity.transport.transport import Transport
from celery_affinity.worker import control_commands
from celery_affinity.worker.consumer import AffinityBlueprint, AffinityConsumer
from celery_affinity.worker.pool import AffinityPool, AffinityProcesses, AffinityResults
from celery_affinity.worker.request import ClaimedRequest
from celery_affinity.worker.request_end import EndOfTask

from ..support import private_names

ROOT = Path(__file__).parents[2]

#: Attributes that a worker assigns to objects of Celery and kombu without a replacement: new ones, or values.
NEW_IN_A_WORKER = {"__getattr__", "inbox", "on_revoked"}
VALUES_IN_A_WORKER = {"__trace__", "consumer_cls", "pool_cls", "_accepted", "accept", "chord", "fixups", "timestamp"}
OWN_IN_A_WORKER = {
    "job_feed",
    "has_lent",
    "is_alive",
    "is_buffered",
    "is_closed",
    "loop",
    "on_close",
    "on_open",
    "prefetch_multiplier",
    "priority",
    "leaked_claims",
}

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
def tables():
    """Return the rows of each table of the page by its heading: sets of the names in each of the row's columns."""
    page = (ROOT / "docs/reference/patches.md").read_text()
    return {
        section.partition("\n")[0]: [
            [set(re.findall(r"`([^`]+)`", column)) for column in line.split("|")[1:-1]]
            for line in section.splitlines()
            if line.startswith("| `")
        ]
        for section in page.split("\n## ")[1:]
    }


def on_the_page(heading):
    """Return the names in the first column of the table under *heading*."""
    return {name for row in tables()[heading] for name in row[0]}


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


def overridden(ours, theirs, name):
    """Return the methods of the class *theirs*, called *name* on the page, that the class *ours* overrides."""
    return {
        f"{name}.{each}" for each, value in vars(ours).items() if inspect.isfunction(value) and hasattr(theirs, each)
    }


def test_what_a_workers_consumer_and_pool_override_is_on_the_page():
    found = overridden(AffinityConsumer, Consumer, "Consumer") | overridden(AffinityPool, BasePool, "TaskPool")
    found |= overridden(AffinityBlueprint, Consumer.Blueprint, "Blueprint")
    found |= overridden(AffinityProcesses, asynpool.AsynPool, "AsynPool")
    found |= overridden(AffinityResults, asynpool.ResultHandler, "ResultHandler")
    assert found == on_the_page("In a worker's consumer and pool")


def test_what_a_worker_changes_is_on_the_page():
    mixed_in = {name for each in (EndOfTask, ClaimedRequest) for name in vars(each)}
    request = {f"Request.{name}" for name in mixed_in if callable(getattr(EndOfTask, name, None))}
    request = {name for name in request if hasattr(Request, name.partition(".")[2])}
    commands = {f"control.{command.__name__}" for command in control_commands.REPLACEMENTS}
    assert request | commands == {
        name for name in on_the_page("In a worker") if name.startswith(("Request.", "control."))
    }


def assigned(source):
    """Yield the attributes that *source* assigns to objects other than ``self``."""
    for node in ast.walk(ast.parse(source)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in [each for one in targets for each in (one.elts if isinstance(one, ast.Tuple) else [one])]:
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") != "self":
                yield target.attr
            if isinstance(target, ast.Subscript) and ast.unparse(target.value).startswith("vars("):
                yield target.slice.value


def test_what_a_worker_replaces_is_on_the_page():
    paths = [*(ROOT / "celery_affinity/worker").glob("*.py"), ROOT / "celery_affinity/results/chords.py"]
    found = {name for path in paths for name in assigned(path.read_text()) if not name.startswith("affinity")}
    named = {name for name in on_the_page("In a worker") if not name.startswith(("Request.", "control."))}
    patched = {name.rpartition(".")[2] for name in named}
    assert found - NEW_IN_A_WORKER - VALUES_IN_A_WORKER - OWN_IN_A_WORKER == patched


@pytest.mark.parametrize("source", ["consumer.call_soon = f", "a, pool.flush = f, g", "vars(functional)['sleep'] = f"])
def test_an_assignment_is_found(source):
    assert list(assigned(source))[-1] in {"call_soon", "flush", "sleep"}


def test_what_is_changed_in_flower_is_on_the_page():
    source = (ROOT / "celery_affinity/reports/flower.py").read_text()
    assert set(re.findall(r"^ +([A-Z]\w+\.\w+) = ", source, re.M)) == on_the_page("In Flower")


# -- names that are read

READ = "Private names that are read"
ON_THE_STACK = "Values that are read from the stack"


@cache
def sources():
    package = ROOT / "celery_affinity"
    return {str(path.relative_to(package).with_suffix("")): path.read_text() for path in package.rglob("*.py")}


def known_elsewhere():
    """Return the private names that other tables of the page have: of methods and classes that are replaced."""
    headings = tables().keys() - {READ}
    return {part for heading in headings for name in on_the_page(heading) for part in name.split(".")}


def test_private_names_of_others_are_on_the_page():
    found = {(name, path) for name, path in private_names.used_in(sources()) if name not in known_elsewhere()}
    rows = [({name.rpartition(".")[2] for name in names}, paths) for names, paths, *_ in tables()[READ]]
    assert found == {(name, path) for names, paths in rows for name in names for path in paths}


def test_the_page_names_the_owner_of_each_private_name():
    missing = {name for name in on_the_page(READ) if not is_known(*name.split("."))}
    assert not missing


def is_known(owner, name):
    """Return whether a file of another package has the word *name*, and the class *owner*, or that name of its own."""
    return any(
        name in private_names.words_in(file)
        and (owner in (file.stem, file.parent.name) or re.search(rf"^ *class {owner}\b", file.read_text(), re.M))
        for file in private_names.files_of_others()
    )


def test_what_is_read_from_the_stack_is_on_the_page():
    rows = {name: values for (name,), values, *_ in tables()[ON_THE_STACK]}
    assert rows == {function.__qualname__: set(values) for function, values in option_sources.READ.items()}
    assert [path for path, source in sources().items() if "f_locals" in source] == ["publishing/option_sources"]


@pytest.mark.parametrize("function", option_sources.READ, ids=lambda each: each.__qualname__)
def test_celery_has_the_values_that_are_read_from_the_stack(function):
    assert set(option_sources.READ[function]) <= set(inspect.unwrap(function).__code__.co_varnames)


USES = """
import celery._there
from celery._state import _task_stack
from ._here import _own_function
from celery.worker.request import Request
from typing import NamedTuple

class Ours(Request):
    _defined = None

    def method(self, other):
        self._set_here = self._defined
        self._already_revoked = True  # Celery's request has it
        super()._method_of_a_base()
        super(Ours, self)._of_a_base_named_in_full()
        return self._of_a_base, other._of_another, other._defined, self._replace(), os._exit

class Derived(Ours):
    def method(self):
        return self._set_here

getattr(value, "_by_its_name"), vars(value)["_in_a_dict"], "_within" in vars(value), print("_printed")
value.publish(_as_an_argument=1)
"""


def test_private_names_of_others_are_found():
    assert {name for name, _ in private_names.used_in({"uses.py": USES})} == {
        *("_there", "_state", "_task_stack"),
        *("_already_revoked", "_method_of_a_base", "_of_a_base", "_of_a_base_named_in_full", "_of_another"),
        *("_by_its_name", "_in_a_dict", "_within", "_as_an_argument"),
    }
