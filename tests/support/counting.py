"""The work of a server in one invocation: the commands that the server function calls (``INFO commandstats``)."""

from celery_affinity.scheduler.scheduler import Scheduler


class Counting(Scheduler):
    """A scheduler that records the server's work per invocation: (function, command -> times, µs)."""

    def __init__(self, client, keys):
        super().__init__(client, keys)
        self.calls = []

    def _run_together(self, calls):
        replies = []
        for arrow, arguments in calls:
            self.client.config_resetstat()
            replies += super()._run_together([(arrow, arguments)])
            stats = self.client.info("commandstats")
            times = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
            took_us = stats["cmdstat_fcall"]["usec"]
            for name in ("fcall", "info", "config|resetstat", "function|load"):
                times.pop(name, None)
            self.calls.append((arrow.name, times, took_us))
        return replies

    def most(self, *commands):
        """Return the highest number of commands, or of *commands*, in a single call."""
        return max(
            sum(n for name, n in times.items() if not commands or name in commands) for _, times, _ in self.calls
        )
