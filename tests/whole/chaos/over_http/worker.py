"""``python -m tests.whole.chaos.over_http.worker NAME SLOTS PORT ...``: an HTTP worker without dependencies.

It sends each request to a random web process, and kills itself with SIGKILL at random points.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from typing import Any

from ..ledger import Ledger

#: Point in the life of a job -> chance in a thousand that the worker dies then.
MOMENTS = {
    "its claims have come, unread": 12,
    "the start is sent": 6,
    "the job runs": 12,
    "the result is there": 12,
    "the end is sent": 12,
    "the end was answered": 6,
}
_TASKS: dict[str, Callable[..., Any]] = {
    "part": lambda token, number, seconds: number,
    "total": lambda numbers, token: sum(numbers),
}

ledger = Ledger(Path(os.environ["LEDGER"]))
_runs = count(1)


def may_die(moment: str) -> None:
    if random.random() * 1000 < MOMENTS[moment]:
        ledger.note("kill", "worker over HTTP", target=os.getpid(), moment=moment)
        os.kill(os.getpid(), signal.SIGKILL)


class Worker:
    """Joins, and joins again after each loss of its registration, until the process ends."""

    def __init__(self, name: str, slots: int, ports: list[int]) -> None:
        self._name, self._slots, self._ports = name, slots, ports
        self._id = self._secret = ""
        self._held: dict[int, str] = {}
        self._room = threading.Condition()

    def run(self) -> None:
        beats = None
        while True:
            body = {"name": self._name, "types": ["page"], "slots": self._slots}
            _, joined = self._ask("POST", "/api/workers", body)
            self._id, self._secret = joined["id"], joined["secret"]
            ledger.note("joined", self._name, id=self._id)
            if beats is None:
                beats = threading.Thread(target=self._beat, args=(joined["heartbeat_s"],), daemon=True)
                beats.start()
            self._poll()

    def _poll(self) -> None:
        """Take jobs until the worker is no longer registered."""
        while True:
            with self._room:
                self._room.wait_for(lambda: len(self._held) < self._slots)
                held = ",".join(map(str, self._held))
            path = f"/api/workers/{self._id}/jobs?wait=2&held={held}"
            status, reply = self._ask("GET", path, come="its claims have come, unread")
            if status == 404:
                ledger.note("unknown", self._name, id=self._id)
                return
            for job in (reply or {}).get("jobs", ()):
                with self._room:
                    if job["fence"] in self._held:
                        continue
                    self._held[job["fence"]] = job["id"]
                threading.Thread(target=self._do, args=(job,), daemon=True).start()

    def _do(self, job: dict[str, Any]) -> None:
        try:
            self._start_and_end(job)
        finally:
            with self._room:
                self._held.pop(job["fence"], None)
                self._room.notify_all()

    def _start_and_end(self, job: dict[str, Any]) -> None:
        claim = {"fence": job["fence"]}
        status, _ = self._ask("POST", f"/api/jobs/{job['id']}/start", claim, sent="the start is sent")
        args, task = job["args"], job["task"].rpartition(".")[2]
        token = args[0] if task == "part" else args[1]
        if status != 200:
            ledger.note("refused_start", token, status=status)
            return
        run = f"{os.getpid()}.{next(_runs)}"
        ledger.note("start", token, run=run, worker=os.getpid(), by="http", deliveries=job["deliveries"])
        time.sleep((args[2] if task == "part" else 0) / 2)
        may_die("the job runs")
        time.sleep((args[2] if task == "part" else 0) / 2)
        ledger.note("end", token, run=run)
        may_die("the result is there")
        end = {**claim, "state": "done", "result": _TASKS[task](*args)}
        status, _ = self._ask("POST", f"/api/jobs/{job['id']}/end", end, sent="the end is sent")
        ledger.note("reported", token, run=run, status=status)
        may_die("the end was answered")

    def _beat(self, every_s: float) -> None:
        while True:
            time.sleep(every_s)
            with self._room:
                running = [[job, fence] for fence, job in self._held.items()]
            _, reply = self._ask("POST", f"/api/workers/{self._id}/heartbeat", {"running": running})
            for lost in (reply or {}).get("gone", ()):
                ledger.note("gone", lost["id"], fence=lost["fence"])

    def _ask(self, method: str, path: str, body: Any = None, sent: str = "", come: str = "") -> tuple[int, Any]:
        """Repeat a request until it is answered; return status and reply. *sent*, *come*: points at which to die."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", "Worker-Secret": self._secret}
        while True:
            connection = HTTPConnection("127.0.0.1", random.choice(self._ports), timeout=10)
            try:
                connection.request(method, path, data, headers)
                if sent:
                    time.sleep(random.choice((0, 0.001, 0.004, 0.02)))
                    may_die(sent)
                answer = connection.getresponse()
                if come and answer.status == 200:
                    may_die(come)
                text = answer.read()
                if answer.status < 500:
                    return answer.status, json.loads(text) if text else None
            except (OSError, HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(0.1)


if __name__ == "__main__":
    Worker(sys.argv[1], int(sys.argv[2]), [int(port) for port in sys.argv[3:]]).run()
