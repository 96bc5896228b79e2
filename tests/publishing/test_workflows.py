"""A caller waits for each step of a canvas: the call's mode is passed to wherever Celery takes the canvas."""

# Longer than 300 lines: one worker runs every canvas.

import functools
import importlib
import itertools
import json
import operator
import random

import celery
import pytest
from celery import chain, chord, group, signature
from celery.canvas import _chain
from kombu.utils.json import dumps

from celery_affinity import Affinity
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.apps import STEPS, forget_connections
from ..support.processes import running_processes, start_worker, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning")


@pytest.fixture(scope="module")
def steps(steps_url):
    """The module of an app, with a worker."""
    module = importlib.import_module(STEPS)
    forget_connections(module.app)  # tests of other modules may have closed them
    module.app.set_current()
    worker = start_worker(STEPS, steps_url, ["steps"], pool="threads", concurrency=4, extra=["--without-gossip"])
    worker.wait_ready(30)
    yield module
    worker.end()


@pytest.fixture(autouse=True)
def worker_processes_end():
    """End the processes that a test started, except the worker that all tests share."""
    before = running_processes()
    yield
    for process in running_processes():
        if process not in before:
            process.end()


MODES = {"True": True, "False": False, "None": None}


def began(steps):
    """Return (task, mode) of each started task."""
    lines = steps.app.backend.client.lrange(steps.BEGAN, 0, -1)
    return {(name, MODES[mode]) for name, mode in (line.decode().rsplit(" ", 1) for line in lines)}


def all_have_ended(steps):
    found = Report(Reader(steps.app.backend.client, Keys())).status()
    return not found.scheduled and not any(each.pending or each.claimed for each in found.types)


def s(name, mode=None, task="step", **options):
    """Return a signature of a task by its name."""
    sig = signature(f"{STEPS}.{task}", args=(name,), immutable=True, options=options)
    return sig if mode is None else sig.set(on_demand=mode)


def by(task, name, other, **kwargs):
    return signature(f"{STEPS}.{task}", args=(name, other), kwargs=kwargs, immutable=True)


def item():
    return signature(f"{STEPS}.item").type


def linked(sig, *links, **error_links):
    for each in links:
        sig.link(each)
    for each in error_links.values():
        sig.link_error(each)
    return sig


YES = {"on_demand": True}


def everywhere(*names, mode=True):
    return dict.fromkeys(names, mode)


