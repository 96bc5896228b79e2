"""Each `curl` of the page on HTTP is run, on a real server with a real worker, and answered as the page says."""

import json
import os
import re
import shutil
import subprocess
import sys

import httpx
import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.curl import run
from ..support.pages import blocks
from ..support.processes import Process, start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet

PAGE = "docs/how-to/http.md"

#: Requests that the page only describes, by the page's block with which they run. The reference lists their routes.
MORE = {
    "submit": """
$ curl localhost:5556/api/jobs -H 'Content-Type: application/json' -H 'Idempotency-Key: order-7' -d '{"task": "shop.render", "args": ["a.pdf"], "options": {"on_demand": true}}'    # 200
$ curl localhost:5556/api/jobs -H 'Content-Type: application/json' -H 'Idempotency-Key: order-7' -d '{"task": "shop.render", "args": ["b.pdf"]}'    # 409
$ curl localhost:5556/api/jobs -H 'Content-Type: application/json' -d '{"task": "shop.render", "args": ["a.pdf"], "options": {"priority": 11}}'    # 422
$ curl localhost:5556/api/jobs -H 'Content-Type: application/json' -d '{"task": "os.system", "args": ["true"]}'    # 404
""",  # noqa: E501
    "ask": """
$ curl localhost:5556/api/jobs/nobody    # 404
$ curl 'localhost:5556/api/jobs?state=failed'    # 400
$ curl 'localhost:5556/api/jobs?tpye=pdf'    # 400
""",
    "before act": """
$ curl -X PATCH localhost:5556/api/jobs/$WAITS -H 'Content-Type: application/json' -d '{"priority": 11}'    # 422
$ curl -X PATCH localhost:5556/api/jobs/$RUNS -H 'Content-Type: application/json' -d '{"priority": 9}'    # 409
""",
    "act": """
$ curl -X DELETE localhost:5556/api/jobs/$WAITS    # 409
$ curl -X POST localhost:5556/api/jobs/nobody/retry    # 404
""",
    "many": """
$ curl -X DELETE 'localhost:5556/api/jobs'    # 400
""",
    "fleet": """
$ curl localhost:5556/api/status    # 200
$ curl localhost:5556/api/types    # 200
$ curl -X POST localhost:5556/api/types/pdf/pause -H 'Content-Type: application/json' -d '{"reason": "db migration", "for_s": 1800}'    # 202
$ curl localhost:5556/api/pauses    # 200
$ curl -X POST localhost:5556/api/types/pdf/resume    # 202
$ curl localhost:5556/api/pauses -H 'Content-Type: application/json' -d '{"kind": "key", "name": "city:HH", "reason": "their server is slow"}'    # 202
$ curl -X DELETE 'localhost:5556/api/pauses?kind=key&name=city:HH'    # 202
$ curl localhost:5556/api/pauses -H 'Content-Type: application/json' -d '{"kind": "all", "for_s": 600}'    # 202
$ curl -X DELETE 'localhost:5556/api/pauses?kind=all'    # 202
$ curl -X DELETE 'localhost:5556/api/pauses?kind=all'    # 409
$ curl localhost:5556/api/workers    # 200
$ curl -X POST localhost:5556/api/workers/$WORKER/drain    # 202
$ curl -X POST localhost:5556/api/workers/$WORKER/resume    # 202
$ curl localhost:5556/api/settings    # 200
$ curl -X PATCH localhost:5556/api/settings -H 'Content-Type: application/json' -d '{"age_weight": 20, "limits": "type:pdf=3"}'    # 200
$ curl -X PATCH localhost:5556/api/settings -H 'Content-Type: application/json' -d '{"age_weight": null, "limits": null}'    # 200
$ curl localhost:5556/api/reserves    # 200
$ curl localhost:5556/api/keys?pattern=city:*    # 200
$ curl localhost:5556/api/keys/city:HH    # 404
$ curl localhost:5556/api/tenants    # 200
$ curl -X PATCH localhost:5556/api/tenants/acme -H 'Content-Type: application/json' -d '{"max": 10, "weight": 3}'    # 200
$ curl -X DELETE localhost:5556/api/tenants/acme    # 200
$ curl localhost:5556/api/recurring    # 200
$ curl -X POST localhost:5556/api/recurring/plan-hamburg/fire    # 404
$ curl localhost:5556/api/dead?reason=rejected    # 200
$ curl localhost:5556/api/dead/$DEAD    # 200
$ curl -X POST localhost:5556/api/dead/$DEAD/replay    # 202
$ curl -X DELETE localhost:5556/api/dead/nobody    # 404
""",  # noqa: E501
    "lab": """
$ curl localhost:5556/api/lab/traces    # 404
$ curl localhost:5556/api/lab/traces/trace.jsonl/replay    # 404
$ curl localhost:5556/api/lab/traces/trace.jsonl/whatif -H 'Content-Type: application/json' -d '{"add": ["[pdf]:4"], "set": {"limits.type:pdf": "5"}, "rate": {"pdf": 1.5}}'    # 404
""",  # noqa: E501
}


