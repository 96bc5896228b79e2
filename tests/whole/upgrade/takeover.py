"""One release takes over from another on one server, with jobs in all states: no job is lost or runs too often."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import redis

from celery_affinity.schema.keys import Keys

from ...support.processes import Process, wait_until
from .releases import Release, copy_app

NOTHING = {"pending": 0, "claimed": 0, "scheduled": 0, "dead": 0}

#: A setting unknown to both releases, which must keep it.
UNKNOWN = "of_a_newer_release"

#: Forbidden in logs. A worker may log that another worker died, since one is killed.
_BAD = re.compile(r"Traceback|\bERROR\b|\bCRITICAL\b|deleted or overwrote")


def take_over(old: Release, new: Release, url: str, folder: Path) -> None:
    """Replace the workers of *old* by a worker of *new*, with running, waiting, merged, blocked and scheduled jobs.

    Both releases publish. One worker of *old* is killed, the other stops warmly.
    """
    copy_app(folder)
    ledger = redis.Redis.from_url(url, db=1, decode_responses=True)
    ledger.flushdb()
    settings = redis.Redis.from_url(url, decode_responses=True)
    settings.hset(Keys().key("settings"), UNKNOWN, "in turns")

    # Only the old release: two jobs run, one of them with a customer's key; the dying worker runs a third job.
    leaving = old.worker("leaving", "pdf", 2, url, folder)
    dying = old.worker("dying", "rare", 1, url, folder)
    held = _calls("hold", "held", 1) + _calls("hold", "keyed", 1, exclusive="customer:7")
    lost = _calls("hold", "lost", 1, queue="rare")
    old.publish(url, folder, held + lost)
    _wait_for(ledger, ["began held-0", "began keyed-0", "began lost-0"])

    # Both publish jobs that wait: calls that merge across releases, and calls blocked by the key.
    waiting = []
    for release in (old, new):
        mine = [
            *_calls("render", f"{release.name}-waits", 4, priority=5),
            *_calls("render", f"{release.name}-due", 2, countdown=8),
            *_calls("index", f"{release.name}-kept", 2, args=["7"]),
            *_calls("plan", f"{release.name}-merged", 3, args=["HH", 1]),
        ]
        release.publish(url, folder, mine)
        waiting += mine
    read = [release.status(url, folder) for release in (old, new)]  # a scheduled job may become pending between both
    assert [(each["pending"] + each["scheduled"], each["claimed"]) for each in read] == [(len(waiting) - 5, 3)] * 2

    # Both releases: the new release runs waiting jobs, but not those blocked by the key.
    staying = new.worker("staying", "pdf,rare", 2, url, folder)
    _wait_for(ledger, [f"ended {_id(each)}" for each in waiting if each[0] == "render"])
    assert not [each for each in _steps(ledger) if "-kept-" in each], "the key is not free"
    dying.kill()
    wait_until(lambda: _steps(ledger).count("began lost-0") == 2, 30, "the killed worker's job runs again")

    # The old release stops while its jobs run.
    leaving.term()
    wait_until(
        lambda: "Warm shutdown" in leaving.log() or "hitting Ctrl+C" in leaving.log(), 20, "the old worker stops"
    )
    ledger.set("go", 1)
    assert leaving.wait(30) == 0, leaving.log()
    ids = [_id(each) for each in held + lost + waiting]
    expected = {each: "HH" if "-merged-" in each else each for each in ids}
    assert new.results(url, folder, ids) == expected, "every caller gets its result"
    wait_until(lambda: new.status(url, folder) == NOTHING, 20, "no job is left")
    _check_runs(_steps(ledger))
    check = new.run(url, folder, "-m", "celery", "-A", "shop", "affinity", "check", "--repair", "--dry-run")
    assert settings.hget(Keys().key("settings"), UNKNOWN) == "in turns"
    staying.term()
    assert staying.wait(30) == 0, staying.log()
    _check_logs([leaving, dying, staying])
    print(
        f"  {old.name} -> {new.name}: {len(ids)} calls, {len(_steps(ledger))} steps; {check.splitlines()[-1]}",
        flush=True,
    )
    for process in (leaving, dying, staying):
        process.end()


def schema_written_by(release: Release, url: str, folder: Path) -> str:
    """Publish a job with *release* on an empty server; return the schema number."""
    copy_app(folder)
    release.publish(url, folder, _calls("render", "waits", 1))
    return redis.Redis.from_url(url, decode_responses=True).get(Keys().key("schema"))


def refuse(new: Release, url: str, folder: Path) -> None:
    """Check that *new* cannot publish, report or work with data of another schema, and does not change them."""
    client = redis.Redis.from_url(url)
    before = _contents(client)
    celery = ("-m", "celery", "-A", "shop")
    for words in (
        ("calls.py", json.dumps(_calls("render", "refused", 1))),
        (*celery, "affinity", "status"),
        (*celery, "worker", "-Q", "pdf", "-P", "solo"),
    ):
        assert "nothing was changed. Deploy a release that works with schema" in new.error_of(url, folder, *words)
        assert _contents(client) == before, words


def _contents(client: redis.Redis) -> dict[bytes, bytes]:
    return {name: client.dump(name) for name in client.scan_iter(Keys().base + "*")}


def _calls(task: str, name: str, number: int, args: Iterable[object] = (), **options: object) -> list[list]:
    name = re.sub(r"\W", "-", name)
    return [[task, [*args], {"task_id": f"{name}-{each}", **options}] for each in range(number)]


def _id(call: list) -> str:
    return call[2]["task_id"]


def _steps(ledger: redis.Redis) -> list[str]:
    return ledger.lrange("steps", 0, -1)


def _wait_for(ledger: redis.Redis, lines: list[str]) -> None:
    wait_until(lambda: {*lines} <= {*_steps(ledger)}, 30, f"{lines}")


def _check_runs(steps: list[str]) -> None:
    """Check that each job ran once, except the killed worker's, and that jobs with the key ran in turn."""
    again = {line: times for line, times in Counter(steps).items() if times != 1}
    assert again == {"began lost-0": 2}
    of_the_key = [line for line in steps if "keyed-0" in line or "-kept-" in line]
    assert len(of_the_key) == 10
    for began, ended in zip(of_the_key[::2], of_the_key[1::2], strict=True):
        assert began.replace("began", "ended") == ended, of_the_key


def _check_logs(processes: list[Process]) -> None:
    for process in processes:
        found = [line for line in process.log().splitlines() if _BAD.search(line)]
        assert found == [], f"{process.name}: {found}"
