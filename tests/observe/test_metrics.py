"""The figures for Prometheus, and the page that lists them."""

import re

import yaml

from celery_affinity.observe.metrics import FIGURES
from celery_affinity.observe.status import MOST_CLAIMS_READ

from ..support.flower import PREFIX
from ..support.pages import blocks
from ..support.processes import ROOT

PAGE = ROOT / "docs/how-to/flower.md"


def test_names_of_figures_say_their_unit():
    for figure in FIGURES:
        assert re.fullmatch(r"celery_affinity_[a-z_]+", figure.name)
        assert figure.name.endswith(
            (
                "_jobs",
                "_seconds",
                "_slots",
                "_workers",
                "_letters",
                "_keys_waiting",
                "_keys",
                "_paused",
                "_total",
                "_up",
            )
        )


def test_the_page_lists_every_metric():
    page = PAGE.read_text()
    listed = re.findall(rf"^\| `({PREFIX}\w+)`", page, re.MULTILINE)
    assert listed == [figure.name for figure in FIGURES]
    for figure in FIGURES:
        assert f"| `{figure.name}` | {', '.join(f'`{label}`' for label in figure.labels)} | {figure.help} |" in page
    assert f"more than {MOST_CLAIMS_READ:,} in all" in page


def test_the_pages_alerts_name_metrics_and_labels_that_there_are():
    labels = {figure.name: set(figure.labels) for figure in FIGURES}
    (group,) = yaml.safe_load(blocks(PAGE)["alerts.yml"])["groups"]
    for rule in group["rules"]:
        named = set(re.findall(rf"{PREFIX}\w+", rule["expr"]))
        assert named
        assert named <= labels.keys(), rule["alert"]
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= set.union(*(labels[name] for name in named)), rule["alert"]