@pytest.fixture
def shop(valkey, redis_client, tmp_path):
    """A worker and the HTTP interface of the page's app, and a function that runs a block of the page."""
    urls = f"\napp.conf.update(broker_url={valkey.url!r}, result_backend={valkey.url!r})\n"
    (tmp_path / "shop.py").write_text(blocks(PAGE)["shop.py"] + urls)
    env = {"PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    start_worker("shop", valkey.url, ["pdf"], name="worker", pool="threads", env=env)
    web = Process("web", [sys.executable, "-m", "celery", "-A", "shop", "affinity", "web", "--port", "0"], env)
    url = wait_until(lambda: re.search(r"http://\S+", web.log()), 60, f"it serves: {web.log()}").group()
    wait_until(lambda: httpx.get(f"{url}/api/workers").json(), 60, "the worker joins")
    return url


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_request_of_the_page(shop, redis_client):
    page = blocks(PAGE)
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    first = page["submit"].splitlines()[0]
    submitted = json.loads(run(first, shop))["id"]
    run(page["submit"], shop)
    run(MORE["submit"].strip(), shop)
    run(page["ask"] + MORE["ask"].strip(), shop, ID=submitted)
    assert json.loads(run("$ curl localhost:5556/api/jobs/$ID?wait=30 # 200", shop, ID=submitted))["state"] == "done"
    found = json.loads(run(page["values"], shop, ID=submitted))
    assert (found["state"], found["values"]["result"]) == ("done", "a.pdf rendered")
    assert found["waited_s"] >= 0 <= found["ran_s"]
    fleet.publish("waits", "pdf", delay_s=600)
    fleet.join("another", "mail", slots=2)
    fleet.publish("runs", "mail")
    (claim,) = fleet.inbox("another")
    for name in ("dead", "dead-too"):
        fleet.bury(name, "tomb")
    act = MORE["before act"].lstrip() + page["act"] + MORE["act"].strip()
    run(act, shop, WAITS="task-waits", RUNS="task-runs", DEAD="task-dead")
    fleet.end("another", claim)
    many_jobs(fleet, page["many"] + MORE["many"].strip(), shop)
    (worker,) = [each["name"] for each in httpx.get(f"{shop}/api/workers").json() if each["types"] == ["pdf"]]
    run(MORE["fleet"].strip(), shop, WORKER=worker, DEAD="task-dead-too")
    run(MORE["lab"].strip(), shop)
    run(page["probes"], shop)


def many_jobs(fleet, block, shop):
    """Run the commands on all jobs that match, on jobs that they match."""
    fleet.scheduler.publish(*fleet.made(["of-acme"], "excel", stamps=["customer:acme"]))
    for name in ("misspelt", "misspelt-too"):
        fleet.publish(name, "pfd")
    tried, cancelled, *others = block.splitlines()
    assert json.loads(run(tried, shop))["found"] == 1
    assert fleet.state("of-acme") == "pending"
    assert json.loads(run(cancelled, shop))["done"] == 1
    assert json.loads(run(others[0], shop))["found"] == 2
    assert json.loads(run(others[1], shop))["done"] == 2
    run("\n".join(others[2:]), shop)


def test_the_python_of_the_page(valkey, redis_client, tmp_path):
    page = blocks(PAGE)
    urls = f"\napp.conf.update(broker_url={valkey.url!r}, result_backend={valkey.url!r})\n"
    (tmp_path / "shop.py").write_text(page["shop.py"] + urls)
    code = "from shop import render\nfor number in range(25): render.delay(str(number))\n" + page["jobs.py"]
    code += page["mounted.py"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["pending revoked: it does not start"] * 5
