"""Measures the cost of work: CPU time of worker and server, requests and bytes between them."""

import time
from dataclasses import dataclass

import psutil
import redis

#: Number of requests that a reading itself sends.
_OWN_REQUESTS = 2


@dataclass(frozen=True)
class Reading:
    """The meters at one moment. Only the differences between two readings have a meaning."""

    seconds: float
    worker_cpu_s: float
    server_cpu_s: float
    requests: int
    sent_bytes: int

    def a_second_since(self, before: "Reading") -> dict[str, float]:
        """Return requests and CPU time per second since another reading."""
        seconds = self.seconds - before.seconds
        return {
            "requests": (self.requests - before.requests - _OWN_REQUESTS) / seconds,
            "worker_us": 1e6 * (self.worker_cpu_s - before.worker_cpu_s) / seconds,
            "server_us": 1e6 * (self.server_cpu_s - before.server_cpu_s) / seconds,
        }


class Meter:
    """Reads the meters of a server, and of the worker *pid* with all its children."""

    def __init__(self, client: redis.Redis, pid: int | None = None) -> None:
        self._client = client
        self._pid = pid

    def read(self) -> Reading:
        stats, cpu = self._client.info("stats"), self._client.info("cpu")
        return Reading(
            time.monotonic(),
            self._worker_cpu_s(),
            cpu["used_cpu_user"] + cpu["used_cpu_sys"],
            # Socket reads count a script or a pipeline as one request. total_commands_processed counts their commands.
            stats["total_reads_processed"],
            stats["total_net_input_bytes"] + stats["total_net_output_bytes"],
        )

    def _worker_cpu_s(self) -> float:
        if self._pid is None:
            return 0.0
        worker = psutil.Process(self._pid)
        return sum(sum(process.cpu_times()[:2]) for process in (worker, *worker.children(recursive=True)))


def per_task(before: Reading, after: Reading, tasks: int) -> dict[str, float]:
    """Return the costs per task."""
    return {
        "worker_us": 1e6 * (after.worker_cpu_s - before.worker_cpu_s) / tasks,
        "server_us": 1e6 * (after.server_cpu_s - before.server_cpu_s) / tasks,
        "requests": (after.requests - before.requests - _OWN_REQUESTS) / tasks,
        "bytes": (after.sent_bytes - before.sent_bytes) / tasks,
    }
