"""The exact engine: the real library on a separate server with a fake clock. It supports every rule.

A key provides the time to the functions, in place of the server's clock. An invocation takes no time, jobs are claimed
when a slot is free and not prefetched, and each tick runs exactly when it is due. A run of merged calls takes as long
as the longest call.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import redis

from ..broker.inflight import InFlightCommands
from ..clock import SECOND_US
from ..embedded.server import EmbeddedServer
from ..lua.library import Argument, FunctionCall, Library, function_call, load_library
from ..policy.slot_math import NOTHING
from ..scheduler import runner
from ..scheduler.messages import EndArguments, JoinArguments
from ..scheduler.scheduler import Scheduler
from ..schema import job_record
from ..schema.job_record import NewJob
from ..schema.keys import OF_TYPE, Keys
from ..schema.values import decode_number, decode_part, encode_part
from ..settings.wire import NAME_IN_REDIS
from .head_starts import START_US, HeadStarts, millionths
from .scenario import Arrival, Scenario, Schedule, closed_keys, rules_text
from .simulation import NEVER, Claimed, Simulation

#: Redis key of the fake time.
CLOCK = "the-time-passed-in"


def _replace_in(text: str, old: str, new: str) -> str:
    """Return the source *text* of a library with *new* instead of *old*, which it must contain."""
    assert old in text
    return text.replace(old, new)


def at_fake_time(text: str) -> str:
    """Return the source of a library with the fake time instead of the server's."""
    return _replace_in(text, 'redis.call("TIME")', f'redis.call("HMGET", "{CLOCK}", "s", "us")')


CLOCKED = load_library().changed(at_fake_time)
#: A command that sets the fake time.
Command = tuple[Argument, ...]


def setting_command(now_us: int) -> Command:
    seconds, rest_us = divmod(now_us, SECOND_US)
    return "HSET", CLOCK, "s", seconds, "us", rest_us


class FakeClockScheduler(Scheduler):
    """A scheduler whose functions run at a time that its user sets."""

    library: Library = CLOCKED

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self.now_us = START_US
        self.advance(0)

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * SECOND_US)
        self.client.execute_command(*setting_command(self.now_us))


#: Redis key of a list with all claims in order, which only this engine has.
_CLAIMS = "the-claims-made"
#: The call in `claims.grant` after a job was granted to a worker.
_GRANT_CALL = "view:occupy(worker, type)"
#: The call that adds the claim to the list.
_LIST_CLAIM = f'redis.call("RPUSH", "{_CLAIMS}", id, worker, fence)'
#: Number of list entries read together, more than one invocation adds.
_MAX_READ = 3_000
#: Redis keys whose first entry has the time at which a tick lets jobs start.
_DUE_KEYS = ("scheduled", "due_keys")
#: Settings passed to the server: without the settings that functions derive, and without the order of an app.
_PASSED_SETTINGS = {*NAME_IN_REDIS.values()} - {"priority_order"}
#: Workers of this engine send no heartbeats, so none may be considered dead.
_NEVER_DEAD = {"worker_timeout_us": str(10**15)}
#: Digits of the numbers in ids, so that ids sort like the numbers.
_DIGITS = 9


def schedule_exact(
    scenario: Scenario, progress: Iterable[object] | None = None, *, client: redis.Redis | None = None
) -> Schedule:
    """Return the schedule of *scenario*. *progress*: stepped per arriving job.

    *client*: client of a server to use, which is emptied. By default a server is started; EmbeddedServerError is raised
    if none is installed.
    """
    if client is None:
        with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
            return schedule_exact(scenario, progress, client=client)
    with closing(ExactEngine(scenario, client)) as engine:
        return Simulation(scenario, engine).run(progress)


