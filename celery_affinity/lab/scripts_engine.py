"""The library of the arrows at a time that is passed in: a key has it, in place of the server's clock.

The exact engine: the real library, on a server of its own, at a clock of its own. It knows every rule.

A call of an arrow takes no time of the clock, jobs are claimed when a slot is free and not ahead, and a tick comes just
when it is due. A run of merged calls takes as long as the longest of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import redis

from ..broker.inflight import InFlightCommands
from ..clock import SECOND_US
from ..embedded.server import EmbeddedServer
from ..lua.library import Argument, Library, load_library, server_function
from ..policy.slot_math import NOTHING
from ..scheduler import runner
from ..scheduler.messages import EndArguments, JoinArguments
from ..scheduler.runner import FunctionCall
from ..scheduler.scheduler import Scheduler
from ..schema import job_record
from ..schema.job_record import NewJob
from ..schema.keys import OF_TYPE, Keys
from ..schema.values import decode_number, decode_part, encode_part
from ..settings.wire import NAME_IN_REDIS
from .scenario import Scenario, Schedule, closed_keys, has_rate_or_window, rules_text
from .simulation import NEVER, Claimed, Simulation

#: Key that holds the time for arrows.
CLOCK = "the-time-passed-in"

#: Time, µs, at which a clocked scheduler begins.
START_US = 1_800_000_000_000_000


def at_fake_time(text: str) -> str:
    """Return the text of a library whose arrows go by the time that is passed in."""
    found = text.replace('redis.call("TIME")', f'redis.call("HMGET", "{CLOCK}", "s", "us")')
    assert found != text
    return found


CLOCKED = load_library().changed(at_fake_time)

#: What a connection is sent to pass a time in.
Command = tuple[Argument, ...]


def setting_command(now_us: int) -> Command:
    """Return the command that sets the clock."""
    seconds, rest_us = divmod(now_us, SECOND_US)
    return "HSET", CLOCK, "s", seconds, "us", rest_us


class FakeClockScheduler(Scheduler):
    """A scheduler whose arrows run at a time that its user passes in."""

    library: Library = CLOCKED

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self.now_us = START_US
        self.advance(0)

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * SECOND_US)
        self.client.execute_command(*setting_command(self.now_us))


#: Key of a list of the claims, in their order: the judge's own.
_CLAIMS = "the-claims-made"

#: Where `claims.grant` has granted a job to a worker.
_GRANTED = "view:occupy(worker, type)"

#: Texts of the list that are read at once: those of more claims than one call makes.
_MOST_READ = 3_000

#: Keys whose first entry says when a tick lets jobs start.
_DUE = ("scheduled", "due_keys")

#: Settings that the judge passes on: not those that arrows make of others, nor the order in which an app counts.
_PASSED_ON = {*NAME_IN_REDIS.values()} - {"priority_order"}

#: No worker of the judge sends heartbeats: none is ever taken for dead.
_NEVER_DEAD = {"worker_timeout_us": str(10**15)}

#: Digits of the numbers in ids, whose order is that of the numbers.
_DIGITS = 9


def schedule_exact(
    scenario: Scenario, progress: Iterable[object] | None = None, *, client: redis.Redis | None = None
) -> Schedule:
    """Return what comes of *scenario*. *progress*: stepped for each job that arrives.

    *client*: of a server to use, which is emptied; by default a server is started, which raises EmbeddedServerError
    if there is none.
    """
    with (
        _server_of_its_own() if client is None else nullcontext(client) as its_client,
        closing(ExactEngine(scenario, its_client)) as judge,
    ):
        return Simulation(scenario, judge).run(progress)


@contextmanager
def _server_of_its_own() -> Iterator[redis.Redis]:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        yield client


def _that_tells(text: str) -> str:
    """Return the text of a library that lists each claim as well."""
    found = text.replace(_GRANTED, f'{_GRANTED} redis.call("RPUSH", "{_CLAIMS}", id, worker, fence)')
    assert found != text
    return found


class _Scheduler(FakeClockScheduler):
    """A clocked scheduler that returns the claims that a call makes."""

    library = CLOCKED.changed(_that_tells)

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        self._in_flight = InFlightCommands(client.connection_pool)
        self._read: set[str] = set()

    def give_back(self) -> None:
        self._in_flight.give_back()

    def claims_after(
        self, now_us: int, call: FunctionCall, more_at: int | None, further: Sequence[Command]
    ) -> tuple[list[Any], list[Any]]:
        """Call an arrow at *now_us*. Return the claims that follow: id, worker and fencing number of each, flat.

        *more_at*: where the reply names types to go on with; None: nowhere. A second value has the replies to
        *further* commands.
        """
        commands = [setting_command(now_us), self.command(call), ("LPOP", _CLAIMS, _MOST_READ), *further]
        if self._read:  # nobody reads the inboxes
            commands.append(("UNLINK", *self._read))
        self._in_flight.send(commands)
        _, reply, claims, *others = self._in_flight.receive()
        if more_at is not None and reply[more_at]:
            self._fill_slots(reply[more_at])
            claims = [*(claims or ()), *(self.client.lpop(_CLAIMS, _MOST_READ) or ())]
            others = [self.client.execute_command(*command) for command in further]
        found = claims or []
        self._read = {self.keys.key("inbox", worker.decode()) for worker in found[1::3]}
        return found, others


class ExactEngine:
    """A fleet, as `Timeline` asks it, on an emptied server."""

    def __init__(self, scenario: Scenario, client: redis.Redis) -> None:
        client.flushall()
        self._scenario, self._keys = scenario, Keys()
        self._client: Any = client  # as in `Runner`
        self._scheduler = _Scheduler(client, self._keys)
        self._scheduler.load()
        self._position_of = {each.number: nth for nth, each in enumerate(scenario.arrivals)}
        self._held: dict[int, tuple[str, str]] = {}  # position of a claim's first arrival -> id, fencing number
        self._sequence = 0
        may_be_due = any(has_rate_or_window(each) for each in scenario.arrivals)
        self._asks_what_is_due = [("ZRANGE", self._keys.key(name), 0, 0, "WITHSCORES") for name in _DUE if may_be_due]
        self._next_tick_us = NEVER
        self._begin()

    def _begin(self) -> None:
        arrivals = self._scenario.arrivals
        held_us = (each.held_since_us for each in arrivals if each.held_by is not None)
        self._client.execute_command(
            *setting_command(START_US + min([0, *(each.since_us for each in arrivals[:1]), *held_us]) - 1)
        )
        settings = {name: text for name, text in self._scenario.settings.items() if name in _PASSED_ON}
        settings |= {"reserve": "", "limits": self._limits(lambda word: not decode_part(word).startswith(OF_TYPE))}
        if self._scenario.settings.get("priority_reversed") == "1":
            settings["priority_order"] = "lower-first"
        self._scheduler.configure({**settings, **_NEVER_DEAD})

    def _limits(self, is_meant: Callable[[str], bool] = lambda _: True) -> str:
        """Return the setting of limits: those words of it that are meant, and the keys that are closed."""
        said = self._scenario.settings.get("limits", "").split()
        return " ".join([*closed_keys(self._scenario.arrivals), *filter(is_meant, said)]) or " "

    def enforce(self) -> None:
        self._scheduler.configure({"reserve": self._scenario.settings.get("reserve", ""), "limits": self._limits()})
        for type_ in self._scenario.paused:
            self._scheduler.pause(type_ if type_ == "*" else f"type:{encode_part(type_)}")
        self._scheduler.tick()  # counts the running jobs of types with a limit, or with a reserve

    def close(self) -> None:
        """Give the connection back."""
        self._scheduler.give_back()

    # -- what happens

    def join(self, worker: int, now_us: int) -> Sequence[Claimed]:
        its = self._scenario.workers[worker]
        joining = JoinArguments(_id_of(worker), _id_of(worker), its.types, its.slots)
        arguments = server_function("join").arguments(
            worker=joining.worker,
            name=joining.name,
            slots_in_all=joining.slots,
            other=0,
            profile=joining.profile,
            types=" ".join(joining.encoded_types),
            app="",
            stops=joining.stops,
            priority=joining.priority,
        )
        return self._call(now_us, (server_function("join"), arguments), more_at=0)

    def drain(self, worker: int, now_us: int) -> None:
        held = self._client.hgetall(self._keys.key("claims", _id_of(worker)))
        rest = [word for pair in held.items() for word in (*pair, -1)]
        slots = self._scenario.workers[worker].slots
        arguments = server_function("sync").arguments(
            rest, worker=_id_of(worker), slots_in_all=slots, other=0, draining=1
        )
        self._call(now_us, (server_function("sync"), arguments), more_at=2)

    def leave(self, worker: int, now_us: int) -> Sequence[Claimed]:
        return self._call(
            now_us, (server_function("leave"), server_function("leave").arguments(worker=_id_of(worker))), more_at=0
        )

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
            rules=rules,
        ).checked()
        (publishing,) = runner.publish_invocations([job])
        if not is_older:
            return self._call(now_us, publishing, more_at=1)
        # It waits for its time of then, which has come by now: so it is as old as it says.
        self._call(arrival.enqueued_us - 1, publishing, more_at=None)
        return self.tick(now_us)

    def end(self, worker: int, positions: Sequence[int], now_us: int) -> Sequence[Claimed]:
        self._sequence += 1
        ends = [EndArguments(*self._held.pop(each), "acked") for each in positions]
        (release,) = runner.ack_arguments(_id_of(worker), (), ends, self._sequence, True, NOTHING)
        return self._call(now_us, release, more_at=0)

    def tick(self, now_us: int) -> Sequence[Claimed]:
        return self._call(now_us, (server_function("tick"), server_function("tick").arguments()), more_at=-1)

    def next_tick_us(self) -> int:
        return self._next_tick_us

    # -- what follows

    def _call(self, now_us: int, call: FunctionCall, more_at: int | None) -> list[Claimed]:
        found, due = self._scheduler.claims_after(START_US + now_us, call, more_at, self._asks_what_is_due)
        times = [_score_of(first) - START_US for first in due[: len(self._asks_what_is_due)] if first]
        self._next_tick_us = max(now_us, min(times, default=NEVER))  # what is to be done at once has an old time
        claims = []
        for job_id, worker, fence in zip(found[::3], found[1::3], found[2::3], strict=True):
            positions = tuple(self._position_of[_number_in(each)] for each in self._calls_of(job_id))
            self._held[positions[0]] = job_id.decode(), fence.decode()
            claims.append((_number_in(worker), positions))
        return claims

    def _calls_of(self, job_id: bytes) -> list[bytes]:
        """Return the ids of the calls that a claimed job stands for, if it is a batch; else its own."""
        if not job_record.is_batch(job_id.decode()):
            return [job_id]
        found: list[bytes] = self._client.zrange(self._keys.key("callers", job_id.decode()), 0, -1)
        return found


def _score_of(first: list[Any]) -> int:
    """Return the score of the one member in a reply, of either version of the protocol."""
    (pair,) = [first] if len(first) == 2 else first
    return int(pair[1])


def _id_of(number: int) -> str:
    return f"{number:0{_DIGITS}}"


def _number_in(job_id: bytes) -> int:
    return decode_number(job_id[:_DIGITS])
