"""The pages on problems show the exact output of the commands."""

import re
from time import monotonic

import click
import pytest
import redis

from celery_affinity.cli import explain_text
from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.reports.dead_letters import LETTERS, LetterFilter, find_letters
from celery_affinity.reports.explain import explain
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.status import Report
from celery_affinity.reports.type_limits import pause_address
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

from ..support.clocked import ClockedReader
from ..support.command import affinity
from ..support.messages import wire
from ..support.pages import blocks, commands, missing_lines, rows
from ..support.processes import ROOT, wait_until
from ..support.scripted_fleet import ScriptedFleet

PAGES = [
    f"docs/how-to/{name}.md"
    for name in ("troubleshooting", "urgent-tasks", "ran-twice-or-lost", "worker-problems", "publish-fails")
]
TEXT = "\n".join((ROOT / page).read_text() for page in PAGES)


def block(name):
    """Return the block *name*, which exactly one of the pages has."""
    (found,) = [blocks(page)[name] for page in PAGES if name in blocks(page)]
    return found


@pytest.fixture
def fleet(valkey, redis_client):
    return Shop(FakeClockScheduler(redis_client, Keys()))


class Shop(ScriptedFleet):
    """A scripted fleet whose tasks are the page's, and what the commands print of it."""

    def call(self, task, type_, **fields):
        mark = "!" if "rules" in fields else ""
        job = NewJob(f"job-{task}{mark}", type_, "{}", task_id=task, task_name="shop.render", **fields)
        (published,) = self.scheduler.publish(job)
        assert published.fresh

    def status(self):
        return click.unstyle(status_text(Report(ClockedReader(self.scheduler)).status()))

    def explain(self, task):
        return click.unstyle(explain_text.explanation_text(explain(ClockedReader(self.scheduler), task)))

    def blocked_by(self, task):
        return [each.why for each in explain(ClockedReader(self.scheduler), task).waiting.blocked_by]

    def dead_list(self):
        return click.unstyle(LETTERS.text(find_letters(ClockedReader(self.scheduler), LetterFilter())))


def says(name, printed):
    """Compare a block of the page with the output of a command: each of its lines is there, in this order."""
    assert missing_lines(block(name), printed) == [], printed


def test_everything_is_paused(fleet):
    fleet.join("pdf1", "pdf", slots=2)
    fleet.scheduler.pause(pause_address("all", ""), why="db migration")
    for number in range(3):
        fleet.call(f"report-{number}", "pdf")
    fleet.scheduler.advance(12 * 60 - 3)
    fleet.scheduler.heartbeat("pdf1", loop_runs=True)
    fleet.scheduler.advance(3)
    says("all-paused", fleet.status())


def test_a_type_does_not_run(fleet, valkey):
    fleet.join("pdf1", "pdf", slots=2)
    fleet.join("index1", "index", slots=2)
    fleet.scheduler.pause(pause_address("type", "index"))
    for type_, calls in {"pdf": 9, "index": 2, "pfd": 1}.items():
        for number in range(calls):
            fleet.call(f"{type_}-{number}", type_)
    fleet.scheduler.advance(252)
    says("types", fleet.status())
    (words,) = commands(block("move"))
    assert affinity(valkey.url, *words[4:], "--yes").returncode == 0
    assert explain(ClockedReader(fleet.scheduler), "pfd-0").type == "pdf"


def test_remarks_about_workers_and_types(fleet):
    fleet.join("drains", "pdf")
    fleet.sync("drains", draining=True)
    fleet.join("stalled", "pdf")
    fleet.scheduler.heartbeat("stalled", loop_runs=False)
    fleet.join("nothing")
    fleet.scheduler.configure({"reserve": "pdf:queued=2"})
    for number in range(6):
        fleet.call(f"index-{number}", "index", rules="key=acme limit=1")
    fleet.join("index", "index")
    found = fleet.status()
    for remark in (
        "draining",
        "its event loop is blocked",
        "takes no jobs",
        "5 wait for a key",
        "kept free: 2 for on-demand jobs",
    ):
        assert remark in found
        assert f"`{remark}`" in TEXT


