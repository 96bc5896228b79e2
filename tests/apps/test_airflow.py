"""Airflow's CeleryExecutor runs the tasks of a DAG on the workers of their queues, like on stock Celery."""

import json
from pathlib import Path

import pytest

from celery_affinity.embedded.server import free_port

from ..support.processes import wait_until
from .http_client import HttpClient
from .sides import on_both

pytestmark = pytest.mark.timeout(1800)

QUEUES = ("default", "pdf", "excel", "index")
RUNS = "/api/v2/dags/four_queues/dagRuns"


class Airflow(HttpClient):
    """An Airflow on one transport, with a worker for each queue."""

    def __init__(self, side, database):
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        side.env.update(_settings(side, database, port, self.url))
        side.run("airflow", "db", "migrate")
        for name in ("api-server", "scheduler", "dag-processor"):
            side.start(name, "airflow", name)
        for queue in QUEUES:
            options = ["--queues", queue, "--concurrency", "2", "--celery-hostname", f"{queue}@%h", "--skip-serve-logs"]
            side.start(queue, "airflow", "celery", "worker", *options, WORKER_OF=queue)
        self.headers["Authorization"] = f"Bearer {self.ask_until_there('/auth/token')['access_token']}"
        self.ask_until_there("/api/v2/dags/four_queues")

    def run(self, run_id):
        """Run the DAG; return the state of the run and of each of its tasks."""
        self.ask(RUNS, {"dag_run_id": run_id, "logical_date": None})
        return self.end_of(run_id)

    def run_again(self, run_id, task):
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task], "only_failed": False}
        self.ask("/api/v2/dags/four_queues/clearTaskInstances", body)
        return self.end_of(run_id)

    def end_of(self, run_id):
        def state():
            current = self.ask(f"{RUNS}/{run_id}")["state"]
            return current if current in ("success", "failed") else None

        ended = wait_until(state, 300, f"the run {run_id} ends")
        kept = ("task_id", "map_index", "state", "queue", "try_number", "executor", "operator_name")
        tasks = self.ask(f"{RUNS}/{run_id}/taskInstances")["task_instances"]
        return {"state": ended, "tasks": sorted([each.get(key) for key in kept] for each in tasks)}

    def results(self, run_id):
        tasks = [("begin", -1), *(("render", n) for n in range(4)), ("calculate", -1), ("join", -1)]
        path = f"{RUNS}/{run_id}/taskInstances/%s/xcomEntries/return_value?map_index=%d"
        return [self.ask(path % each)["value"] for each in tasks]


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