#: Name -> maker of the canvas, options of the call, the mode of each task by the task's name.
CANVASES = {
    "chain": (lambda: chain(s("a"), s("b"), s("c")), YES, everywhere("a", "b", "c")),
    "chain, by affinity": (
        lambda: chain(s("a"), s("b")),
        {"affinity": Affinity(on_demand=True)},
        everywhere("a", "b"),
    ),
    "chain, in no mode": (lambda: chain(s("a"), s("b")), {}, everywhere("a", "b", mode=None)),
    "chain that is queued": (lambda: chain(s("a"), s("b")), {"on_demand": False}, everywhere("a", "b", mode=False)),
    "chain, by its own option": (lambda: chain(s("a"), s("b")).set(on_demand=True), {}, everywhere("a", "b")),
    "chain, the call wins over its own option": (
        lambda: chain(s("a"), s("b")).set(on_demand=False),
        YES,
        everywhere("a", "b"),
    ),
    "pipes": (lambda: s("a") | s("b") | chain(s("c"), s("d")), YES, everywhere(*"abcd")),
    "chain of one": (lambda: chain(s("a")), YES, {"a": True}),
    "a step that says otherwise": (
        lambda: chain(s("a"), s("b", False), s("c")),
        YES,
        {"a": True, "b": False, "c": True},
    ),
    "a first step that says otherwise": (lambda: chain(s("a", False), s("b")), YES, {"a": False, "b": True}),
    "a step's affinity says otherwise": (
        lambda: chain(s("a"), s("b").set(affinity=Affinity("steps", on_demand=False)), s("c")),
        YES,
        {"a": True, "b": False, "c": True},
    ),
    "a step's mode is its own": (
        lambda: chain(s("a"), s("b", True), s("c")),
        {},
        {"a": None, "b": True, "c": None},
    ),
    "a first step's mode is its own": (lambda: chain(s("a", True), s("b")), {}, {"a": True, "b": None}),
    "chain within a chain": (
        lambda: _chain(s("a"), _chain(s("b"), s("c", False)), s("d")),
        YES,
        {"a": True, "b": True, "c": False, "d": True},
    ),
    "chain within a chain, with a mode of its own": (
        lambda: chain(s("a"), chain(s("b"), s("c")).set(on_demand=True), s("d")),
        {},
        {"a": None, "b": True, "c": True, "d": None},
    ),
    "group": (lambda: group(s("a"), s("b", False)), YES, {"a": True, "b": False}),
    "group of a generator": (lambda: group(s(name) for name in "abc"), YES, everywhere("a", "b", "c")),
    "group within a group": (
        lambda: group(group(s("a"), s("b")).set(on_demand=False), s("c")),
        YES,
        {"a": False, "b": False, "c": True},
    ),
    "group within a group, with a mode of its own": (
        lambda: group(group(s("a"), s("b")).set(on_demand=True), s("c")),
        {},
        {"a": True, "b": True, "c": None},
    ),
    "group of chains": (
        lambda: group(chain(s("a"), s("b", False)), chain(s("c"), s("d"))),
        YES,
        {"a": True, "b": False, "c": True, "d": True},
    ),
    "chain of groups": (
        lambda: chain(group(s("a"), s("b", False)), group(s("c"), s("d"))),
        YES,
        {"a": True, "b": False, "c": True, "d": True},
    ),
    "chain with a group in it": (
        lambda: chain(s("a"), group(s("b"), s("c")), s("d"), s("e")),
        YES,
        everywhere("a", "b", "c", "d", "e"),
    ),
    "chain with a group in it that says otherwise": (
        lambda: chain(s("a"), group(s("b"), s("c")).set(on_demand=False), s("d")),
        YES,
        {"a": True, "b": False, "c": False, "d": True},
    ),
    "chain with a group of one that says otherwise": (
        lambda: chain(s("a"), group(s("b")).set(on_demand=False), s("c")),
        YES,
        {"a": True, "b": False, "c": True},
    ),
    "chord": (lambda: chord([s("a"), s("b", False)], s("c")), YES, {"a": True, "b": False, "c": True}),
    "chord, its body says otherwise": (
        lambda: chord([s("a"), s("b")], s("c", False)),
        YES,
        {"a": True, "b": True, "c": False},
    ),
    "chord whose body is a chain": (
        lambda: chord([s("a"), s("b")], chain(s("c"), s("d", False), s("e"))),
        YES,
        {"a": True, "b": True, "c": True, "d": False, "e": True},
    ),
    "chord whose body is a group": (
        lambda: chord([s("a")], group(s("b"), s("c", False))),
        YES,
        {"a": True, "b": True, "c": False},
    ),
    "chord of chains": (
        lambda: chord([chain(s("a"), s("b")), s("c")], s("d")),
        YES,
        everywhere("a", "b", "c", "d"),
    ),
    "chord of a generator": (lambda: chord((s(name) for name in "ab"), s("c")), YES, everywhere("a", "b", "c")),
    "chord within a chord": (
        lambda: chord([chord([s("a"), s("b")], s("c")), s("d", False)], s("e")),
        YES,
        {"a": True, "b": True, "c": True, "d": False, "e": True},
    ),
    "chords one after the other": (
        lambda: chain(group(s("a"), s("b")), s("c"), group(s("d"), s("e")), s("f")),
        YES,
        everywhere("a", "b", "c", "d", "e", "f"),
    ),
    "a header's mode is its own": (
        lambda: chord([s("a", True), s("b")], s("c")),
        {},
        {"a": True, "b": None, "c": None},
    ),
    "group that is piped, with a mode of its own": (
        lambda: group(s("a"), s("b")).set(on_demand=True) | s("c"),
        {},
        {"a": True, "b": True, "c": None},
    ),
    "chain whose tasks become a header, with a mode of its own": (
        lambda: chord(chain(s("a"), s("b")).set(on_demand=True), s("c")),
        {},
        {"a": True, "b": True, "c": None},
    ),
    "what follows a chord that says otherwise": (
        lambda: chain(s("a"), chord([s("b")], s("c")).set(on_demand=False), s("d")),
        YES,
        {"a": True, "b": False, "c": False, "d": True},
    ),
    "what follows a chord with a mode of its own": (
        lambda: chord([s("a")], s("b")).set(on_demand=True) | s("c"),
        {},
        {"a": True, "b": True, "c": None},
    ),
    "what follows a chain that ends with a chord": (
        lambda: chain(s("a"), chord([s("b")], s("c"))).set(on_demand=True) | s("d") | s("e"),
        {},
        {"a": True, "b": True, "c": True, "d": None, "e": None},
    ),
    "callbacks": (
        lambda: linked(s("a"), s("b"), linked(s("c"), s("d")), s("e", False)),
        YES,
        {"a": True, "b": True, "c": True, "d": True, "e": False},
    ),
    "callbacks of a task with a mode of its own": (lambda: linked(s("a", True), s("b")), {}, everywhere("a", "b")),
    "callback that is a chain": (
        lambda: linked(s("a"), chain(s("b"), group(s("c"), s("d")))),
        YES,
        everywhere("a", "b", "c", "d"),
    ),
    "callbacks of steps": (
        lambda: chain(linked(s("a"), s("b")), linked(s("c", False), s("d")), s("e")),
        YES,
        {"a": True, "b": True, "c": False, "d": False, "e": True},
    ),
    "callback of a chain": (lambda: linked(chain(s("a"), s("b")), s("c")), YES, everywhere("a", "b", "c")),
    "callback of a chord": (lambda: linked(chord([s("a")], s("b")), s("c")), YES, everywhere("a", "b", "c")),
    "error callbacks": (
        lambda: linked(s("a", task="fail"), b=s("b", task="told"), c=s("c", False, task="told")),
        YES,
        {"a": True, "b": True, "c": False},
    ),
    "error callback of a chain": (
        lambda: linked(chain(s("a"), s("b", task="fail"), s("never")), c=s("c", task="told")),
        YES,
        everywhere("a", "b", "c"),
    ),
    "error callback of a chord": (
        lambda: chord([s("a", task="fail")], linked(s("never"), b=s("b", task="told"))),
        YES,
        everywhere("a", "b"),
    ),
    "map and starmap": (
        lambda: chain(s("a"), item().map([1, 2]), item().starmap([(1, 2)])),
        YES,
        {"a": True, "celery.map": True, "celery.starmap": True},
    ),
    "map that says otherwise": (
        lambda: chain(s("a"), item().map([1, 2]).set(on_demand=False), s("b")),
        YES,
        {"a": True, "celery.map": False, "b": True},
    ),
    "chunks": (lambda: item().chunks([(1,), (2,), (3,)], 2), YES, {"celery.starmap": True}),
    "chunks, by their own option": (
        lambda: item().chunks([(1,), (2,), (3,)], 2).set(on_demand=True),
        {},
        {"celery.starmap": True},
    ),
    "chunks within a chain": (
        lambda: chain(s("a"), item().chunks([(1,), (2,)], 1)),
        YES,
        {"a": True, "celery.chunks": True, "celery.starmap": True},
    ),
    "a retried step": (lambda: chain(s("a"), s("b", task="retried"), s("c")), YES, everywhere("a", "b", "c")),
    "a replaced step": (
        lambda: chain(s("a"), by("replaced", "b", chain(s("c"), s("d", False), s("e"))), s("f")),
        YES,
        {"a": True, "b": True, "c": True, "d": False, "e": True, "f": True},
    ),
    "a replaced step, with a mode of its own": (
        lambda: chain(s("a"), by("replaced", "b", s("c")).set(on_demand=True), s("d")),
        {},
        {"a": None, "b": True, "c": True, "d": None},
    ),
    "a step that a group replaces": (
        lambda: chain(s("a"), by("replaced", "b", group(s("c"), s("d"))), s("e")),
        YES,
        everywhere("a", "b", "c", "d", "celery.accumulate", "e"),
    ),
    "a step with a mode of its own that a group replaces": (
        lambda: chain(s("a"), by("replaced", "b", group(s("c"), s("d"))).set(on_demand=True), s("e")),
        {},
        {"a": None, "b": True, "c": True, "d": True, "celery.accumulate": True, "e": None},
    ),
    "a chord that grows": (
        lambda: chord([by("grows", "a", s("b")), by("grows", "c", s("d"), lazy=True)], s("e")),
        YES,
        everywhere("a", "b", "c", "d", "e"),
    ),
}


