"""A worker with redis-py's default protocol, and with connections that wait at most 5 s for a reply (redis-py 8's
default).

redis-py chooses RESP3 since version 8. Version 5.2, in the oldest corner of the matrix, chooses RESP2.

The event loop waits for the inbox of `default`. A thread with a blocking read waits for the inbox of the other cohort.
"""

import json
import time

import psutil
import pytest
import redis

from ..support.apps import APP, app_for
from ..support.fleet import POOLS, in_time
from ..support.processes import wait_until

#: redis-py's default protocol.
CHOSEN = "3" if int(redis.__version__.partition(".")[0]) >= 8 else "2"


def waiting(client, pid):
    """Map the ids of the connections on which process *pid* waits for jobs or commands to their protocols."""
    ports = {each.laddr.port for each in psutil.Process(pid).net_connections()}
    ours = [each for each in client.client_list() if int(each["addr"].rpartition(":")[2]) in ports]
    return {each["id"]: each["resp"] for each in ours if each["cmd"] in ("brpop", "psubscribe")}


def waits(client):
    """Return the number of waits for an inbox so far."""
    return client.info("commandstats").get("cmdstat_brpop", {"calls": 0})["calls"]


@pytest.mark.parametrize(("pool", "timeout_s"), in_time(*((each, 1) for each in POOLS), ("threads", 5)))
def test_worker_idles_longer_than_its_reply_timeout(fleet, pool, timeout_s):
    conf = {"broker_transport_options": {"socket_timeout": timeout_s}, "affinity_cohorts": {"ml": {"types": ["gpu*"]}}}
    worker = fleet.start("idle", "pdf", "gpu", pool=pool, CONF=json.dumps(conf))
    worker.wait_ready(30)
    pid = worker.pid
    wait_until(lambda: len(waiting(fleet.redis, pid)) >= 3, 20, "it waits for jobs of both cohorts, and commands")
    before, began, since_s = waiting(fleet.redis, pid), waits(fleet.redis), time.monotonic()
    assert set(before.values()) == {CHOSEN}
    is_long = lambda: time.monotonic() - since_s > 1.5 * timeout_s and waits(fleet.redis) > began + 4  # noqa: E731
    wait_until(is_long, 60, "it has waited longer than for a reply")
    assert before.items() <= waiting(fleet.redis, pid).items(), "it has connected anew"
    with app_for(fleet.url, **conf) as producer:
        for queue in ("pdf", "gpu"):
            producer.send_task(f"{APP}.pdf", (queue,), queue=queue, ignore_result=True)
    wait_until(lambda: fleet.ledger.ends() == {"pdf": 1, "gpu": 1}, 20, "the jobs run")
    assert not [word for word in ("onnection to broker lost", "Timeout", "Traceback") if word in worker.log()]
