"""Measure the server cost of publish and release, and its growth with jobs, types, workers, priorities and keys.

Each scale fills a separate database on the same server. The benchmark can therefore measure the scales in turn.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.scheduler.messages import Claim, EndArguments, JoinArguments
from celery_affinity.schema.job_record import NewJob, with_suffix
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings
from tests.whole.large.fleet import NOTED_FROM_US, LargeFleet

from .bench import print_progress

_WORKER = "measured"


@dataclass(frozen=True)
class Scale:
    """The size of a fleet and of its backlog."""

    #: Name of the field that varies within a series of scales.
    axis: str
    pending: int = 20_000
    types: int = 8
    #: Number of types that the measured worker serves. The other workers serve 1 to 3 types.
    served: int = 3
    workers: int = 0
    priorities: int = 11
    keys: int = 0

    @property
    def value(self) -> int:
        return int(getattr(self, self.axis))

    @property
    def name(self) -> str:
        return f"{self.axis} {self.value:,}"

    @property
    def baseline(self) -> str | None:
        return None

    @property
    def is_for_a_goal(self) -> bool:
        return self.axis == "pending" or (self.axis == "served" and self.served in (3, 50)) or self.axis == "keys"


_AXES = {
    "pending": (Scale("pending"), (1_000, 10_000, 100_000, 1_000_000)),
    "types": (Scale("types"), (3, 10, 100, 1_000)),
    "served": (Scale("served", types=100), (1, 3, 10, 50, 100)),
    "workers": (Scale("workers", types=20), (10, 100, 1_000, 5_000)),
    "priorities": (Scale("priorities"), (1, 3, 11)),
    "keys": (Scale("keys"), (0, 1_000)),
}


def scales(limit: int) -> list[Scale]:
    """Return the scales whose varying size is at most *limit*. They also have at most *limit* pending jobs."""
    return [
        replace(base, **{"pending": min(base.pending, limit), axis: value})
        for axis, (base, values) in _AXES.items()
        for value in values
        if value <= limit
    ]


class Fleet:
    """A database filled to a scale. Only the slot of the measured worker becomes free."""

    def __init__(self, client: redis.Redis, scale: Scale) -> None:
        self.scale = scale
        self.name, self.baseline = scale.name, scale.baseline
        self.large = LargeFleet(client, scale.types, scale.priorities, keys=scale.keys)
        self.client = client
        self._scheduler = self.large.scheduler
        self._published = self._sequence = 0
        self.large.crowd(scale.workers)
        self.placed_us = self._place() if scale.workers else None
        self.large.fill(scale.pending)
        served = self.large.types[: scale.served]
        self._scheduler.join(JoinArguments(_WORKER, f"{_WORKER}@host", served, slots=1), shared_settings(Settings()))
        self._types = served
        ((job_id, fence),) = self.large.claims(_WORKER)
        self._held = Claim(job_id, fence, "", 0, 0, b"")

    def costs(self, calls: int) -> dict[str, float]:
        """Return the server's CPU time in µs per publish, and per release that claims the next job.

        The *script* values are wall-clock times and exclude the connection handling. The number of pending jobs is the
        same before and after the measurement.
        """
        publish = self._timed(self._publish, calls)
        release = self._timed(self._release, calls)
        placed = {} if self.placed_us is None else {"publish to idle": self.placed_us}
        return {
            "publish": publish[1],
            "release + claim": release[1],
            "publish, script": publish[0],
            "release + claim, script": release[0],
            **placed,
        }

    def _timed(self, call, calls: int) -> tuple[float, float]:
        self.client.config_resetstat()
        before = self.client.info("cpu")
        for _ in range(calls):
            call()
        after = self.client.info("cpu")
        script = self.client.info("commandstats")["cmdstat_fcall"]
        cpu_s = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
        return script["usec"] / script["calls"], 1e6 * cpu_s / script["calls"]

    def _publish(self) -> None:
        self._publish_of(self.large.random.choice(self._types))

    def _publish_of(self, type_: str) -> None:
        self._published += 1
        rules, priority, on_demand = self.large.shape(type_)
        self._scheduler.publish(
            NewJob(
                with_suffix(f"measured{self._published}", rules),
                type_,
                "x" * 700,
                on_demand=on_demand,
                priority=priority,
                task_id=f"measured{self._published}",
                task_name="proj.tasks.render",
                rules=rules,
            )
        )

    def _release(self) -> None:
        self._sequence += 1
        end = EndArguments(self._held.job_id, self._held.fence, "acked")
        (self._held,) = self._scheduler.release_and_claim(
            _WORKER, acks=[], ends=[end], sequence=self._sequence, inline=True
        )

    def _place(self) -> float:
        """Return the CPU time in µs of a publish while workers for its type are idle.

        The number of publishes does not exceed the capacity for the type.
        """
        capacity = self.large.reader.capacity(self.large.types)
        type_ = max(capacity, key=lambda name: capacity[name])
        return self._timed(lambda: self._publish_of(type_), max(1, min(100, capacity[type_] // 2)))[1]


@contextmanager
def fleets(scales: Sequence[Scale], executable: str | None) -> Iterator[list[Fleet]]:
    """Fill one database per scale on a single server, and yield the fleets."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(executable=executable, options=("--databases", str(len(scales)))))
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, server.pid, -20)  # other processes must not disturb the measurement
        built = []
        for number, scale in enumerate(scales):
            url = f"{server.url.rpartition('/')[0]}/{number}"
            client = stack.enter_context(redis.Redis.from_url(url))
            print_progress(f"filling: {scale.name}")
            built.append(Fleet(client, scale))
        yield built


def longest_script_ms(fleet: Fleet, rounds: int) -> dict[str, float]:
    """Return the longest invocation of each script in ms while the workers perform every kind of operation."""
    fleet.client.config_set("slowlog-log-slower-than", NOTED_FROM_US)
    fleet.client.config_set("slowlog-max-len", 10_000)
    fleet.large.note_times()
    fleet.large.run_rounds(rounds)
    return {name: times.high for name, times in fleet.large.script_times().items()}
