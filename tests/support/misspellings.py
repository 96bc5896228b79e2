"""Misspelt options, users' own options, and a task with options."""

import re

import pytest

from celery_affinity import OptionError

OURS = "celery_affinity:Transport"

#: URL of a port without a listener.
NOWHERE = "redis://127.0.0.1:1"

#: Option -> misspelt names of the option.
MISSPELT = {
    "affinity": """
        affinty afinity afinty affinitty affintiy affnity affinit afffinity affinitiy effinity ffinity affiniry affinify
        Affinity AFFINITY affinity_
        """,
    "on_demand": """
        ondemand onDemand on-demand on__demand On_Demand on_deman on_demnd on_deamnd on_demmand on_demend on_demands
        on_dmand onn_demand
        """,
    "priority": "priorty prioirty prority priorit Priority piority",
    "merge_key": "mergekey mergeKey merge_ky merge-key Merge_Key merge_keys",
    "deadline": "dedline dealine deadlin deadlines Deadline",
    "start_within": "startwithin start-within startWithin start_witin start_wihtin",
    "exclusive": "exlusive exclusiv exclusve Exclusive exclusives eclusive exclussive excluisve",
}

#: Plausible names of users' own options.
OWN = """
    demand in_demand no_demand n_demand one_demand on_demand_by on_demand_only supply_on_demand demand_on
    on_remand on_command on_defend on_depend on_append on_end on_brand on_demand2 infinity affinities
    affinity_group affinity_key affinity2 my_affinity x_affinity node_affinity acidity agility ability activity
    vicinity divinity prior prioritize priorities prioritized priority_class priority2 x_priority x-priority
    max_priority minority superiority parity _affinity _priority retry_policy headers my_flag customer user_id
    trace_id type types kind inclusive excluded exclusion exclusive_key date rates ratio rate2 crate late
    headline timeline dateline airline start_time start_with within not_within dead
    """.split()  # noqa: SIM905  # shorter

#: Each misspelt name, and the intended option.
MISTAKES = [(name, ours) for ours, names in MISSPELT.items() for name in names.split()]


def nothing():
    pass


def task(app, name="shop.render", **options):
    return app.task(name=name, shared=False, **options)(nothing)


def refused(words):
    return pytest.raises(OptionError, match="^" + re.escape(words))
