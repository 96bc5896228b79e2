"""Runs in a pool that belong to no request, such as the batches of celery-batches: each of them takes a slot.

A task's own strategy may give the pool whatever it wants to run. The server has to know of these runs, as of requests
without a claim, or it would place jobs on slots that are taken.
"""

import logging
from collections.abc import Callable
from typing import Any

from celery.concurrency.base import BasePool
from celery.worker.request import Request

from . import pools, runs

logger = logging.getLogger(__name__)


class _Run:
    """One run, from the moment when the pool gets it."""

    def __init__(self) -> None:
        self.is_alive = runs.while_given


class OtherRuns:
    """The runs in *pool* that belong to no request. *on_change* is called, in any thread, when their number changes."""

    def __init__(self, pool: BasePool, on_change: Callable[[], object]) -> None:
        self._pool, self._on_change = pool, on_change
        self._runs: set[_Run] = set()
        #: Whether no further run begins: the worker stops, and has given back the jobs that such a run may have.
        self.is_closed = False

    def count(self) -> int:
        """Return the number of runs that wait for the pool or run there. Any thread may call this method."""
        if not self._runs:
            return 0
        alive = [run for run in tuple(self._runs) if run.is_alive()]
        self._runs.intersection_update(alive)
        return len(alive)

    def begin(self, give: Callable[..., Any], target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Give *target* to the pool with *give*, and return the result; None if no further run may begin."""
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
    """A pool that counts the runs that belong to no request."""

    #: None until the worker has joined for the first time.
    affinity_other_runs: OtherRuns | None = None

    def apply_async(self, target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run *target*; `OtherRuns` knows of it, unless a request says that it was accepted."""
        accepted = getattr(options.get("accept_callback"), "__self__", None)
        if self.affinity_other_runs is None or isinstance(accepted, Request):
            return super().apply_async(target, *args, **options)
        return self.affinity_other_runs.begin(super().apply_async, target, *args, **options)
