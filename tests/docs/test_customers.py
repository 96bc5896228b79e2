"""`python -m examples.customers`, run as a user runs it: real documents, and three customers, one with a flood."""

import json
import subprocess
import sys

import pytest

from examples.comparing import record


@pytest.mark.slow  # three fleets, one after the other
def test_all_work_is_done_and_shown_on_one_page(valkey, tmp_path, monkeypatch):
    monkeypatch.setenv("REDIS_URL", valkey.url)
    words = ["--sides", "quotas", "--seconds", "2", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "examples.customers", *words], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "share, max 2, min 1 for small" in done.stdout
    events = [json.loads(line) for line in (tmp_path / "quotas" / record.NAME).read_text().splitlines()]
    published = {each["id"]: each["about"] for each in events if each["event"] == "published"}
    customers = {*published.values()}
    assert customers <= {"flood", "acme", "small"}
    assert "flood" in customers
    assert len(customers) > 1, "a short plan can lack spreadsheets, and then acme has no calls"
    running, highest = dict.fromkeys(customers, 0), dict.fromkeys(customers, 0)
    for each in sorted((each for each in events if each["event"] in ("started", "ended")), key=lambda each: each["at"]):
        customer = published[each["id"]]
        running[customer] += 1 if each["event"] == "started" else -1
        highest[customer] = max(highest[customer], running[customer])
    assert all(number <= 2 for number in highest.values()), "no customer has more slots than its maximum"
    page = (tmp_path / "customers.html").read_text()
    for text in ("Three customers", "The median wait of"):
        assert text in page
