"""Metrics exported to Prometheus with their labels, and the labels in an expression."""

import re

from celery_affinity.reports.metrics import METRICS, Histogram

#: Labels that Prometheus adds to each series.
_ITS_OWN = {"instance", "job"}


def labels_of_metrics():
    """Return the labels of each exported metric."""
    labels = {}
    for metric in METRICS:
        if isinstance(metric, Histogram):
            labels |= {f"{metric.name}{suffix}": {*metric.labels} for suffix in ("_sum", "_count")}
            labels[f"{metric.name}_bucket"] = {*metric.labels, "le"}
        else:
            labels[metric.name] = {*metric.labels}
    return labels


def labels_in(expression):
    """Return the possible labels of an expression's series. Its metrics and labels must exist."""
    exported = labels_of_metrics()
    metrics = re.findall(r"celery_affinity_\w+", expression)
    assert metrics, expression
    assert {*metrics} <= exported.keys(), expression
    for name, selectors in re.findall(r"(celery_affinity_\w+)\{(.*?)\}", expression):
        used = set(re.findall(r"(\w+)(?==~|!=|=)", selectors))
        assert used <= exported[name], expression
    labels = set().union(*(exported[name] for name in metrics)) | _ITS_OWN
    for group in re.findall(r"\b(?:by|on) \((.*?)\)", expression):
        assert {each.strip() for each in group.split(",")} <= labels, expression
    return labels