class _ExactScheduler(FakeClockScheduler):
    """A scheduler with a fake clock that returns the claims of each invocation."""

    library = CLOCKED.changed(lambda text: _replace_in(text, _GRANT_CALL, f"{_GRANT_CALL} {_LIST_CLAIM}"))

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self.in_flight = InFlightCommands(client.connection_pool)
        self._read_inboxes: set[str] = set()

    def claims_after(self, now_us: int, call: FunctionCall, extra: Sequence[Command]) -> tuple[list[Any], list[Any]]:
        """Invoke a function at *now_us*. Return its claims as a flat list of id, worker, fencing token.

        The second list has the replies to the *extra* commands.
        """
        commands = [setting_command(now_us), self.command(call), ("LPOP", _CLAIMS, _MAX_READ), *extra]
        if self._read_inboxes:  # no worker reads the inboxes
            commands.append(("UNLINK", *self._read_inboxes))
        self.in_flight.send(commands)
        _, reply, claims, *extra_replies = self.in_flight.receive()
        unfilled = reply[call[0].reply.index("unfilled")]
        if unfilled:
            self._fill_slots(unfilled)
            claims = [*(claims or ()), *(self.client.lpop(_CLAIMS, _MAX_READ) or ())]
            extra_replies = [self.client.execute_command(*command) for command in extra]
        flat = claims or []
        self._read_inboxes = {self.keys.key("inbox", worker.decode()) for worker in flat[1::3]}
        return flat, extra_replies


_numbers = count()


