"""Preempt a running task like the server: with a control message in its worker's inbox."""

from celery_affinity.schema.constants import PREEMPT_SIGN
from celery_affinity.schema.job_record import is_batch
from celery_affinity.schema.keys import Keys

from .processes import wait_until

KEYS = Keys()


class Victim:
    """A call of a task of `tests.support.apps.preemption` on one server."""

    def __init__(self, server, result, *, is_merged=False):
        self.server, self.result, self.id, self.is_merged = server, result, result.id, is_merged

    def row(self):
        """Return the job hash, or the batch hash of a merged call."""
        prefix = KEYS.key("job", "")
        for key in self.server.scan_iter(f"{prefix}*"):
            row = {name.decode(): value.decode() for name, value in self.server.hgetall(key).items()}
            job_id = key.decode().removeprefix(prefix)
            if is_batch(job_id) if self.is_merged else row.get("task") == self.id:
                return {**row, "id": job_id}
        raise AssertionError(f"the server has no job {self.id}")

    def wait_for_run(self, number):
        wait_until(lambda: int(self.server.get(f"runs:{self.id}") or 0) == number, 20, f"run {number} of {self.id}")

    def order(self, grace_ms, row=None):
        """Preempt the current claim, or the claim in *row*, with a control message. Return the job hash."""
        row = row or self.row()
        self.server.hset(KEYS.key("job", row["id"]), "stop", f"{row['fence']} tenant%3Abeta")  # like the server
        sign = f"\n{PREEMPT_SIGN} {row['id']} {row['fence']} {grace_ms}"
        self.server.rpush(KEYS.key("inbox", row["worker"]), sign)
        return row

    def end_of_run(self, number):
        """Return the result of a task that ends without help in run *number*."""
        self.wait_for_run(number)
        return self.result.get(timeout=20)

    def end(self):
        """Let the task end, and return its result."""
        self.server.set(f"enough:{self.id}", 1)
        return self.result.get(timeout=20)