def test_a_worker_is_slow(fleet):
    took_s = {"pdf1": 1, "pdf2": 1, "pdf3": 6}
    for worker in took_s:
        fleet.join(worker, "pdf")
    for number in range(30):
        for nth in took_s:
            fleet.call(f"{nth}-{number}", "pdf")
            (claim,) = [claim for each in took_s for claim in fleet.inbox(each)]
            ran_on = next(each for each in took_s if claim.job_id in fleet.claims(each))
            fleet.scheduler.advance(took_s[ran_on])
            fleet.end(ran_on, claim)
    fleet.hand_over()
    for worker in took_s:
        fleet.call(f"runs-on-{worker}", "pdf")
        fleet.scheduler.heartbeat(worker, loop_runs=True)
    says("slow", fleet.status())
    assert re.search(r"`slow: its pdf jobs take \d\.\d times as long as on other workers`", TEXT)


def test_one_task_waits(fleet):
    fleet.join("pdf1", "pdf", slots=2)
    fleet.call("first", "pdf")
    fleet.scheduler.advance(30)
    fleet.end("pdf1", *fleet.inbox("pdf1"))
    fleet.hand_over()
    for number in range(2):
        fleet.call(f"busy-{number}", "pdf")
    for number in range(2):
        fleet.call(f"urgent-{number}", "pdf", priority=5)
    fleet.call("report-7", "pdf")
    fleet.scheduler.advance(60)
    says("one-task", fleet.explain("report-7"))


def test_each_reason_of_the_table(fleet):
    fleet.join("pdf1", "pdf", slots=2)
    fleet.join("other", "index", "crawl", "mail", slots=9)
    fleet.join("reserved", "tables", slots=2)
    fleet.scheduler.configure(
        {
            "limits": shared_settings(Settings(limits={"type:crawl": 1, "customer:gone": 0}))["limits"],
            "reserve": "tables:queued=1",
        }
    )
    fleet.scheduler.tick()  # the jobs of a type with a new limit are counted
    fleet.scheduler.pause(pause_address("type", "index"), for_s=1800, why="db migration")
    acme, closed, rate = (
        "key=customer%3Aacme limit=1",
        "key=customer%3Agone limit=1",
        "key=rate%3Amail rate=2/60000000",
    )
    fleet.call("report-1", "pdf", rules=acme)
    fleet.call("report-2", "pdf", rules=acme)
    fleet.call("report-3", "pdf", rules=acme)
    fleet.call("gone", "pdf", rules=closed)
    for number in range(3):
        fleet.call(f"crawl-{number}", "crawl")
        fleet.call(f"mail-{number}", "mail", rules=rate)
        fleet.call(f"tables-{number}", "tables")
    fleet.call("pfd", "pfd")
    fleet.call("index", "index")
    found = fleet.blocked_by("mail-2")
    fleet.scheduler.advance(60)
    for task in ("report-3", "gone", "crawl-2", "tables-1", "pfd", "index"):
        found += fleet.blocked_by(task)
    fleet.call("more-1", "pdf")
    fleet.call("more-2", "pdf")
    found += fleet.blocked_by("more-2")
    table = [row[0].strip("`") for row in rows(TEXT.partition("| `blocked by` |")[2])]
    rate_limit, nothing = "a rate limit, or a full buffer", "nothing: a slot has just become free"
    overdue = "...; report-1"  # added to one of the others: tests/reports/test_explain has it
    shown_elsewhere = (rate_limit, nothing, overdue)
    assert [each for each in table if each not in found and not each.startswith(shown_elsewhere)] == [], found


def assert_behind(case, printed):
    """Compare two lines of `explain` with a row of the table on users who wait behind a batch."""
    found = rows(TEXT.partition("| `needs` | `ahead` |")[2])
    assert len(found) == 4
    needs, ahead = (cell.strip("`") for cell in found[case][:2])
    assert missing_lines(f"needs       {needs}\nahead       {ahead}\n", printed) == [], printed


