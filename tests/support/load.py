"""Calls published continuously while the broker fails over or moves."""

import threading

from kombu.exceptions import OperationalError

from .apps import APP


class Load:
    """Publishes calls for each pool one after another until `end`; `sent` lists the accepted calls."""

    def __init__(self, pools):
        self._pools, self.sent, self._over = pools, [], threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self):
        number = 0
        while not self._over.wait(0.02):
            for pool in self._pools.workers:
                number += 1
                job = f"{pool}-{number}"
                self._send_one(pool, job)
                self.sent.append(job)

    def _send_one(self, pool, job):
        policy = {"max_retries": None, "interval_max": 0.2}
        while True:
            try:
                self._pools.app.send_task(f"{APP}.late", (job, 0.02), queue=pool, retry_policy=policy)
                return
            except OperationalError as exc:
                if "moved key by key" not in str(exc):  # such a call was refused without effect
                    raise

    def end(self):
        self._over.set()
        self._thread.join(30)
        return self.sent
