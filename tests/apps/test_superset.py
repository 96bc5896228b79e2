"""Superset runs queries of SQL Lab, alerts and the warm-up of its cache, like on stock Celery."""

import json
from pathlib import Path

import pytest

from celery_affinity.embedded.server import free_port

from ..support.processes import wait_until
from .http_client import HttpClient
from .sides import on_both

pytestmark = pytest.mark.timeout(1800)

QUEUES = ("sqllab", "reports", "warmup")
CELERY = ("celery", "--app", "superset.tasks.celery_app:app")


class Superset(HttpClient):
    """A Superset on one transport, with a worker for each queue."""

    def __init__(self, side, database):
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        side.env.update(
            SUPERSET_CONFIG_PATH=str(Path(__file__).with_name("superset_config.py")),
            SUPERSET_HOME=str(side.folder),
            SUPERSET_URL=self.url,
            DATABASE=database,
            FLASK_APP="superset.app:create_app()",
        )
        side.run("superset", "db", "upgrade", timeout=900)
        side.run("superset", "init", timeout=900)
        names = ["--username", "admin", "--firstname", "A", "--lastname", "B", "--email", "admin@example.com"]
        side.run("superset", "fab", "create-admin", *names, "--password", "admin")
        side.start("web", "superset", "run", "--host", "127.0.0.1", "--port", str(port), "--with-threads")
        for queue in QUEUES:
            options = ["--hostname", f"{queue}@%h", "--queues", queue, "--concurrency", "2", "--loglevel", "INFO"]
            side.start(queue, *CELERY, "worker", *options)
        login = {"username": "admin", "password": "admin", "provider": "db"}
        token = self.ask_until_there("/api/v1/security/login", login)["access_token"]
        self.headers["Authorization"] = f"Bearer {token}"
        body = {"database_name": "data", "sqlalchemy_uri": database, "allow_run_async": True, "expose_in_sqllab": True}
        self.database = self.ask("/api/v1/database/", body)["id"]

    def query(self, name, sql):
        """Run a query asynchronously; return its status, its error and its rows."""
        body = {"database_id": self.database, "sql": sql, "runAsync": True, "client_id": name}
        number = self.ask("/api/v1/sqllab/execute/", body)["query"]["queryId"]

        def ended():
            result = self.ask(f"/api/v1/query/{number}")["result"]
            return result if result["status"] in ("success", "failed", "stopped", "timed_out") else None

        query = wait_until(ended, 120, f"the query {name} ends")
        key = query["results_key"]
        rows = self.ask(f"/api/v1/sqllab/results/?q=(key:'{key}')")["data"] if query["status"] == "success" else None
        return [query["status"], query["error_message"], rows]

    def chart(self):
        body = {"database": self.database, "table_name": "numbers", "sql": "SELECT 1 AS n"}
        dataset = self.ask("/api/v1/dataset/", body)["id"]
        source = {"id": dataset, "type": "table"}
        queries = [{"columns": ["n"], "metrics": [], "row_limit": 10}]
        context = {"datasource": source, "queries": queries, "result_format": "json", "result_type": "full"}
        body = {"slice_name": "numbers", "viz_type": "table", "datasource_id": dataset, "datasource_type": "table"}
        body |= {"params": json.dumps({"viz_type": "table"}), "query_context": json.dumps(context)}
        return self.ask("/api/v1/chart/", body)["id"]

    def alert(self, name, sql, chart):
        """Create an alert for each minute that is raised if the result of *sql* is greater than 5."""
        body = {"type": "Alert", "name": name, "crontab": "* * * * *", "active": True, "sql": sql, "chart": chart}
        body |= {"validator_type": "operator", "validator_config_json": {"op": ">", "threshold": 5}}
        body |= {"database": self.database, "creation_method": "alerts_reports"}
        body |= {"recipients": [{"type": "Email", "recipient_config_json": {"target": "admin@example.com"}}]}
        return self.ask("/api/v1/report/", body)["id"]

    def evaluated(self, alert):
        """Return the final state of the alert's first evaluation, and its error."""
        entries = []

        def has_ended():
            found = self.ask(f"/api/v1/report/{alert}/log/")["result"]
            entries[:] = sorted((each for each in found if each["state"] != "Working"), key=lambda each: each["id"])
            return entries

        first = wait_until(has_ended, 180, "the alert is evaluated")[0]
        return [first["state"], first["error_message"]]


def _has_run(events):
    names = [name for name, *_ in events]
    return names.count("reports.execute") >= 2 and "fetch_url" in names


def test_superset_runs_the_same_in_three_queues(postgres, tmp_path):
    def scenario(side):
        superset = Superset(side, postgres.create(f"superset_{side.name}"))
        queries = [
            superset.query("one", "SELECT generate_series(1, 3) AS n"),
            superset.query("two", "SELECT 1 / 0"),
            superset.query("three", "SELECT 'pdf' AS queue"),
        ]
        chart = superset.chart()
        alerts = [superset.alert("quiet", "SELECT 1", chart), superset.alert("broken", "SELECT nothing", chart)]
        side.start("beat", *CELERY, "beat", "--pidfile", "", "--schedule", str(side.folder / "schedule"))
        states = [superset.evaluated(alert) for alert in alerts]
        events = side.wait_for_events(_has_run, "the alerts are evaluated, and the cache is warmed up")
        return {
            "queries": queries,
            "alerts": states,
            "tasks": sorted({(name, state, queue, worker) for name, state, queue, worker, _ in events}),
            "warm-up": sorted({json.dumps(result) for name, *_, result in events if name == "fetch_url"}),
        }

    results = on_both(scenario, "superset", tmp_path)
    assert results["ours"] == results["stock"]
    assert results["ours"]["queries"][0] == ["success", None, [{"n": 1}, {"n": 2}, {"n": 3}]]
    assert [state for state, _ in results["ours"]["alerts"]] == ["Not triggered", "Error"]
    assert {(name, queue, worker) for name, _, queue, worker in results["ours"]["tasks"]} == {
        ("sql_lab.get_sql_results", "sqllab", "sqllab"),
        ("reports.scheduler", "reports", "reports"),
        ("reports.execute", "reports", "reports"),
        ("cache-warmup", "warmup", "warmup"),
        ("fetch_url", "warmup", "warmup"),
    }
