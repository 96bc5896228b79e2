"""The work of a server in one call of a script: the commands that the script calls (``INFO commandstats``)."""

from celery_affinity.server.scheduler import Scheduler


class Counting(Scheduler):
    """A scheduler that records the server's work for each call: (script, command -> times, µs)."""

    def __init__(self, client, keys):
        super().__init__(client, keys)
        self.calls = []

    def _run_together(self, calls):
        replies = []
        for script, arguments in calls:
            self.client.config_resetstat()
            replies += super()._run_together([(script, arguments)])
            stats = self.client.info("commandstats")
            times = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
            took_us = stats["cmdstat_evalsha"]["usec"]
            for name in ("evalsha", "info", "config|resetstat", "script|load"):
                times.pop(name, None)
            self.calls.append((script.name, times, took_us))
        return replies

    def most(self, *commands):
        """Return the highest number of commands, or of *commands*, in a single call."""
        return max(
            sum(n for name, n in times.items() if not commands or name in commands) for _, times, _ in self.calls
        )
