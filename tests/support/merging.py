"""Workers of an app with merged calls, and waiting batches."""

import json

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from .ledger import whole_lines
from .processes import start_worker, wait_until

APP = "tests.support.apps.merging"

#: Max seconds until callers have their results: dispatchers report them at ticks of 1.4 s.
SOON_S = 60


class Merging:
    """Workers of the app, and waiting batches."""

    def __init__(self, app, server, redis_client, ledger):
        self.app, self.url, self.redis, self.ledger = app, server.url, redis_client, ledger
        self.scheduler = Scheduler(redis_client, Keys())
        self.scheduler.pause("type:merging")

    def start(self, pool="prefork", concurrency=2, app=APP, types=("merging",), extra=(), **env):
        env = {"LEDGER": str(self.ledger), **env}
        return start_worker(app, self.url, types, pool=pool, concurrency=concurrency, extra=extra, env=env)

    def go(self):
        """Start the waiting batches."""
        self.scheduler.resume("type:merging")

    def mend(self):
        """Make the tasks of this app succeed that failed before."""
        self.ledger.with_name(f"{self.ledger.name}.mended").touch()

    def task(self, name):
        return self.app.tasks[name]

    def runs(self, name):
        """Return the arguments of a task's runs."""
        return [values for task, *values in map(json.loads, whole_lines(self.ledger)) if task == name]

    def calls_that_wait_together(self):
        """Return the number of calls in batches."""
        return sum(self.redis.zcard(name) for name in self.redis.keys(Keys().key("callers", "*")))

    def _keys_of_calls(self):
        """Return the Redis keys of merged calls, without the metrics of types."""
        return [name for name in self.redis.keys("*:key:[mct]*") if b":key:metrics:" not in name]

    def leaves_nothing(self, within_s=SOON_S):
        """Wait until all Redis keys of merged calls are deleted."""
        wait_until(lambda: not self._keys_of_calls(), within_s, f"{self.redis.keys()}")
