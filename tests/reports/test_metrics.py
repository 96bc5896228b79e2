"""The metrics for Prometheus, and the page that lists them."""

import re

from prometheus_client.parser import text_string_to_metric_families

from celery_affinity.reports.flower import StatusCollector
from celery_affinity.reports.metrics import BATCH_SIZE, METRICS, Metrics, metrics_text
from celery_affinity.reports.status import MAX_CLAIMS_READ, Batches, Status, TypeStatus
from celery_affinity.reports.type_metrics import metrics_of_row

from ..support.flower import PREFIX
from ..support.processes import ROOT

PAGE = ROOT / "docs/how-to/monitoring.md"


def test_names_of_metrics_say_their_unit():
    for figure in METRICS:
        assert re.fullmatch(r"celery_affinity_[a-z_]+", figure.name)
        assert figure.name.endswith(
            (
                "_jobs",
                "_calls",
                "_seconds",
                "_slots",
                "_workers",
                "_letters",
                "_keys_waiting",
                "_keys",
                "_paused",
                "_total",
                "_up",
                "_batch_size",
            )
        )


def test_the_page_names_metrics_that_there_are():
    page = PAGE.read_text()
    listed = set(re.findall(rf"`({PREFIX}\w+)", page))
    assert listed
    assert listed <= {*(figure.name for figure in METRICS), BATCH_SIZE}
    assert f"more than {MAX_CLAIMS_READ:,} in all" in page


def samples(status):
    metrics = status if isinstance(status, Metrics) else Metrics.of(status)
    families = StatusCollector(lambda: metrics).collect()
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


def test_what_grows_is_counted_by_type_and_waits_are_histograms():
    waits = {"queued 00": "1", "queued 09": "2", "queued sum": "4000000"}
    runs = {"done 08": "1", "done sum": "900000", "failed 08": "1", "failed sum": "700000"}
    figures = metrics_of_row("pdf", {"published": "4", "revoked": "3", **waits, **runs})
    found = samples(Metrics.of(Status([], [], 0, 0, {}), [figures]))

    def value(name, *labels):
        return found[f"celery_affinity_{name}", *labels]

    assert value("published_jobs_total", "pdf") == 4
    assert value("started_jobs_total", "pdf", "queued") == value("wait_seconds_count", "pdf", "queued") == 3
    assert [value("wait_seconds_bucket", "pdf", "queued", le) for le in ("1.0", "2.0", "4.0", "+Inf")] == [1, 3, 3, 3]
    assert value("wait_seconds_sum", "pdf", "queued") == 4
    assert (value("run_seconds_count", "pdf"), value("run_seconds_sum", "pdf")) == (2, 1.6)
    assert [value("ended_jobs_total", "pdf", how) for how in ("done", "failed", "revoked", "lost")] == [1, 1, 3, 0]


def test_the_text_is_what_prometheus_reads():
    types = [TypeStatus('a "b"\\\n', 1, 0, 0, 2.5, 1, 1)]
    metrics = Metrics.of(Status(types, [], 0, 0, {}), [metrics_of_row("pdf", {"queued 03": "5", "queued sum": "1500"})])
    families = list(text_string_to_metric_families(metrics_text(metrics)))
    collected = list(StatusCollector(lambda: metrics).collect())
    assert {each.name: each.type for each in families} == {each.name: each.type for each in collected}
    for one, other in zip(families, collected, strict=True):
        assert {(each.name, *each.labels.items(), each.value) for each in one.samples} == {
            (each.name, *each.labels.items(), each.value) for each in other.samples
        }