def test_canvas_keeps_its_mode(steps, subtests):
    for name, form in itertools.product(CANVASES, ["signatures", "dicts"]):
        with subtests.test(f"{name}, as {form}"):
            check_modes(steps, name, form)


def check_modes(steps, name, form):
    make, options, expected = CANVASES[name]
    canvas = make()
    if form == "dicts" and canvas.name == "celery.chunks":  # Celery makes a task of chunks, which makes the group
        expected = expected | {"celery.chunks": True}
    as_dict = dumps(canvas) if "generator" not in name else None
    if form == "dicts":
        canvas = signature(json.loads(dumps(canvas)), app=steps.app)
    steps.app.backend.client.delete(steps.BEGAN)
    canvas.apply_async(**options)
    wait_until(lambda: {name for name, _ in began(steps)} >= expected.keys(), 20, "they begin")
    wait_until(lambda: all_have_ended(steps), 20, "nothing else begins")
    assert began(steps) == set(expected.items())
    if as_dict and form == "signatures" and options:
        assert dumps(canvas) == as_dict, "a signature is its owner's"


def made_up(rng, numbers, depth=3):
    """Return a random canvas, and a function from the mode of the canvas to the mode of each task."""
    kind = rng.choice(["task"] * 3 * (depth < 3) + ["chain", "group", "chord", "pipes"] * (depth > 0))
    own = rng.choice([None, None, None, True, False]) if depth < 3 else None
    name, parts = f"task-{next(numbers)}", []
    if kind == "task":
        sig = s(name)
        if depth and rng.random() < 0.2:
            parts.append(made_up(rng, numbers, depth - 1))
            sig.link(parts[0][0])
    else:
        parts = [made_up(rng, numbers, depth - 1) for _ in range(rng.choice([2, 3]))]
        sigs = [sig for sig, _ in parts]
        if kind == "pipes":
            sig = functools.reduce(operator.or_, sigs)
        elif kind == "chord":
            sig = chord(sigs[1:], sigs[0])
        else:
            sig = {"chain": chain, "group": group}[kind](sigs)
    if own is not None:
        sig.set(on_demand=own)

    def expected(mode):
        mode = mode if own is None else own
        found = {name: mode} if kind == "task" else {}
        for _, of_part in parts:
            found |= of_part(mode)
        return found

    return sig, expected


def test_any_canvas_keeps_its_mode(steps, subtests):
    for seed in range(40):
        with subtests.test(f"{seed=}"):
            check_modes_of_any_canvas(steps, seed)


def check_modes_of_any_canvas(steps, seed):
    rng = random.Random(seed)
    canvas, expected = made_up(rng, itertools.count())
    mode = rng.choice([None, True, False])
    if rng.random() < 0.4:
        canvas = signature(json.loads(dumps(canvas)), app=steps.app)
    steps.app.backend.client.delete(steps.BEGAN)
    canvas.apply_async(**({} if mode is None else {"on_demand": mode}))
    wait_until(lambda: all_have_ended(steps), 20, "all have ended")
    missing = set(expected(mode).items()) ^ began(steps)
    if celery.VERSION < (5, 7):  # older versions leave some canvases unfinished
        missing &= began(steps)
    assert not missing
