"""Facts and rules about the workers on the broker, regardless of their transport."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from celery import Celery
from kombu import Producer

from ..clock import SECOND_US
from ..scheduler.reader import Reader
from ..schema import constants
from .facts import AppFacts, Facts, FleetFacts, WorkerAnswer
from .finding import Finding, join_names
from .server import CLOCK_S, apart, outside_limits


def answers_of_workers(app: Celery, connection: Any, reader: Reader, within_s: float) -> tuple[WorkerAnswer, ...]:
    """Return the answers of all workers on the broker, regardless of their transport."""
    first_s = reader.now_us() / SECOND_US
    stats = _query(app, connection, "stats", within_s, None)
    if not stats:
        return ()
    queues = {name: reply for name, reply, _ in _query(app, connection, "active_queues", within_s, len(stats))}

    def answer(name: str, reply: dict[str, Any], took_s: float) -> WorkerAnswer:
        ours = reply.get("affinity")
        consumed = queues.get(name) or []
        info = ours if isinstance(ours, dict) else {}
        clock_s, versions = info.get("time"), info.get("versions")
        return WorkerAnswer(
            name=name,
            queues=tuple(_queue_names(consumed if isinstance(consumed, list) else ())),
            ours=ours is not None,
            id=info.get("worker"),
            app=info.get("app"),
            namespace=info.get("namespace"),
            guard=info.get("guard"),
            versions=versions if isinstance(versions, dict) else {},
            clock_ahead_s=outside_limits(clock_s, first_s, first_s + took_s) if isinstance(clock_s, float) else None,
        )

    return tuple(answer(*reply) for reply in stats if isinstance(reply[1], dict))


def _queue_names(queues: Iterable[Any]) -> Iterator[str]:
    """Yield the queue names in a worker's reply to `active_queues`."""
    for queue in queues:
        name = queue.get("name") if isinstance(queue, dict) else None
        if isinstance(name, str):
            yield name


def _query(
    app: Celery, connection: Any, command: str, within_s: float, limit: int | None
) -> list[tuple[str, Any, float]]:
    """Return (node name, reply, seconds until the reply) per worker. Celery's `inspect` would merge namesakes."""
    replies: list[tuple[str, Any, float]] = []
    began_s = time.monotonic()

    def collect(reply: object) -> None:
        if isinstance(reply, dict):  # another program can send anything
            replies.extend((name, content, time.monotonic() - began_s) for name, content in reply.items())

    mailbox = app.control.mailbox(connection)  # a copy, for this connection
    mailbox.producer_pool = _Producers(connection)
    mailbox.multi_call(command, timeout=within_s, limit=limit, callback=collect)
    return replies


class _Producers:
    """A pool of producers for a mailbox. The app's own pool has connections with the app's transport."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @contextmanager
    def acquire(self) -> Iterator[Producer]:
        yield _ProducerThatTriesOnce(self._connection, auto_declare=False)


class _ProducerThatTriesOnce(Producer):
    """A producer for kombu's mailbox, whose producers otherwise retry forever."""

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        return super().publish(*args, **{**kwargs, "retry": False})


WorkersRule = Callable[[Facts], Iterator[Finding]]


def rule_of_fleet(rule: Callable[[FleetFacts], Iterator[Finding]]) -> WorkersRule:
    """Convert a rule about a fleet to a rule about facts, without findings if the fleet is unknown."""

    @wraps(rule)
    def of_facts(facts: Facts) -> Iterator[Finding]:
        if facts.fleet is not None:
            yield from rule(facts.fleet)

    return of_facts


def rule_of_fleet_and_app(rule: Callable[[FleetFacts, AppFacts], Iterator[Finding]]) -> WorkersRule:
    """Convert a rule about a fleet and an app to a rule about facts, without findings if the fleet is unknown."""

    @wraps(rule)
    def of_facts(facts: Facts) -> Iterator[Finding]:
        if facts.fleet is not None:
            yield from rule(facts.fleet, facts.app)

    return of_facts


