"""The dashboard of `examples`: Grafana can read it, Prometheus its expressions, and a fleet fills each panel."""

import json
import re
import shutil
import subprocess
from collections import Counter
from itertools import combinations

import pytest
import yaml

from celery_affinity.reports.metrics import metrics_text, read_metrics
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.exported import labels_in, labels_of_metrics
from ..support.processes import ROOT
from ..support.scripted_fleet import ScriptedFleet

DASHBOARD = json.loads((ROOT / "examples/grafana.json").read_text())
PANELS = DASHBOARD["panels"]
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
KEYED = "key=city%3AHH limit=1"

with_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool comes with Prometheus (Debian: prometheus)"
)


def variables(type_):
    return {each["name"]: each for each in DASHBOARD["templating"]["list"] if each["type"] == type_}


def test_it_has_what_grafana_asks_of_a_dashboard():
    assert DASHBOARD["schemaVersion"] == 39
    assert "id" not in DASHBOARD, "it is of one Grafana, which gives it"
    assert 8 <= len(DASHBOARD["uid"]) <= 40
    assert DASHBOARD["title"]
    assert DASHBOARD["time"].keys() == {"from", "to"}
    assert isinstance(DASHBOARD["annotations"]["list"], list)
    ids = Counter(panel["id"] for panel in PANELS)
    assert ids.most_common(1)[0][1] == 1
    assert all(isinstance(each, int) and each > 0 for each in ids)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS) >= 10


def test_a_panel_has_what_grafana_asks_of_one(subtests):
    for panel in PANELS:
        with subtests.test(str(panel)):
            assert panel["type"] in ("stat", "timeseries")
            assert panel["targets"], "it shows something"
            names = [target["refId"] for target in panel["targets"]]
            assert len(set(names)) == len(names)
            assert all(re.fullmatch("[A-Z]", name) for name in names)
            assert [panel["datasource"], *(target["datasource"] for target in panel["targets"])] == [SOURCE] * (
                len(names) + 1
            )
            shown = panel["fieldConfig"]["defaults"]
            assert shown["unit"] in ("short", "s", "ops")
            assert panel["fieldConfig"]["overrides"] == []
            if steps := shown.get("thresholds", {}).get("steps"):
                assert [steps[0]["value"], *sorted(step["value"] for step in steps[1:])] == [
                    step["value"] for step in steps
                ]
                assert steps[0]["value"] is None, "a first step is for all below the second"


def test_panels_lie_on_the_grid_and_beside_each_other():
    places = [panel["gridPos"] for panel in PANELS]
    for place in places:
        assert place.keys() == {"x", "y", "w", "h"}
        assert min(place["x"], place["y"]) >= 0 < min(place["w"], place["h"])
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        is_beside = any(
            one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in ("xw", "yh")
        )
        assert is_beside, f"{one} and {other} overlap"


def test_its_variables_are_a_prometheus_and_types():
    (source,) = variables("datasource").values()
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    (types,) = variables("query").values()
    assert types["datasource"] == SOURCE
    assert types["query"]["query"] == types["definition"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", types["definition"]).groups()
    assert label in labels_of_metrics()[metric]
    assert types["multi"], "an expression compares it by =~"
    assert (types["includeAll"], types["allValue"], types["current"]["value"]) == (True, ".*", "$__all")
    assert len(DASHBOARD["templating"]["list"]) == 2
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS)))
    assert used == {"datasource", "type"}


def test_an_expression_names_metrics_and_labels_that_there_are(subtests):
    for panel, target in TARGETS:
        with subtests.test(str((panel, target))):
            labels = labels_in(target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {"type"}
            assert target["expr"].count('=~"$type"') == target["expr"].count("$type"), "several can be chosen"


def as_prometheus_gets_it(target):
    return target["expr"].replace("$type", ".*")


@with_prometheus
def test_prometheus_can_read_each_expression(tmp_path):
    rules = [
        {"record": f"panel_{panel['id']}:{target['refId']}", "expr": as_prometheus_gets_it(target)}
        for panel, target in TARGETS
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    subprocess.run(["promtool", "check", "rules", str(path)], check=True, timeout=60)


@pytest.fixture
def exported(redis_client):
    """Return what a fleet exports, and then what it exports after more of all of that."""
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("pdf", "pdf", slots=2)
    fleet.join("web", "web", slots=1)
    texts = []
    for nth in range(2):
        for mode in (False, True):
            for outcome in ("acked", "failed", "rejected"):
                job = f"{nth} {outcome} {mode}".replace(" ", "-")
                fleet.publish(job, "pdf", on_demand=mode)
                fleet.end("pdf", *fleet.inbox("pdf"), outcome=outcome)
        fleet.publish(f"keyed{nth}!", "web", rules=KEYED)
        fleet.publish(f"kept{nth}!", "web", rules=KEYED)
        fleet.publish(f"alone{nth}", "nobody")
        fleet.hand_over()
        texts.append(metrics_text(read_metrics(fleet.scheduler.reader)))
    return texts


def series_of(texts):
    """Return series that have the values of the first text for two minutes, and then those of the second."""
    first, second = (
        dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")) for text in texts
    )
    return [
        {"series": name, "values": " ".join([first.get(name, "_")] * 2 + [value] * 2)} for name, value in second.items()
    ]


def has_some(expression, label=None):
    """Return an expression that is 1 if another has a value that is a number, in a series that has *label*."""
    if label:
        yes = 'label_replace(vector(1), "has", "it", "", "")'
        expression = f'label_replace({expression}, "has", "it", "{label}", ".+") and on (has) {yes}'
    return f"count(({expression}) >= 0) > bool 0"


@with_prometheus
def test_each_panel_has_a_series_for_its_legend_while_a_fleet_works(exported, tmp_path):
    wanted = []
    for _, target in TARGETS:
        expression = as_prometheus_gets_it(target)
        wanted += [has_some(expression, label) for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])]
        wanted.append(has_some(expression))
    is_so = [{"labels": "{}", "value": 1}]
    test = {
        "interval": "1m",
        "input_series": series_of(exported),
        "promql_expr_test": [{"expr": each, "eval_time": "3m", "exp_samples": is_so} for each in wanted],
    }
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
