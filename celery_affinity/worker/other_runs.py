"""Count pool runs without a request, such as the batches of celery-batches: each run occupies a slot.

A custom task strategy can submit any function to the pool. The worker must report these runs to the server, like
requests without a claim. Otherwise the server would place jobs on occupied slots.
"""

from collections.abc import Callable
from typing import Any

from celery.concurrency.base import BasePool
from celery.worker.request import Request

from ..log_limit import limited_logger
from . import pools, runs

logger = limited_logger(__name__)


class _Run:
    """One run, from its submission to the pool until its end."""

    def __init__(self) -> None:
        self.is_alive = runs.while_given


class OtherRuns:
    """Tracks the runs in *pool* without a request. When their number changes, it calls *on_change* in any thread."""

    def __init__(self, pool: BasePool, on_change: Callable[[], object]) -> None:
        self._pool, self._on_change = pool, on_change
        self._runs: set[_Run] = set()
        #: True if no further run may begin, because the stopping worker has already returned the buffered jobs.
        self.is_closed = False

    def count(self) -> int:
        """Return the number of runs that are waiting or running in the pool. Any thread can call this method."""
        if not self._runs:
            return 0
        alive = [run for run in tuple(self._runs) if run.is_alive()]
        self._runs.intersection_update(alive)
        return len(alive)

    def begin(self, give: Callable[..., Any], target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Submit *target* to the pool with *give* and return the result, or None if no further run may begin."""
        if self.is_closed:
            logger.warning("%r is not run: the worker stops, and has given back the jobs in buffers", target)
            return None
        run = _Run()
        self._runs.add(run)
        self._on_change()
        if pools.forks(self._pool):
            for name in ("callback", "error_callback"):
                options[name] = self._ending(run, options.get(name))
        else:
            target = self._ending(run, target)
        try:
            given = give(target, *args, **options)
        except BaseException:
            self._end(run)
            raise
        run.is_alive = runs.after_given(self._pool, given)
        return given

    def _ending(self, run: _Run, call: Callable[..., Any] | None) -> Callable[..., Any]:
        """Return a function that ends *run* after *call*."""

        def ending(*args: Any, **kwargs: Any) -> Any:
            try:
                return None if call is None else call(*args, **kwargs)
            finally:
                self._end(run)

        return ending

    def _end(self, run: _Run) -> None:
        self._runs.discard(run)
        self._on_change()


class CountingPool(BasePool):
    """A pool that counts runs without a request."""

    #: None until the worker has joined for the first time.
    affinity_other_runs: OtherRuns | None = None

    def apply_async(self, target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run *target*, and count the run in `OtherRuns` unless its accept callback belongs to a request."""
        accepted = getattr(options.get("accept_callback"), "__self__", None)
        if self.affinity_other_runs is None or isinstance(accepted, Request):
            return super().apply_async(target, *args, **options)
        return self.affinity_other_runs.begin(super().apply_async, target, *args, **options)