def remote_control(facts: Facts) -> Iterator[Finding]:
    if facts.fleet is None or facts.fleet.not_asked is None:
        return
    is_full = facts.server is not None and facts.server.has_no_room_for_replies
    yield Finding(
        "remote-control",
        f"The workers {'were not' if is_full else 'could not be'} asked ({facts.fleet.not_asked}"
        f"{', and would refuse their answers' if is_full else ''}): workers with stock Celery's transport, other "
        "versions and wrong clocks remain unseen.",
        "Make room on the server first, then run this again."
        if is_full
        else "Run this with a user that may use remote control, such as the workers' user.",
    )


@rule_of_fleet_and_app
def no_workers(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    if not fleet.members and not fleet.elsewhere and fleet.elsewhere is not None:
        yield Finding(
            "no-workers",
            f"No worker is alive in namespace {fleet.namespace!r} of {app.broker}: published jobs wait.",
            "Start a worker: celery -A ... worker -Q " + ",".join(sorted(app.declared) or ["celery"]),
        )


@rule_of_fleet_and_app
def stock_worker(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    ours = {*app.declared, *fleet.pending, *fleet.served}
    for answer in fleet.answers:
        shared = sorted(ours.intersection(answer.queues))
        if not answer.ours and shared:
            yield Finding(
                "stock-worker",
                f"Worker {answer.name} consumes {join_names(shared)} with another transport: it gets no scheduled "
                "jobs. While it is free, it gets messages from producers with that transport.",
                'Start it again with broker_transport = "celery_affinity:Transport", as the other workers have it.',
            )


@rule_of_fleet_and_app
def worker_elsewhere(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    if fleet.elsewhere is None:
        return
    members = {member.id for member in fleet.members} | fleet.elsewhere
    for answer in fleet.answers:
        if answer.id is not None and answer.id not in members and answer.app == app.name:
            yield Finding(
                "worker-elsewhere",
                f"Worker {answer.name} of this app is in namespace {answer.namespace!r}, this app's jobs are in "
                f"{fleet.namespace!r}: it gets none of them.",
                "Give both the same namespace in broker_transport_options.",
            )


@rule_of_fleet
def worker_silent(fleet: FleetFacts) -> Iterator[Finding]:
    for member in fleet.members:
        if constants.is_heartbeat_late(member.last_heartbeat_s, fleet.heartbeat_s):
            yield Finding(
                "worker-silent",
                f"Worker {member.name} was last heard of {member.last_heartbeat_s:.0f} s ago; heartbeats are due every "
                f"{fleet.heartbeat_s:g} s. After affinity_worker_timeout its jobs go to other workers.",
                "Check whether its machine is gone, suspended, cut off, or out of CPU.",
            )


@rule_of_fleet
def worker_stalled(fleet: FleetFacts) -> Iterator[Finding]:
    for member in fleet.members:
        if member.stalled:
            yield Finding(
                "worker-stalled",
                f"The event loop of worker {member.name} stands still: the worker lives and keeps its running jobs, "
                "but gets no new jobs.",
                "Find out what blocks its main process (py-spy dump): a signal handler, a control command, a full disk "
                "under its log. If it stays blocked, restart the worker.",
            )


@rule_of_fleet
def worker_mute(fleet: FleetFacts) -> Iterator[Finding]:
    if fleet.not_asked is not None:
        return
    answered = {answer.id for answer in fleet.answers} | {a.name for a in fleet.answers if a.ours and a.id is None}
    mute = sorted(m.name for m in fleet.members if m.id not in answered and m.name not in answered and not m.stalled)
    if mute:
        yield Finding(
            "worker-mute",
            f"Alive, but not answering remote control: {join_names(mute)}. Their versions and clocks are unknown.",
            "A solo pool answers between two tasks; with worker_enable_remote_control = False, a worker never answers. "
            "Otherwise wait longer, with --timeout.",
        )


@rule_of_fleet_and_app
def worker_idle(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    if not app.declared:
        return
    wanted = {*app.declared, *fleet.pending}
    queues = {answer.id: answer.queues for answer in fleet.answers if answer.id and answer.app == app.name}
    for member in fleet.members:
        # A worker that consumes more queues than it serves is draining, or has queues that are not scheduled.
        if member.id in queues and wanted.isdisjoint(member.types) and set(queues[member.id]) <= set(member.types):
            serves = f"serves {join_names(member.types)}, which no task of this app declares and no job waits for"
            yield Finding(
                "worker-idle",
                f"Worker {member.name} {serves if member.types else 'serves no type'}: it has nothing to do.",
                f"Start it with -Q and some of: {join_names(sorted(app.declared), 20)}.",
            )


@rule_of_fleet
def namesakes(fleet: FleetFacts) -> Iterator[Finding]:
    names = [member.name for member in fleet.members]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding(
            "namesakes",
            f"{names.count(name)} live workers have the node name {name}: remote control and logs cannot tell them "
            "apart.",
            "Give each worker its own -n, such as -n pdf1@%h.",
        )


def no_guard(facts: Facts) -> Iterator[Finding]:
    answers = [answer for answer in (facts.fleet.answers if facts.fleet else ()) if answer.guard is not None]
    names = [answer.name for answer in answers if not answer.guard]
    if names or (not answers and not facts.app.guard):
        whose = f"Without a guard (affinity_guard = False): {join_names(names)}" if names else "affinity_guard is False"
        yield Finding(
            "no-guard",
            f"{whose}. A worker that is killed is noticed after affinity_worker_timeout, not within a second.",
            "Set affinity_guard = True, unless about 15 MB per worker are too much.",
        )


@rule_of_fleet_and_app
def affinity_versions(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    yield from _other_versions(fleet, app, "affinity-versions", ("celery_affinity",), "Finish the upgrade.")


@rule_of_fleet_and_app
def other_versions(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    packages = tuple(name for name in app.versions if name != "celery_affinity")
    todo = "This is fine during an upgrade. Otherwise install the same versions everywhere, from one lock file."
    yield from _other_versions(fleet, app, "versions", packages, todo)


def _other_versions(
    fleet: FleetFacts, app: AppFacts, id_: str, packages: tuple[str, ...], todo: str
) -> Iterator[Finding]:
    for package in packages:
        own = app.versions.get(package, "unknown")
        others: dict[str, list[str]] = {}
        for answer in fleet.answers:
            version = answer.versions.get(package) if answer.ours else None
            if version is not None and version != own:
                others.setdefault(version, []).append(answer.name)
        if others:
            there = "; ".join(f"{version} on {join_names(sorted(names))}" for version, names in sorted(others.items()))
            yield Finding(id_, f"{package} is {own} here, and {there}.", todo)


@rule_of_fleet
def clock_worker(fleet: FleetFacts) -> Iterator[Finding]:
    for answer in fleet.answers:
        if answer.clock_ahead_s is not None and abs(answer.clock_ahead_s) > CLOCK_S:
            yield Finding(
                "clock-worker",
                f"The clock of worker {answer.name} is {apart(answer.clock_ahead_s)} the server's: times in events and "
                "logs, an absolute eta= or expires= of jobs that it publishes or takes over from stock producers are "
                "off by that time. Scheduling is not affected: it uses the server's clock.",
                "Synchronise the clocks of both machines (NTP).",
            )


RULES = (
    remote_control,
    no_workers,
    stock_worker,
    worker_elsewhere,
    worker_silent,
    worker_stalled,
    worker_mute,
    worker_idle,
    namesakes,
    no_guard,
    affinity_versions,
    other_versions,
    clock_worker,
)
