"""Users of several cohorts can do their work with the page's rights, given once more for the keys of each cohort."""

import json
import re

import pytest
import redis

from celery_affinity.embedded.server import EmbeddedServer

from ..support.acl_users import PAGE, USERS, refused, run_as
from ..support.apps import APP
from ..support.command import affinity
from ..support.ledger import Ledger
from ..support.processes import start_worker, wait_until

OWN = "{affinity:default}"


def rights(user, *cohorts):
    """Return the page's line of *user* with each pattern of keys given for *cohorts*."""
    found = []
    for word in PAGE[user].replace("~excel", "~gpu").replace("~index", "~eu").split():  # the queues, as the page says
        found += [word.replace(OWN, f"{{affinity:{name}}}") for name in cohorts] if OWN in word else [word]
    return found


@pytest.fixture
def users_on(redis_client):
    """Return the client of the broker, without its users afterwards."""
    redis_client.acl_log_reset()
    yield redis_client
    for user in USERS:
        redis_client.acl_deluser(user)


@pytest.fixture
def other():
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        yield server, client


def test_a_fleet_of_cohorts_works_with_the_rights_for_the_keys_of_each(valkey, users_on, other, tmp_path):
    redis_client, (server, client) = users_on, other
    for user in USERS:
        redis_client.execute_command(*rights(user, "default", "ml"))
        client.execute_command(*rights(user, "eu"))
        for each in (redis_client, client):
            each.execute_command(*f"ACL SETUSER {user} +client|setinfo".split())

    def conf(user):
        url = re.sub("redis://", f"redis://{user}:PASSWORD@", server.url)
        return json.dumps({"affinity_cohorts": {"ml": {"types": ["gpu*"]}, "eu": {"types": ["eu.*"], "url": url}}})

    def url(user):
        return re.sub("redis://", f"redis://{user}:PASSWORD@", valkey.url)

    ledger = Ledger(tmp_path / "ledger")
    types = ["pdf", "gpu.big", "eu.pdf"]
    env = {"LEDGER": str(ledger.path)}
    worker = start_worker(APP, url("worker"), types, pool="threads", concurrency=3, env=env | {"CONF": conf("worker")})
    worker.wait_ready(30)
    sends = "; ".join(f"app.send_task('{APP}.late', ({each!r},), queue={each!r}, ignore_result=True)" for each in types)
    sent = run_as(url("producer"), "-c", f"from {APP} import app; {sends}", CONF=conf("producer"))
    assert sent.returncode == 0, sent.stderr
    wait_until(lambda: set(ledger.ends()) == set(types), 20, f"all run\n{worker.log()}")
    seen = affinity(url("observer"), "status", "--json", CONF=conf("observer"))
    assert {each["type"]: each["cohort"] for each in json.loads(seen.stdout)["types"]} == {
        "pdf": "default",
        "gpu.big": "ml",
        "eu.pdf": "eu",
    }, seen.stderr
    assert refused(redis_client) == []
    assert refused(client) == []
