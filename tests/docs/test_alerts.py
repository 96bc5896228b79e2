"""The alerts of `examples`, and the page about them, name metrics and labels that there are."""

import re
import shutil
import subprocess

import pytest
import yaml

from ..support.exported import labels_in
from ..support.pages import blocks
from ..support.processes import ROOT

ALERTS, PAGE = ROOT / "examples/alerts.yml", ROOT / "docs/how-to/monitoring.md"
SYNTHETIC = ROOT / "tests/docs/alerts_test.yml"


def rules():
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


def test_an_alert_names_metrics_and_labels_that_there_are(subtests):
    for rule in rules():
        with subtests.test(str(rule)):
            labels = labels_in(rule["expr"])
            assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels
            assert rule["labels"]["severity"] in ("page", "ticket")


def test_each_alert_is_on_the_page_and_has_synthetic_series():
    names = [rule["alert"] for rule in rules()]
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE) == names
    tests = yaml.safe_load(SYNTHETIC.read_text())["tests"]
    assert {each["alertname"] for test in tests for each in test["alert_rule_test"]} == {*names}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus (Debian: prometheus)")
@pytest.mark.parametrize("words", [("check", "rules", ALERTS), ("test", "rules", SYNTHETIC)], ids=["check", "series"])
def test_prometheus_accepts_the_alerts_and_they_fire_where_they_are_to(words):
    subprocess.run(["promtool", *map(str, words)], check=True, timeout=60)


def test_the_page_scrapes_the_port_that_the_command_listens_at():
    wanted = yaml.safe_load(blocks(PAGE)["prometheus.yml"])
    assert wanted["scrape_configs"][0]["static_configs"] == [{"targets": ["localhost:9810"]}]
    assert wanted["rule_files"] == ["alerts.yml"]
