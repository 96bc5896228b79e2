"""The figures for Prometheus, and the page that lists them."""

import re

import yaml

from celery_affinity.observe.metrics import BATCH_SIZE, FIGURES, StatusCollector
from celery_affinity.observe.status import MOST_CLAIMS_READ, Batches, Status, TypeStatus

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
    assert listed == [*(figure.name for figure in FIGURES), BATCH_SIZE]
    for figure in FIGURES:
        assert f"| `{figure.name}` | {', '.join(f'`{label}`' for label in figure.labels)} | {figure.help} |" in page
    assert f"more than {MOST_CLAIMS_READ:,} in all" in page


def samples(status):
    families = StatusCollector(lambda: status).collect()
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_runs_of_merged_calls_are_a_histogram_whose_buckets_have_all_that_are_smaller():
    found = samples(Status([], [], 0, 0, {}, batches=Batches({"2": 5, "8": 2, "65536": 1, "more": 1}, 100_000)))
    sizes = {name[1]: value for name, value in found.items() if name[0] == f"{BATCH_SIZE}_bucket"}
    assert [sizes[each] for each in ("2.0", "4.0", "8.0", "65536.0", "+Inf")] == [5, 5, 7, 8, 9]
    assert len(sizes) == 17
    assert (found[f"{BATCH_SIZE}_count",], found[f"{BATCH_SIZE}_sum",]) == (9, 100_000)


def test_only_types_whose_calls_merge_have_a_figure_of_that():
    types = [TypeStatus(name, 0, 0, 0, None, 1, 1, ran_merged=calls) for name, calls in (("pdf", 0), ("geo", 7))]
    found = samples(Status(types, [], 0, 0, {}))
    assert {name: value for name, value in found.items() if "merged_calls_total" in name[0]} == {
        ("celery_affinity_merged_calls_total", "geo"): 7
    }


def test_the_pages_alerts_name_metrics_and_labels_that_there_are():
    labels = {figure.name: set(figure.labels) for figure in FIGURES}
    (group,) = yaml.safe_load(blocks(PAGE)["alerts.yml"])["groups"]
    for rule in group["rules"]:
        named = set(re.findall(rf"{PREFIX}\w+", rule["expr"]))
        assert named
        assert named <= labels.keys(), rule["alert"]
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= set.union(*(labels[name] for name in named)), rule["alert"]
