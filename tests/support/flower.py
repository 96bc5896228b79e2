"""Flower, started like a user's and read over HTTP."""

import html
import json
import os
import re
import sys
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from celery_affinity.embedded.server import free_port

from .apps import APP
from .processes import Process, wait_until

PREFIX = "celery_affinity_"

#: Text for a number that Flower does not have: "N/A" in 2.1, a dash in 2.2.
UNKNOWN = "-"
COLUMNS = ("messages", "unacked", "ready", "consumers", "idle since")


class Flower:
    """A Flower of the tests' app on its own port."""

    def __init__(self, url, *, command=("-m", "celery", "-A", APP, "flower"), env=None):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = [f"--port={port}", "--address=127.0.0.1"]
        env = {"BROKER_URL": url, "LEDGER": os.devnull, "FLOWER_UNAUTHENTICATED_API": "true", **(env or {})}
        self.process = Process("flower", [sys.executable, *command, *arguments], env)
        self.process.wait_for("Visit me at", 60)
        wait_until(self._listens, 30, "it listens: before 2.1 it logs this too early")

    def _listens(self):
        try:
            return self.get("/healthcheck") == "OK"
        except urllib.error.URLError:
            return False

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def page(self):
        """Return the rows of the broker page, by queue."""
        rows = re.findall(r"<tr id=.*?</tr>", self.get("/broker"), re.DOTALL)
        cells = [[_text(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)] for row in rows]
        return {queue: dict(zip(COLUMNS, figures, strict=True)) for queue, *figures in cells}

    def lengths(self):
        """Return the API's rows, by queue."""
        return {row.pop("name"): row for row in json.loads(self.get("/api/queues/length"))["active_queues"]}

    def metrics(self):
        """Map (name, label values in the alphabetical order of the labels) to the value of this package's samples."""
        families = text_string_to_metric_families(self.get("/metrics"))
        samples = [sample for family in families for sample in family.samples if sample.name.startswith(PREFIX)]
        return {(each.name.removeprefix(PREFIX), *_labels(each)): each.value for each in samples}

    def workers(self):
        workers = json.loads(self.get("/workers?json=1"))["data"]
        return {worker["hostname"].partition("@")[0]: worker for worker in workers}


def _labels(sample):
    return [value for _, value in sorted(sample.labels.items())]


def _text(cell):
    text = html.unescape(re.sub("<.*?>", "", cell)).strip()
    return UNKNOWN if text in ("N/A", "—") else text
