"""What is exported to Prometheus: metrics with their labels, and what an expression says of them."""

import re

from celery_affinity.reports.metrics import METRICS, Histogram

#: Labels that Prometheus adds to each series.
_ITS_OWN = {"instance", "job"}


def labels_of_metrics():
    """Return the labels of each metric that is exported."""
    found = {}
    for figure in METRICS:
        if isinstance(figure, Histogram):
            found |= {f"{figure.name}{suffix}": {*figure.labels} for suffix in ("_sum", "_count")}
            found[f"{figure.name}_bucket"] = {*figure.labels, "le"}
        else:
            found[figure.name] = {*figure.labels}
    return found


def labels_in(expression):
    """Return the labels that the series of an expression may have, which names metrics and labels that there are."""
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
