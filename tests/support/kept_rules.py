"""The stored form of a job's rules."""

import re

from celery_affinity.schema.constants import USUAL_BOUNDS


def kept_rules(rules):
    """Return valid *rules* without the default limits of a run, which a job hash leaves out."""
    return re.sub(rf"{USUAL_BOUNDS}(?!\d)", "", rules, count=1)
