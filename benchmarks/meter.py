"""The cost of a stretch of work: CPU time of worker and server, requests and bytes between them."""

import time
from dataclasses import dataclass

import psutil
import redis

#: Requests of a reading itself.
_OWN_REQUESTS = 2


@dataclass(frozen=True)
class Reading:
    """Meters at one moment; differences count."""

    seconds: float
    worker_cpu_s: float
    server_cpu_s: float
    requests: int
    sent_bytes: int

    def a_second_since(self, before: "Reading") -> dict[str, float]:
        """Return what went on each second since another reading."""
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
            # Reads of sockets: a script is one, and so is a pipeline; total_commands_processed has what scripts call.
            stats["total_reads_processed"],
            stats["total_net_input_bytes"] + stats["total_net_output_bytes"],
        )

    def _worker_cpu_s(self) -> float:
        if self._pid is None:
            return 0.0
        worker = psutil.Process(self._pid)
        return sum(sum(each.cpu_times()[:2]) for each in (worker, *worker.children(recursive=True)))


def per_task(before: Reading, after: Reading, tasks: int) -> dict[str, float]:
    """Return the costs of each of *tasks*."""
    return {
        "worker_us": 1e6 * (after.worker_cpu_s - before.worker_cpu_s) / tasks,
        "server_us": 1e6 * (after.server_cpu_s - before.server_cpu_s) / tasks,
        "requests": (after.requests - before.requests - _OWN_REQUESTS) / tasks,
        "bytes": (after.sent_bytes - before.sent_bytes) / tasks,
    }
