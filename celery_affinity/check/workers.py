"""Facts and findings about the workers on the broker, regardless of their transport."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from kombu import Producer

from ..clock import SECOND_US
from ..scheduler.reader import Reader
from ..schema import constants
from ..versions import versions
from .facts import Facts, FleetFacts, WorkerAnswer
from .finding import Level, Problem, Problems, all_facts, finding, fleet_of, join_names
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
        clock_s, their_versions = info.get("time"), info.get("versions")
        return WorkerAnswer(
            name=name,
            queues=tuple(_queue_names(consumed if isinstance(consumed, list) else ())),
            ours=ours is not None,
            id=info.get("worker"),
            app=info.get("app"),
            namespace=info.get("namespace"),
            guard=info.get("guard"),
            versions=their_versions if isinstance(their_versions, dict) else {},
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


@finding("remote-control", Level.WARNING, all_facts)
def remote_control(facts: Facts) -> Problems:
    """The workers were not queried: the broker's user may not query them (an observer may not), or the server uses 95%
    of its `maxmemory` and would refuse the answers. Stock workers, versions and clocks are not checked.
    """
    if facts.fleet is None or facts.fleet.not_asked is None:
        return
    is_full = facts.server is not None and facts.server.has_no_room_for_replies
    yield Problem(
        f"The workers {'were not' if is_full else 'could not be'} queried ({facts.fleet.not_asked}"
        f"{', and would refuse their answers' if is_full else ''}): workers with stock Celery's transport, other "
        "versions and wrong clocks remain unseen.",
        "Free memory on the server first, then run this again."
        if is_full
        else "Run this with a user that may use remote control, such as the workers' user.",
    )


@finding("no-workers", Level.WARNING, fleet_of)
def no_workers(fleet: FleetFacts) -> Problems:
    """No worker is alive in this namespace."""
    if not fleet.members and not fleet.elsewhere and fleet.elsewhere is not None:
        yield Problem(
            f"No worker is alive in namespace {fleet.namespace!r} of {fleet.app.broker}: published jobs wait.",
            "Start a worker: celery -A ... worker -Q " + ",".join(sorted(fleet.app.declared) or ["celery"]),
        )


@finding("stock-worker", Level.WARNING, fleet_of)
def stock_worker(fleet: FleetFacts) -> Problems:
    """A live worker consumes a scheduled queue with another transport. While it is free, it gets what stock producers
    send; it never gets scheduled jobs. This is fine while a fleet moves.
    """
    ours = {*fleet.app.declared, *fleet.pending, *fleet.served}
    for answer in fleet.answers:
        shared = sorted(ours.intersection(answer.queues))
        if not answer.ours and shared:
            yield Problem(
                f"Worker {answer.name} consumes {join_names(shared)} with another transport: it gets no scheduled "
                "jobs. While it is free, it gets messages from producers with that transport.",
                'Start it again with broker_transport = "celery_affinity:Transport", as the other workers have it.',
            )


@finding("worker-elsewhere", Level.WARNING, fleet_of)
def worker_elsewhere(fleet: FleetFacts) -> Problems:
    """A live worker of this app has another `namespace`: it gets no jobs of this namespace."""
    if fleet.elsewhere is None:
        return
    members = {member.id for member in fleet.members} | fleet.elsewhere
    for answer in fleet.answers:
        if answer.id is not None and answer.id not in members and answer.app == fleet.app.name:
            yield Problem(
                f"Worker {answer.name} of this app is in namespace {answer.namespace!r}, this app's jobs are in "
                f"{fleet.namespace!r}: it gets none of them.",
                "Give both the same namespace in broker_transport_options.",
            )


@finding("worker-silent", Level.WARNING, fleet_of, in_cohorts=True)
def worker_silent(fleet: FleetFacts) -> Problems:
    """A worker missed two heartbeats. After `affinity_worker_timeout` its jobs go to other workers."""
    for member in fleet.members:
        if constants.is_heartbeat_late(member.last_heartbeat_s, fleet.heartbeat_s):
            yield Problem(
                f"Worker {member.name} was last heard of {member.last_heartbeat_s:.0f} s ago; heartbeats are due every "
                f"{fleet.heartbeat_s:g} s. After affinity_worker_timeout its jobs go to other workers.",
                "Check whether its machine is gone, suspended, cut off, or out of CPU.",
            )


@finding("worker-stalled", Level.WARNING, fleet_of, in_cohorts=True)
def worker_stalled(fleet: FleetFacts) -> Problems:
    """A worker's event loop is blocked: it gets no jobs until the loop runs again."""
    for member in fleet.members:
        if member.stalled:
            yield Problem(
                f"The event loop of worker {member.name} is blocked: the worker lives and keeps its running jobs, "
                "but gets no new jobs.",
                "Find out what blocks its main process (py-spy dump): a signal handler, a control command, a full disk "
                "under its log. If it stays blocked, restart the worker.",
            )


