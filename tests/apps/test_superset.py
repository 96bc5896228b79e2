"""Superset runs queries of SQL Lab, alerts and the warm-up of its cache, as on stock Celery's transport."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from celery_affinity.embedded.ports import free_port

from ..support.processes import wait_until
from .sides import on_both

pytestmark = pytest.mark.timeout(1800)

QUEUES = ("sqllab", "reports", "warmup")


class Superset:
    """A Superset of one side, with a worker for each queue; beat is started by the scenario."""

    def __init__(self, side, database):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
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
        self._celery = ("celery", "--app", "superset.tasks.celery_app:app")
        workers = []
        for queue in QUEUES:
            options = ["--hostname", f"{queue}@%h", "--queues", queue, "--concurrency", "2", "--loglevel", "INFO"]
            workers.append(side.start(queue, *self._celery, "worker", *options))
        for worker in workers:
            worker.wait_for(" ready.", 180)
        self._headers = {"Content-Type": "application/json"}
        wait_until(self._answers, 180, "Superset answers")
        login = {"username": "admin", "password": "admin", "provider": "db"}
        self._headers["Authorization"] = f"Bearer {self.ask('/api/v1/security/login', login)['access_token']}"
        database = {
            "database_name": "data",
            "sqlalchemy_uri": database,
            "allow_run_async": True,
            "expose_in_sqllab": True,
        }
        self.database = self.ask("/api/v1/database/", database)["id"]

    def start_beat(self, side):
        return side.start("beat", *self._celery, "beat", "--pidfile", "", "--schedule", str(side.folder / "schedule"))

    def _answers(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=30) as reply:
                return reply.status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()[:2000]}") from error

    def query(self, name, sql):
        """Run a query asynchronously; return how it ended, and its rows."""
        body = {"database_id": self.database, "sql": sql, "runAsync": True, "client_id": name}
        query = self.ask("/api/v1/sqllab/execute/", body)["query"]
        seen = {}

        def has_ended():
            seen.update(self.ask(f"/api/v1/query/{query['queryId']}")["result"])
            return seen["status"] in ("success", "failed", "stopped", "timed_out")

        wait_until(has_ended, 120, f"the query ends: {seen}")
        rows = None
        if seen["status"] == "success":
            rows = self.ask(f"/api/v1/sqllab/results/?q=(key:'{seen['results_key']}')")["data"]
        return [seen["status"], seen["error_message"], rows]

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
        """Return the state in which the first evaluation of the alert ended, and its error."""
        entries = []

        def has_ended():
            found = self.ask(f"/api/v1/report/{alert}/log/")["result"]
            entries[:] = sorted((each for each in found if each["state"] != "Working"), key=lambda each: each["id"])
            return entries

        first = wait_until(has_ended, 180, "the alert is evaluated")[0]
        return [first["state"], first["error_message"]]


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
        superset.start_beat(side)
        states = [superset.evaluated(alert) for alert in alerts]
        events = side.wait_for_events(
            lambda events: "fetch_url" in {name for name, *_ in events}, "the cache is warmed up"
        )
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
