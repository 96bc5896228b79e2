"""The examples of the pages on locks and rates run, and `explain` prints the output on the page."""

import click
import pytest

from celery_affinity import Affinity, Exclusive
from celery_affinity.cli import explain_text
from celery_affinity.errors import OptionError
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.options.keys import specificity
from celery_affinity.reports.explain import explain
from celery_affinity.reports.key_usage import find_keys
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.constants import MAX_KEY_LENGTH
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings

from ..support.apps import app_for
from ..support.clocked import ClockedReader
from ..support.command import affinity
from ..support.pages import blocks, commands
from ..support.processes import ROOT
from ..support.scripted_fleet import ScriptedFleet

PAGE, RATES = "docs/how-to/locks.md", "docs/how-to/rate-limits.md"
PAUSES = "docs/how-to/pause-and-drain.md"


def keys_of(client):
    return {each.key: (each.limit, each.waiting) for each in find_keys(Reader(client, Keys()), "*", 100).keys}


def test_tasks_and_calls_name_their_keys(shop, redis_client):
    for customer in ("acme", "acme", "other"):
        shop["rebuild"].delay(customer)
    shop["crawl"].delay(host="example.org")
    assert keys_of(redis_client) == {
        "customer:acme": (1, 2),
        "customer:other": (1, 1),
        "host:example.org": (4, 1),
    }
    exec(blocks(PAGE)["call"], shop)
    assert keys_of(redis_client)["the-one-big-machine"] == (1, 1)
    assert Reader(redis_client, Keys()).pending("index") == 5


def test_a_producer_without_the_code_names_them_by_a_pattern(shop, valkey, redis_client):
    app = app_for(valkey.url)
    exec(blocks(PAGE)["by-name"], {"app": app})
    app.send_task("shop.rebuild", kwargs={"customer": "acme"}, queue="index", ignore_result=True)
    app.close()
    assert keys_of(redis_client) == {"customer:acme": (1, 1)}


def test_the_limits_of_the_page_are_accepted(shop):
    exec(blocks(PAGE)["limits"], shop)
    assert Settings(limits=shop["app"].conf.affinity_limits)


def test_100_jobs_start_after_a_quiet_minute_and_then_one_every_0_6_s(redis_client):
    names = {"__name__": "shop"}
    exec(blocks(RATES)["shop.py"], names)
    names["app"].close()
    rules = names["send"].affinity.rate.text("account:acme")
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("worker", "mail", slots=300)
    for number in range(220):
        fleet.publish(f"mail-{number}!", "mail", rules=rules)

    def started(after_s):
        fleet.scheduler.advance(after_s)
        fleet.scheduler.tick()
        return len(fleet.inbox("worker"))

    assert [started(after_s) for after_s in (0, 0.5, 0.1, 59.4)] == [100, 0, 1, 99]


def test_the_narrower_of_two_keys_comes_first(shop):
    exec(blocks(PAGE)["both"], shop)
    remind = shop["remind"]
    assert [each.option for each in remind.affinity.keys] == ["rate", "exclusive"]
    assert specificity(remind.affinity.exclusive) > specificity(remind.affinity.rate)


@pytest.mark.parametrize(
    ("page", "block"),
    [(PAGE, "at-run-time"), (PAGE, "limit-of-a-type"), (RATES, "rate-at-run-time"), (PAUSES, "pauses")],
)
def test_the_commands_of_the_page_work(valkey, redis_client, page, block):
    for words in commands(blocks(page)[block]):
        run = affinity(valkey.url, *words[words.index("affinity") + 1 :])
        assert run.returncode == 0, f"{words}: {run.stderr}"


def test_the_page_shows_what_explain_prints(valkey, redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("worker", "index", slots=4)
    fleet.publish("timed", "index")
    fleet.scheduler.advance(12)
    fleet.end("worker", *fleet.inbox("worker"))
    fleet.hand_over()
    for job in ("busy!", "first!", "second!", "third!"):
        fleet.publish(job, "index", rules="key=customer%3Aacme limit=1")
    fleet.scheduler.advance(12)
    found = click.unstyle(explain_text.explanation_text(explain(ClockedReader(fleet.scheduler), "task-third!")))
    assert blocks(PAGE)["explain"] in found + "\n"


def test_a_task_sees_the_fence_of_the_page(shop):
    exec(blocks(PAGE)["fence"], shop)
    assert shop["publish_index"].rate_limit is None


def test_what_the_page_says_is_refused_is_refused(shop):
    app = shop["app"]
    with pytest.raises(OptionError, match="customer"):
        app.task(affinity=Affinity("index", exclusive="{city}"), shared=False)(lambda customer: customer).delay("a")
    with pytest.raises(OptionError, match="limit of exclusive must be a whole number above 0, up to 1,000,000,000"):
        Exclusive("a", limit=0)
    for key in ("", "rate:x", "type:x"):
        with pytest.raises(OptionError):
            Exclusive(key)
        with pytest.raises(OptionError):
            shop["rebuild"].apply_async(("acme",), exclusive=key)
    assert f"more than {MAX_KEY_LENGTH} characters" in (ROOT / PAGE).read_text()
