"""The page of the options of tasks and calls: which place counts first. A test publishes by these tables."""

from .markdown import MADE, table

#: The place of a retry's first try.
FIRST_TRY = ("retry", "first try")

#: Option of a job -> the places that may set it, the first of them that does so counts. A place is who says it, and by
#: which option. The last is the value if none does.
PLACES = {
    "type": (
        ("call", "affinity"),
        FIRST_TRY,
        ("route", "affinity"),
        ("task", "affinity"),
        ("name", "affinity_task_types"),
        ("task", "queue"),
        ("route", "queue"),
        "`task_default_queue`: `celery`",
    ),
    "priority": (
        ("call", "affinity"),
        ("route", "affinity"),
        ("call", "priority"),
        FIRST_TRY,
        ("task", "affinity"),
        ("task", "priority"),
        ("route", "priority"),
        "0, or 10 if 0 is the highest",
    ),
    "mode": (
        ("call", "on_demand"),
        ("route", "on_demand"),
        ("call", "affinity"),
        ("route", "affinity"),
        FIRST_TRY,
        ("task", "affinity"),
        ("task", "on_demand"),
        "queued",
    ),
    "key": (
        ("call", "exclusive"),
        FIRST_TRY,
        ("route", "exclusive"),
        ("call", "affinity"),
        ("route", "affinity"),
        ("task", "affinity"),
        ("name", "affinity_task_rules"),
        "no key",
    ),
    "merge key": (
        ("call", "merge_key"),
        ("route", "merge_key"),
        FIRST_TRY,
        ("task", "affinity"),
        ("name", "affinity_task_rules"),
        "not merged",
    ),
}

BEFORE = """# Precedence of options

An option may be set in several places: in the call, by a route, by the task, by a pattern of task names. The first place that sets it counts.

"""

MIDDLE = """
- **call**: an option of `apply_async`, `send_task`, `publish_many`, `.set()`, `retry`, or of a beat entry. **route**: an option in
  `task_routes`. **task**: an option of the decorator, an attribute of the class, or an annotation. **name**: a setting with patterns of
  task names.
- `affinity` stands for the part of an `Affinity` that sets this option. `Affinity("pdf")` sets the type alone, and leaves the
  priority to the next place.
- **type**: `queue=` of a call counts like its `affinity=`. A call whose `affinity=` and `queue=` differ raises an `OptionError`.
- **priority**: `priority` of a route counts only if the task has no attribute `priority` (nor `task_default_priority` is set). Then it
  counts more than the task's `affinity`.
- **key**: `rate=` counts like `exclusive=`. `False` in the call means no key. A key in the `affinity=` of `retry` counts more than the first
  try.
- **first try**: what a retry keeps, unless the call of `retry` sets another value. A route that sets priority, mode or merge key counts
  again at each retry.
- **A handler** of `before_task_publish` that sets `properties["affinity"]` has the last word.
- **A canvas** passes on its mode: [Chains, groups and chords](../explanation/scheduling.md#chains-groups-and-chords).

## Settings

| what | the first of these counts |
| --- | --- |
| a setting that [changes at run time](settings.md) | 1. `celery affinity settings set`, until `reset`, or until a worker starts with a new value in `app.conf`; 2. `app.conf` of the app whose worker brought a new value last; 3. the default |
| any other setting | 1. `app.conf` of the process; 2. the default |
| limit of a key | 1. the longest pattern of `affinity_limits` that matches, at run time or in `app.conf`; 2. the lowest `limit` that tasks declare for the key |
| several reserves that match a job | the largest |
| several bounds that match a type | the longest pattern of `affinity_max_pending` |
| several patterns of `affinity_task_types` or `affinity_task_rules` that match a name | the first |
"""


def page() -> str:
    ranks = [str(rank) for rank in range(1, max(map(len, PLACES.values())))]
    columns = [[*map(_cell, places), *[""] * (len(ranks) - len(places)), else_] for *places, else_ in PLACES.values()]
    rows = zip([*ranks, "otherwise"], *columns, strict=True)
    return MADE + BEFORE + table(("", *PLACES), rows) + MIDDLE


def _cell(place: tuple[str, str]) -> str:
    who, by = place
    if place == FIRST_TRY:
        return by
    return f"`{by}`" if who == "name" else f"{who}: `{by}`"
