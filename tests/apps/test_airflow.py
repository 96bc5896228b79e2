"""Airflow's CeleryExecutor runs the tasks of a DAG on the workers of their queues, as on stock Celery's transport."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from celery_affinity.embedded.ports import free_port

from ..support.processes import wait_until
from .sides import on_both

pytestmark = pytest.mark.timeout(1800)

DAG = "four_queues"
QUEUES = ("default", "pdf", "excel", "index")


class Airflow:
    """An Airflow of one side: a worker for each queue, and whatever else it takes."""

    def __init__(self, side, database):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        side.env.update(_settings(side, database, port, self.url))
        side.run("airflow", "db", "migrate")
        for name in ("api-server", "scheduler", "dag-processor"):
            side.start(name, "airflow", name)
        for queue in QUEUES:
            options = ["--queues", queue, "--concurrency", "2", "--celery-hostname", f"{queue}@%h", "--skip-serve-logs"]
            side.start(queue, "airflow", "celery", "worker", *options, WORKER_OF=queue)
        self._headers = {"Content-Type": "application/json"}
        token = wait_until(lambda: self._ask_if_there("/auth/token"), 120, "the API is there")["access_token"]
        self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=self._headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    def _ask_if_there(self, path):
        try:
            return self.ask(path)
        except (urllib.error.URLError, ConnectionError):
            return None

    def run(self, run_id):
        """Run the DAG; return the state of the run, and of each of its tasks."""
        wait_until(lambda: self._ask_if_there(f"/api/v2/dags/{DAG}"), 180, "the DAG is read")
        self.ask(f"/api/v2/dags/{DAG}/dagRuns", {"dag_run_id": run_id, "logical_date": None})
        return self.end_of(run_id)

    def run_again(self, run_id, task):
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task], "only_failed": False}
        self.ask(f"/api/v2/dags/{DAG}/clearTaskInstances", body)
        return self.end_of(run_id)

    def end_of(self, run_id):
        path = f"/api/v2/dags/{DAG}/dagRuns/{run_id}"
        seen = {}

        def has_ended():
            seen.update(self.ask(path))
            return seen["state"] in ("success", "failed")

        wait_until(has_ended, 300, f"the run ends: {seen}")
        kept = ("task_id", "map_index", "state", "queue", "try_number", "executor", "operator_name")
        tasks = self.ask(path + "/taskInstances")["task_instances"]
        return {"state": seen["state"], "tasks": sorted([each.get(key) for key in kept] for each in tasks)}

    def results(self, run_id):
        path = f"/api/v2/dags/{DAG}/dagRuns/{run_id}/taskInstances"
        tasks = [("begin", -1), *(("render", n) for n in range(4)), ("calculate", -1), ("join", -1)]
        return [self.ask(f"{path}/{task}/xcomEntries/return_value?map_index={n}")["value"] for task, n in tasks]


def _settings(side, database, port, url):
    settings = {
        "CORE__EXECUTOR": "CeleryExecutor",
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "DATABASE__SQL_ALCHEMY_CONN": database,
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__BASE_URL": url,
        "API__WORKERS": "1",
        "API__SECRET_KEY": "a key of the tests, long enough for Airflow",
        "API_AUTH__JWT_SECRET": "a secret of the tests, of sixty-four characters or more, as Airflow wants",
        "CELERY__BROKER_URL": side.url,
        "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    }
    if side.name == "ours":
        settings["CELERY__EXTRA_CELERY_CONFIG"] = json.dumps({"broker_transport": side.env["TRANSPORT"]})
    return {"AIRFLOW_HOME": str(side.folder), **{f"AIRFLOW__{name}": value for name, value in settings.items()}}


def test_dag_runs_the_same_in_four_queues(postgres, tmp_path):
    def scenario(side):
        airflow = Airflow(side, postgres.create(f"airflow_{side.name}"))
        seen = {"run": airflow.run("first"), "results": airflow.results("first")}
        return {**seen, "again": airflow.run_again("first", "render"), "second": airflow.run("second")}

    results = on_both(scenario, "airflow", tmp_path)
    assert results["ours"] == results["stock"]
    assert results["ours"]["run"]["state"] == "success"
    pages = [[page, "pdf"] for page in (1, 2, 3, 4)]
    assert results["ours"]["results"] == ["default", *pages, [2, "excel"], [pages, [2, "excel"], "index"]]