@finding("worker-mute", Level.NOTE, fleet_of)
def worker_mute(fleet: FleetFacts) -> Problems:
    """A live worker did not answer: its solo pool is busy, remote control is off, or the answer takes longer than
    `--timeout`.
    """
    if fleet.not_asked is not None:
        return
    answered = {answer.id for answer in fleet.answers} | {a.name for a in fleet.answers if a.ours and a.id is None}
    mute = sorted(m.name for m in fleet.members if m.id not in answered and m.name not in answered and not m.stalled)
    if mute:
        yield Problem(
            f"Alive, but not answering remote control: {join_names(mute)}. Their versions and clocks are unknown.",
            "A solo pool answers between two tasks; with worker_enable_remote_control = False, a worker never answers. "
            "Otherwise wait longer, with --timeout.",
        )


@finding("worker-idle", Level.WARNING, fleet_of)
def worker_idle(fleet: FleetFacts) -> Problems:
    """A worker of this app serves no type of a task or of a waiting job. Often `-Q` was forgotten."""
    if not fleet.app.declared:
        return
    wanted = {*fleet.app.declared, *fleet.pending}
    queues = {answer.id: answer.queues for answer in fleet.answers if answer.id and answer.app == fleet.app.name}
    for member in fleet.members:
        # A worker that consumes more queues than it serves is draining, or has queues that are not scheduled.
        if member.id in queues and wanted.isdisjoint(member.types) and set(queues[member.id]) <= set(member.types):
            serves = f"serves {join_names(member.types)}, which no task of this app declares and no job waits for"
            yield Problem(
                f"Worker {member.name} {serves if member.types else 'serves no type'}: it has nothing to do.",
                f"Start it with -Q and some of: {join_names(sorted(fleet.app.declared), 20)}.",
            )


@finding("namesakes", Level.WARNING, fleet_of)
def namesakes(fleet: FleetFacts) -> Problems:
    """Two live workers have the same node name."""
    names = [member.name for member in fleet.members]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(
            f"{names.count(name)} live workers have the node name {name}: remote control and logs cannot tell them "
            "apart.",
            "Give each worker its own -n, such as -n pdf1@%h.",
        )


@finding("no-guard", Level.NOTE, all_facts)
def no_guard(facts: Facts) -> Problems:
    """`affinity_guard = False`: a killed worker is noticed only after `affinity_worker_timeout`."""
    answers = [answer for answer in (facts.fleet.answers if facts.fleet else ()) if answer.guard is not None]
    names = [answer.name for answer in answers if not answer.guard]
    if names or (not answers and not facts.app.settings.guard):
        whose = f"Without a guard (affinity_guard = False): {join_names(names)}" if names else "affinity_guard is False"
        yield Problem(
            f"{whose}. A worker that is killed is noticed after affinity_worker_timeout, not within a second.",
            "Set affinity_guard = True, unless about 15 MB per worker are too much.",
        )


@finding("affinity-versions", Level.WARNING, fleet_of)
def affinity_versions(fleet: FleetFacts) -> Problems:
    """Some workers run another version of celery_affinity than this process."""
    for difference in _differences(fleet, ["celery_affinity"]):
        yield Problem(difference, "Finish the upgrade.")


@finding("versions", Level.NOTE, fleet_of)
def other_versions(fleet: FleetFacts) -> Problems:
    """Some workers run another version of celery, kombu, redis-py or Python."""
    for difference in _differences(fleet, [name for name in versions() if name != "celery_affinity"]):
        yield Problem(
            difference,
            "This is fine during an upgrade. Otherwise install the same versions everywhere, from one lock file.",
        )


def _differences(fleet: FleetFacts, packages: Iterable[str]) -> Iterator[str]:
    """Yield the packages whose versions differ, with the workers that have other versions."""
    for package in packages:
        own = versions().get(package, "unknown")
        others: dict[str, list[str]] = {}
        for answer in fleet.answers:
            version = answer.versions.get(package) if answer.ours else None
            if version is not None and version != own:
                others.setdefault(version, []).append(answer.name)
        if others:
            there = "; ".join(f"{version} on {join_names(sorted(names))}" for version, names in sorted(others.items()))
            yield f"{package} is {own} here, and {there}."


@finding("clock-worker", Level.WARNING, fleet_of)
def clock_worker(fleet: FleetFacts) -> Problems:
    """A worker's clock is more than 1 s off the server's. Its events are off by the same time, and so is each absolute
    `eta=`, `expires=` or `deadline=` of jobs that it publishes or takes over from stock producers.
    """
    for answer in fleet.answers:
        if answer.clock_ahead_s is not None and abs(answer.clock_ahead_s) > CLOCK_S:
            yield Problem(
                f"The clock of worker {answer.name} is {apart(answer.clock_ahead_s)} the server's: times in events and "
                "logs, an absolute eta=, expires= or deadline= of jobs that it publishes or takes over from stock "
                "producers are off by that time. Scheduling is not affected: it uses the server's clock.",
                "Synchronise the clocks of both machines (NTP).",
            )