def test_users_wait_while_a_batch_runs(fleet, valkey):
    fleet.join("pdf1", "pdf", slots=2)
    for number in range(42):
        fleet.call(f"batch-{number}", "pdf")
    fleet.scheduler.advance(20)
    fleet.call("user-1", "pdf")
    assert_behind(0, fleet.explain("user-1"))
    fleet.call("user-2", "pdf", on_demand=True)
    assert_behind(2, fleet.explain("user-2"))
    assert "rank        1 of its type, 1 of all jobs that its slots could take" in fleet.explain("user-2")
    assert "blocked by  all 2 slots that fit are busy or draining" in fleet.explain("user-2")
    (words,) = commands(block("keep-one-free"))
    assert affinity(valkey.url, *words[4:]).returncode == 0
    following = fleet.end("pdf1", *fleet.inbox("pdf1"))
    assert [each.job_id for each in following] == ["job-user-2"], "the other slot is left free"


def test_a_user_waits_behind_an_old_batch(fleet):
    fleet.join("pdf1", "pdf", slots=2)
    for number in range(42):
        fleet.call(f"batch-{number}", "pdf")
    fleet.scheduler.advance(257)
    fleet.call("user", "pdf", on_demand=True)
    assert_behind(1, fleet.explain("user"))


def test_where_a_task_is_that_is_not_pending(fleet):
    says("unknown", fleet.explain("report-9"))
    fleet.call("later", "pdf", delay_us=60_000_000)
    fleet.scheduler.advance(90)
    says("no-dispatcher", fleet.explain("later"))


def test_calls_that_no_worker_takes_are_shown_by_both_commands(fleet, valkey, redis_client):
    fleet.join("pdf1", "pdf")
    redis_client.lpush("celery", *(wire(f"report-{number}", task="shop.render") for number in range(9, 21)))
    says("stock-list", affinity(valkey.url, "status").stdout)
    says("in-a-list", affinity(valkey.url, "explain", "report-9").stdout)


def test_what_is_left_of_a_worker_that_is_gone(fleet):
    fleet.scheduler.configure({"max_deliveries": "1"})
    fleet.join("pdf1", "pdf", slots=2)
    fleet.call("report-7", "pdf")
    (lost,) = fleet.inbox("pdf1")
    fleet.scheduler.release_and_claim("pdf1", acks=[lost[:2]], ends=[], sequence=1, inline=False)
    fleet.call("poison-1", "pdf")
    fleet.inbox("pdf1")
    fleet.scheduler.recover("pdf1")
    says("gone", fleet.dead_list())


def test_dead_letters_of_a_deploy_are_replayed(fleet, valkey):
    fleet.join("pdf1", "pdf")
    fleet.call("report-7", "pdf")
    fleet.end("pdf1", *fleet.inbox("pdf1"), outcome="rejected NotRegistered: 'shop.render'")
    page = blocks("docs/how-to/upgrade.md")
    assert missing_lines(page["not-registered"], fleet.dead_list()) == []
    (words,) = commands(page["replay"])
    assert affinity(valkey.url, *words[4:]).stdout == "1 replayed\n"


def test_a_full_server_and_how_it_gets_room():
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        fleet = ScriptedFleet(Scheduler(client, Keys()))
        fleet.bury("old", "pdf")
        buried_s = monotonic()
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.RedisError, match=re.escape(block("full").strip())):
            fleet.publish("refused", "pdf")
        said = affinity(server.url, "check")
        assert missing_lines(block("memory-full"), said.stdout) == [], said.stdout
        (drop,) = re.findall(r"`celery -A shop affinity (dead drop .+?)`", TEXT)
        wait_until(lambda: monotonic() > buried_s + 1, 10, "the letter is a second old")
        assert affinity(server.url, *drop.replace("7d", "1s").split()).stdout == "1 dropped\n"
