"""The examples of web apps, of a nightly batch and of GPU workers run."""

import re
import shlex
from contextlib import contextmanager

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.reports.explain import explain
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.loader import load_settings
from celery_affinity.settings.wire import shared_settings

from ..support.command import affinity
from ..support.pages import blocks, commands
from ..support.processes import ROOT, start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet

PAGE, GPU = "docs/how-to/urgent-tasks.md", "docs/how-to/route-tasks.md"
#: Page and block of each app.
USERS_APP, BATCH_APP, GPU_APP = (PAGE, "shop.py"), (PAGE, "night.py"), (GPU, "cards.py")

#: A task that holds its slot until a file is there.
HOLD = """

@app.task(affinity="pdf")
def hold(path):
    import os, time
    while not os.path.exists(path):
        time.sleep(0.02)
"""


def code(app, url):
    """Return the code of *app*, for the server of the test."""
    page, block = app
    return re.sub(r"redis://localhost:6379/\d", url, blocks(page)[block])


@contextmanager
def shop(app, url):
    names = {"__name__": "shop"}
    exec(code(app, url), names)
    yield names
    names["app"].close()


def in_force(app):
    """Return the settings of *app* as a worker brings them."""
    return shared_settings(load_settings(app.conf, app.conf.keys()))


def test_a_user_starts_at_once_while_a_batch_holds_all_it_may(valkey, redis_client, tmp_path):
    (tmp_path / "shop.py").write_text(code(USERS_APP, valkey.url) + HOLD)
    worker = start_worker("shop", valkey.url, ["pdf"], concurrency=2, pool="threads", env={"PYTHONPATH": str(tmp_path)})
    worker.wait_ready(60)
    with shop(USERS_APP, valkey.url) as names:
        page = blocks(PAGE)
        exec(HOLD, names)
        for block in ("view", "ask-again"):
            exec(page[block].replace("timeout=10", "timeout=30"), names)
        for _ in range(4):
            names["hold"].delay(str(tmp_path / "go"))
        assert names["invoice"](7) == (200, "invoice 7 as a PDF"), "one slot was left free"
        names["hold"].apply_async((str(tmp_path / "go"),), on_demand=True)  # takes that one
        exec(page["view"].replace("timeout=10", "timeout=0.2"), names)
        status, task_id = names["invoice"](8)
        assert status == 202
        assert names["state"](task_id)[1]["state"] == "pending"
        (tmp_path / "go").touch()
        wait_until(lambda: names["state"](task_id) == (200, "invoice 8 as a PDF"), 30, "the user gets the answer")


@pytest.mark.parametrize("app", [USERS_APP, BATCH_APP])
def test_an_old_batch_goes_before_a_user_unless_a_slot_is_reserved(valkey, redis_client, app):
    for is_reserved in (False, True):
        redis_client.flushall()
        fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
        with shop(app, valkey.url) as names:
            if is_reserved:
                fleet.scheduler.configure({"reserve": in_force(names["app"])["reserve"]})
        fleet.join("worker", "pdf", slots=2)
        for number in range(6):
            fleet.publish(f"batch-{number}", "pdf")
        fleet.scheduler.advance(257)
        fleet.publish("user", "pdf", on_demand=True)
        claims = fleet.inbox("worker")
        following = [each.job_id for each in fleet.end("worker", claims[0])]
        if is_reserved:
            assert [each.job_id for each in claims] == ["batch-0", "user"]
        else:
            assert following == ["batch-2"]


def test_the_batch_of_tonight_waits_and_is_cancelled_by_its_stamp(valkey, redis_client, tmp_path):
    page = blocks(PAGE)
    with shop(BATCH_APP, valkey.url) as names:
        names["customers"] = lambda: (f"customer-{number}" for number in range(1200))
        exec(page["tonight"], names)
        assert len(names["ids"]) == 1200
        found = explain(Reader(redis_client, Keys()), names["ids"][0])
        assert (found.state, found.type, found.priority) == ("scheduled", "pdf", 0)
        assert in_force(names["app"])["limits"] == "type%3Amail=5"
    said = [affinity(valkey.url, *words[words.index("affinity") + 1 :]) for words in commands(page["watch"])]
    assert [run.returncode for run in said] == [0] * len(said), said
    assert "1,200" in said[-1].stdout or "1200" in said[-1].stdout
    assert redis_client.zcard("{affinity:default}:scheduled") == 0


def joined(fleet, block):
    """Have the workers of a console block join a scripted fleet."""
    for line in block.splitlines():
        words = shlex.split(line)
        option = {words[at]: words[at + 1] for at in range(len(words)) if words[at] in ("-Q", "-c", "-n", "-P")}
        assert option["-P"] == "threads"
        fleet.join(option["-n"].removesuffix("@%h"), *option["-Q"].split(","), slots=int(option["-c"]))


def test_small_cards_go_first_and_the_spare_one_helps(valkey, redis_client):
    page = blocks(GPU)
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    with shop(GPU_APP, valkey.url) as names:
        names["app"].conf.task_ignore_result = True
        exec(page["models"], names)
        exec(page["shared"], names)
        joined(fleet, page["workers"])
        joined(fleet, page["models-workers"])

        def got(*workers):
            return [len(fleet.inbox(worker)) for worker in workers]

        for _ in range(2):
            names["transcribe"].delay("a.wav")
        names["summarise"].delay("...")
        assert got("gpu0", "gpu1", "gpu2") == [1, 1, 1], "the large card was left for what needs it"
        names["ask"]("small", "who?")
        assert got("small", "large", "spare") == [1, 0, 0]
        names["ask"]("small", "when?")
        assert got("small", "large", "spare") == [0, 0, 1]
        loaded = []
        names["load"] = lambda name: loaded.append(name) or (lambda question: f"{name}: {question}")
        assert [names["answer"](name, "?") for name in ("small", "small", "large")] == ["small: ?"] * 2 + ["large: ?"]
        assert loaded == ["small", "large"]
        for host in ("a", "a", "b"):
            names["calibrate"].delay(host)
        keys = affinity(valkey.url, "keys").stdout
        assert re.search(r"card:a\s+1\s", keys), keys


def test_the_hours_of_the_batch_are_computed():
    text = " ".join((ROOT / PAGE).read_text().split())
    calls, each_s, slots, kept = 100_000, 2, 10, 1
    took_s = calls * each_s / (slots - kept)
    assert f"200,000 / 9 = {took_s:,.0f} s" in text
    assert "six hours and ten minutes" in text
    assert int(took_s // 60) == 6 * 60 + 10


def test_calls_with_due_times_have_a_head_start(valkey, redis_client):
    with shop(USERS_APP, valkey.url) as names:
        exec(blocks(PAGE)["due"], names)
        jobs = [redis_client.hmget(job, "due", "head") for job in redis_client.scan_iter("*job:*")]
    heads_s = {due.split()[1][:1]: int(head) / 1_000_000 for due, head in jobs}
    assert heads_s == {b"w": 226, b"d": pytest.approx(256 - 120, abs=5)}
    assert "is ordered like a job published 226 s earlier" in " ".join((ROOT / PAGE).read_text().split())
