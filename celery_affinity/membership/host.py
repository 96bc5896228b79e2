"""The process around a worker's membership, as the membership needs it: a Celery worker (room `worker`), or a test."""

from typing import Protocol

from ..server.connections.in_flight import InFlight
from ..server.replies import Claim
from .held import Held


class Pool(Protocol):
    """The pool that runs a worker's tasks."""

    @property
    def forks(self) -> bool:
        """Whether tasks run in processes that are forked."""

    @property
    def blocks_the_loop(self) -> bool:
        """Whether a task runs in the event loop's own thread, so that nothing else happens there meanwhile."""

    @property
    def stops(self) -> str:
        """Which tasks the pool can stop: `FORCE` for all, or the encoded names of those that stop when asked to."""

    def size(self) -> int:
        """Return how many tasks may run at a time: the worker's slots."""

    def unclaimed(self) -> int:
        """Return how many requests take a slot without a claim: broadcast tasks, for one."""

    def still_has(self, request: object) -> bool:
        """Return whether *request* runs now or will; False for None. At a lost connection Celery drops the others."""


class Host(Protocol):
    """The event loop of a worker, and what happens there to jobs. Any thread may call these methods."""

    @property
    def in_flight(self) -> InFlight | None:
        """The connection on which the event loop's thread sends and does not wait for the reply.

        None in any other thread, while no event loop runs, and in a cold shutdown: the jobs that the shutdown ends are
        counted before any of these ends is told.
        """

    def wake(self) -> bool:
        """Have the event loop iterate soon. Return whether there is one."""

    def limits_rate_of(self, task: str) -> bool:
        """Return whether *task* has a rate limit here."""

    def start_next(self) -> None:
        """Start a job that is held ahead, if there is a slot, and raise nothing; called in the loop's thread alone."""

    def wake_in(self, pause_s: float) -> None:
        """Have the event loop iterate in *pause_s* seconds; called in its thread alone."""

    def deliver(self, claims: list[Claim]) -> None:
        """Have the event loop start jobs that came in a reply to another thread."""

    def fence(self, claims: list[Held]) -> None:
        """Stop the tasks of jobs that other workers have by now."""

    def heartbeat(self, *, loop_runs: bool) -> float | None:
        """Do the host's part of a heartbeat. Return the seconds until the next one is needed; None: no hurry."""
