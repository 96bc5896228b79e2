"""The example of the page on preemption is run: a batch stops when it is asked to, and goes on from its checkpoint."""

import re

import pytest

from celery_affinity import OptionError
from celery_affinity.schema.rules_codec import decode_rules

from ..support.pages import blocks
from ..support.preempting import Victim
from ..support.processes import start_worker, wait_until

PAGE = "docs/how-to/preempt.md"

#: What the batch does with an order: the first runs say how far they are, and wait.
STORE = """

import time

def store(order):
    checkpoints.rpush("stored", order)
    while order == 2 and not checkpoints.exists("go on") and not preempted():
        time.sleep(0.02)
"""


@pytest.fixture
def code(valkey):
    page = blocks(PAGE)
    return re.sub(r"redis://localhost:6379/\d", valkey.url, page["shop.py"] + page["checkpoints"] + STORE)


@pytest.fixture
def shop(code):
    names = {"__name__": "shop"}
    exec(code, names)
    yield names
    names["app"].close()


def test_the_batch_of_the_page_goes_on_from_its_checkpoint(code, shop, valkey, redis_client, tmp_path):
    (tmp_path / "shop.py").write_text(code)
    worker = start_worker("shop", valkey.url, ["pdf"], env={"PYTHONPATH": str(tmp_path)}, extra=["--without-mingle"])
    victim = Victim(redis_client, shop["archive"].delay([0, 1, 2, 3, 4]))
    wait_until(lambda: redis_client.llen("stored") == 3, 30, worker.log())
    before = victim.order(60_000)
    redis_client.set("go on", 1)
    assert victim.result.get(timeout=30) == 5
    stored = [int(each) for each in redis_client.lrange("stored", 0, -1)]
    assert stored == [0, 1, 2, 3, 4], "nothing twice"
    assert int(victim.row()["fence"]) > int(before["fence"])
    said = re.sub(re.escape(victim.id), "3d1f…", worker.log())
    assert blocks(PAGE)["asked"].strip().replace("10 s", "60 s") in said


def test_a_task_of_the_page_without_late_acks_is_refused(shop):
    assert decode_rules("key=tenant%3Abatch quota=settings preemptible=1").is_preemptible
    with pytest.raises(OptionError, match="preemptible=True needs acks_late=True"):
        shop["render"].apply_async(("acme", 7), preemptible=True)
    shop["archive"].apply_async(([],), preemptible=False, countdown=60)
