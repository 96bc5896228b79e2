"""The alerts and the dashboard of `examples`, and the page about them, name metrics and labels that there are."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from celery_affinity.observe.metric_list import FIGURES, Histogram

from ..support.pages import blocks
from ..support.processes import ROOT

ALERTS, DASHBOARD, PAGE = ROOT / "examples/alerts.yml", ROOT / "examples/grafana.json", ROOT / "docs/how-to/alerts.md"
SYNTHETIC = ROOT / "tests/docs/alerts_test.yml"

#: Labels that Prometheus adds to each series.
_ITS_OWN = {"instance", "job"}


def labels_of_metrics():
    found = {}
    for figure in FIGURES:
        if isinstance(figure, Histogram):
            found |= {f"{figure.name}{suffix}": {*figure.labels} for suffix in ("_sum", "_count")}
            found[f"{figure.name}_bucket"] = {*figure.labels, "le"}
        else:
            found[figure.name] = {*figure.labels}
    return found


def check(expression):
    known = labels_of_metrics()
    named = re.findall(r"celery_affinity_\w+", expression)
    assert named, expression
    assert {*named} <= known.keys(), expression
    for name, selectors in re.findall(r"(celery_affinity_\w+)\{(.*?)\}", expression):
        used = set(re.findall(r"(\w+)(?==~|!=|=)", selectors))
        assert used <= known[name], expression
    labels = set().union(*(known[name] for name in named)) | _ITS_OWN
    for group in re.findall(r"\b(?:by|on) \((.*?)\)", expression):
        assert {each.strip() for each in group.split(",")} <= labels, expression
    return labels


def rules():
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_names_metrics_and_labels_that_there_are(rule):
    labels = check(rule["expr"])
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


def test_the_dashboard_has_panels_whose_metrics_there_are():
    found = json.loads(DASHBOARD.read_text())
    assert found["schemaVersion"] == 39
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"]) >= 10
    variables = {each["name"] for each in found["templating"]["list"]}
    for panel in found["panels"]:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        for target in panel["targets"]:
            labels = check(target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
    for variable in found["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
            assert label in labels_of_metrics()[metric]


def test_the_page_scrapes_the_port_that_the_command_listens_at():
    wanted = yaml.safe_load(blocks(PAGE)["prometheus.yml"])
    assert wanted["scrape_configs"][0]["static_configs"] == [{"targets": ["localhost:9810"]}]
    assert wanted["rule_files"] == ["alerts.yml"]