class ExactEngine:
    """A `SimulatedFleet` on an emptied server."""

    def __init__(self, scenario: Scenario, client: redis.Redis) -> None:
        client.flushall()
        # Each schedule is a new fleet: server functions cache values by fleet and simulated time.
        self._scenario, self._keys = scenario, Keys(namespace=f"lab-{next(_numbers)}")
        self.head_starts = HeadStarts(scenario)
        self._client: Any = client  # as in `Runner`
        self._scheduler = _ExactScheduler(client, self._keys)
        self._scheduler.load()
        self._position_of = {arrival.number: index for index, arrival in enumerate(scenario.arrivals)}
        self._held: dict[int, tuple[str, str]] = {}  # position of a claim's first arrival -> id, fencing token
        self._sequence = 0
        may_be_due = any(rules_text(arrival) for arrival in scenario.arrivals)
        self._due_queries = [("ZRANGE", self._keys.key(name), 0, 0, "WITHSCORES") for name in _DUE_KEYS if may_be_due]
        self._next_tick_us = NEVER
        begins_us = [arrival.held_since_us for arrival in scenario.arrivals if arrival.held_by is not None]
        begins_us += [arrival.since_us for arrival in scenario.arrivals[:1]]
        self._scheduler.client.execute_command(*setting_command(START_US + min([0, *begins_us]) - 1))
        settings = {name: text for name, text in scenario.settings.items() if name in _PASSED_SETTINGS}
        if scenario.settings.get("priority_reversed") == "1":
            settings["priority_order"] = "lower-first"
        self._scheduler.configure({**settings, **_NEVER_DEAD, **self._limits(of_types=False)})

    def _limits(self, *, of_types: bool) -> dict[str, str]:
        """Return the settings of limits and reserves, without *of_types* only the limits of keys."""
        entries = self._scenario.settings.get("limits", "").split()
        if not of_types:
            entries = [entry for entry in entries if not decode_part(entry).startswith(OF_TYPE)]
        limits = " ".join([*closed_keys(self._scenario.arrivals), *entries]) or " "
        return {"limits": limits, "reserve": self._scenario.settings.get("reserve", "") if of_types else ""}

    def enforce(self) -> None:
        self._scheduler.configure(self._limits(of_types=True))
        for type_ in self._scenario.paused:
            self._scheduler.pause(type_ if type_ == "*" else f"type:{encode_part(type_)}")
        self._scheduler.tick()  # counts the running jobs of types with a limit, or with a reserve

    def close(self) -> None:
        self._scheduler.in_flight.give_back()

    def join(self, worker: int, now_us: int) -> Sequence[Claimed]:
        traced = self._scenario.workers[worker]
        joining = JoinArguments(_id_of(worker), _id_of(worker), traced.types, traced.slots)
        return self._call(now_us, function_call("join", **joining.arguments))

    def drain(self, worker: int, now_us: int) -> None:
        held = self._client.hgetall(self._keys.key("claims", _id_of(worker)))
        rest = [argument for pair in held.items() for argument in (*pair, -1)]
        slots = self._scenario.workers[worker].slots
        call = function_call("sync", rest, worker=_id_of(worker), slots_in_all=slots, other=0, draining=True)
        self._call(now_us, call)

    def leave(self, worker: int, now_us: int) -> Sequence[Claimed]:
        claims = self._call(now_us, function_call("leave", worker=_id_of(worker)))
        for type_ in self._scenario.workers[worker].types if self.head_starts.learns else ():
            if not self._client.hexists(self._keys.key("durations"), encode_part(type_)):
                self.head_starts.forget(type_)
        return claims

    def arrive(self, position: int, now_us: int) -> Sequence[Claimed]:
        arrival = self._scenario.arrivals[position]
        rules = rules_text(arrival)
        is_older = arrival.enqueued_us < now_us
        job = NewJob(
            job_record.with_suffix(_id_of(arrival.number), rules),
            arrival.type,
            "",
            on_demand=arrival.on_demand,
            priority=arrival.priority,
            delay_us=int(is_older),
            task_id=_id_of(arrival.number),
            task_name=arrival.task or "",
            rules=rules,
            due=self._due(arrival, arrival.enqueued_us - is_older),
        ).checked()
        (publishing,) = runner.publish_invocations([job])
        if not is_older:
            claims: Sequence[Claimed] = self._call(now_us, publishing)
        else:  # a scheduled job whose time has already come, so it has the intended age
            self._call(arrival.enqueued_us - 1, publishing)
            claims = self.tick(now_us)
        if self.head_starts.are_possible:
            head = decode_number(self._client.hget(self._keys.key("job", job.id), "head"))
            self.head_starts.by_number.update({arrival.number: head} if head > 0 else {})
        return claims

    def _due(self, arrival: Arrival, published_us: int) -> str:
        """Return field "due" of the job of *arrival*. A due time stands for a known head start."""
        within_us, deadline_us, size = arrival.start_within_us, arrival.deadline_us, arrival.size
        if arrival.head_us is not None:
            within_us, deadline_us = max(0, self.head_starts.target_wait_us - arrival.head_us), None
        words = [
            None if within_us is None else f"w{within_us}",
            None if deadline_us is None else f"d{arrival.enqueued_us + deadline_us - published_us}",
            None if size is None else f"s{millionths(size)}",
        ]
        return " ".join(word for word in words if word is not None)

    def end(self, worker: int, positions: Sequence[int], now_us: int) -> Sequence[Claimed]:
        self._sequence += 1
        for position in positions if self.head_starts.learns else ():
            self._learn(self._scenario.arrivals[position])
        ends = [EndArguments(*self._held.pop(position), "acked") for position in positions]
        (release,) = runner.ack_arguments(_id_of(worker), (), ends, self._sequence, True, NOTHING)
        return self._call(now_us, release)

    def _learn(self, arrival: Arrival) -> None:
        """Store the learned run times, which no worker of this engine reports."""
        learned, usual_us = self.head_starts.learn(arrival)
        self._client.hset(self._keys.key("durations"), encode_part(arrival.type), usual_us)
        if learned is not None:
            self._client.hset(self._keys.key("run_times"), encode_part(arrival.task or ""), learned.text)

    def tick(self, now_us: int) -> Sequence[Claimed]:
        return self._call(now_us, function_call("tick"))

    def next_tick_us(self) -> int:
        return self._next_tick_us

    def _call(self, now_us: int, call: FunctionCall) -> list[Claimed]:
        claimed, due = self._scheduler.claims_after(START_US + now_us, call, self._due_queries)
        # A reply has one member with its score: a pair in a list or, in protocol version 2, both without the pair.
        scores = [first[0][1] if len(first) == 1 else first[1] for first in due[: len(self._due_queries)] if first]
        times = [int(score) - START_US for score in scores]
        self._next_tick_us = max(now_us, min(times, default=NEVER))  # work that is due immediately has an old time
        claims = []
        for job_id, worker, fence in zip(claimed[::3], claimed[1::3], claimed[2::3], strict=True):
            # A batch has the ids of its calls.
            is_batch = job_record.is_batch(job_id.decode())
            calls = self._client.zrange(self._keys.key("callers", job_id.decode()), 0, -1) if is_batch else [job_id]
            positions = tuple(self._position_of[_number_in(call_id)] for call_id in calls)
            self._held[positions[0]] = job_id.decode(), fence.decode()
            claims.append((_number_in(worker), positions))
        return claims


def _id_of(number: int) -> str:
    return f"{number:0{_DIGITS}}"


def _number_in(job_id: bytes) -> int:
    return decode_number(job_id[:_DIGITS])
