"""A worker on the protocol that redis-py chooses, RESP3 since version 8, whose connections wait for a reply as long as
redis-py 8 lets them by default, 5 s, or less. Version 5.2 chooses RESP2: the oldest corner of the matrix has it.

The event loop waits for the inbox of `default`, and a thread, whose read blocks, for that of another cohort.
"""

import json
import time

import psutil
import pytest
import redis

from ..support.apps import APP, app_for
from ..support.fleet import POOLS, in_time
from ..support.processes import wait_until

#: The protocol that redis-py chooses if nobody says one.
CHOSEN = "3" if int(redis.__version__.partition(".")[0]) >= 8 else "2"


def waiting(client, pid):
    """Return the id of each connection of process *pid* on which it waits for jobs or commands -> its protocol."""
    ports = {each.laddr.port for each in psutil.Process(pid).net_connections()}
    ours = [each for each in client.client_list() if int(each["addr"].rpartition(":")[2]) in ports]
    return {each["id"]: each["resp"] for each in ours if each["cmd"] in ("brpop", "psubscribe")}


def waits(client):
    """Return how often somebody has begun to wait for an inbox."""
    return client.info("commandstats").get("cmdstat_brpop", {"calls": 0})["calls"]


@pytest.mark.parametrize(("pool", "timeout_s"), in_time(*((each, 1) for each in POOLS), ("threads", 5)))
def test_a_worker_idles_longer_than_its_connections_wait_for_a_reply(fleet, pool, timeout_s):
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
