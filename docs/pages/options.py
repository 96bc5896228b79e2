"""The page of the options of tasks and calls: which place counts first. A test publishes by these tables."""

from typing import Any

from celery_affinity.options.call_options import FIRST_ATTEMPT, OPTIONS, Option

from .markdown import MADE, table

#: What options decide of a job -> the places that may say it, the first of them that does so counts. A place is who says
#: it, and by which option. The last is the value if none does.
PLACES = dict[str, tuple[Any, ...]]()
for _option in OPTIONS.values():  # of a key, the places of `exclusive`, like which `rate` counts
    PLACES.setdefault(_option.decides, (*_option.places, _option.otherwise))

#: What has a column of the table: a sixth column is too wide, so the places of all else stand below.
COLUMNS = ("type", "priority", "mode", "key", "merge key")

#: What is added below the table.
NOTES = {"tenant": "`False` in the call means no tenant. **parent**: the task that publishes the call while it runs."}

BEFORE = """# Options of calls and tasks

{options}
- **A task** sets its options in its `affinity`, such as `affinity=Affinity("pdf", priority=5)`; `merge` is only possible there. If the table below
  lists a separate option of the task, the decorator or a class attribute can set it, too.
- **Inherited** options come from the first attempt, the task with links, or the workflow, unless the retry, the link or the step sets them.
  Calls that a task publishes while it runs inherit its tenant, unless `affinity_inherit_tenant = False`.
- **Over HTTP** means `options` of `POST /api/jobs`.

## Precedence

An option can be set in several places: in the call, by a route, by the task, by a pattern of task names. Each column lists the places of one option
in order: the first place that sets the option wins. Mode means queued or on demand.

"""

MIDDLE = """
- **call**: an option of `apply_async`, `send_task`, `publish_many`, `.set()`, `retry`, or of a `beat_schedule` entry. **route**: an option in
  `task_routes`. **task**: an option of the decorator, an attribute of the class, or an annotation. `affinity_task_types` and
  `affinity_task_rules` are settings with patterns of task names. **first attempt**: options that a retry keeps from the run that publishes it.
- `affinity` means the part of an `Affinity` that sets this option. `Affinity("pdf")` sets only the type, and leaves the
  priority to the next place.
- **type**: `queue=`, `routing_key=` and `exchange=` of a call equal its `affinity=`. A call whose `affinity=` and `queue=` differ raises
  an `OptionError`.
- **priority**: `priority=` of a call that equals the task's own `priority` attribute has the rank of the attribute, because Celery does not keep
  the origin of the number. `priority` of a route applies only if the task has no attribute `priority` and `task_default_priority` is not
  set. Then it overrides the task's `affinity`.
- **key**: `rate=` has the rank of `exclusive=`. `False` in the call means no key. A key in the `affinity=` of `retry` overrides the first attempt.
{below}
- **A route** that sets priority, mode or merge key applies again at each retry.
- **A task's children** are not retries, regardless of their headers.
- **A handler** of `before_task_publish` that sets `properties["affinity"]` has the last word.
- **A canvas** passes on its mode: [Chains, groups and chords](#chains-groups-and-chords).

## The type, with examples

The type of a job is the name of its queue. Several places can name a queue; the first place in this table wins:

| | source | example |
| --- | --- | --- |
| 1 | the caller, by `affinity=` or by Celery's own `queue=`, `routing_key=`, `exchange=` | `render.apply_async(affinity="caller")` or `render.apply_async(queue="caller")` |
| 2 | a retry: the queue of its first attempt | `self.retry()` |
| 3 | `affinity` of a route | `task_routes = {"shop.render": {"affinity": "route"}}` |
| 4 | `affinity=` of the task | `@app.task(name="shop.render", affinity="task")` |
| 5 | a name pattern, in the publishing app's settings | `affinity_task_types = {"shop.*": "pattern"}` |
| 6 | Celery itself: attributes of the task, `queue` of a route, `task_default_queue` | `task_routes = {"shop.render": {"queue": "celery-route"}}` |

- A caller's `queue=`, `routing_key=` or `exchange=` has its meaning of stock Celery, regardless of the task's affinity. So a single `routing_key=` has
  no effect with a direct exchange, the default: the message goes to the queue that Celery itself (6) would choose.
- `affinity="pdf"` acts like `queue="pdf"`: signals, events, `inspect` and Flower show the type as queue and routing key. With
  `task_create_missing_queues = False`, Celery's `QueueNotFound` refuses a type that is not in `task_queues`.
- An affinity without a type, `Affinity(priority=5)`, goes with any queue.
- A message that is published with kombu, and a router that is not a `celery.app.routes.Router`, count as a caller that names the queue; the
  default queue and the default exchange do not count as named.

## Misspelt options

Celery accepts any name as an option, so a misspelt option would have no effect and cause no error. A name that resembles an
option (`affinty`, `ondemand`; but not `rate`, a short name) raises an `OptionError` with the task or the route and the likely meaning. An impossible value
(`affinity="a,b"`, `priority=11`) raises an `OptionError`, too. When:

- **A task's options** are checked at the decorator or at `register_task`, if celery_affinity is already imported (the `celery` command imports it)
  and the app's transport is set. If the transport is set later, the app refuses to finalize: its first call fails, and no worker starts. If
  celery_affinity is imported later, the first call of the task fails.
- **A call's options** are checked by `apply_async`, `send_task`, `publish_many`, `.set()` and `retry`, in eager mode as well.
- **`task_routes` and `task_annotations`** are checked when a worker starts, and when one of their tasks is called. The result of a router
  function is checked at each call.
- **`celery -A shop affinity check`** finds these mistakes beforehand, also in the options of `beat_schedule` entries.

Your own options (`my_flag`, `affinity_group`, `demand`) pass through as on stock Celery. Apps with another transport are not checked.

## Settings

| setting | the value in force |
| --- | --- |
| a setting that [changes at run time](settings.md) | 1. `celery affinity settings set`, until `reset`, or until a worker starts with a new value in `app.conf`; 2. `app.conf` of the app whose worker brought a new value last; 3. the default |
| any other setting | 1. `app.conf` of the process; 2. the default |
| limit of a key | 1. the [first](#patterns) of the patterns in `affinity_limits` that match, at run time or in `app.conf`; 2. the lowest `limit` that tasks declare for the key |
| quota of a tenant | the quota for its name in `affinity_tenants`, at run time or in `app.conf`; otherwise the quota for `*` |
| several reserves that match a job | the largest |
| several bounds that match a type | the [first](#patterns) of the patterns in `affinity_max_pending` that match |
| several patterns of `affinity_task_types` or `affinity_task_rules` that match a name | the first in the mapping |

## Patterns

In `affinity_limits` and `affinity_max_pending`, `*` in a pattern matches any characters, and the order of the mapping does not matter.
Among the matching patterns, the first in this order wins:

1. the name itself, without `*`: with `{"customer:*": 5, "customer:7": 0}` the key `customer:7` is closed;
2. the longest pattern, in characters: `{"host:*": 8, "host:slow.*": 1}`;
3. among patterns of one length, the pattern with the later first `*`: `host:*` before `*:blog`;
4. the first pattern in the order of characters (code points).

`celery affinity keys set`, `settings` and the web UI list limits in this order.

## Templates of keys

`exclusive`, `rate`, `merge`, `tenant` and `locality` of a task take a template or a function:

- **A template** has fields. `{customer}` is the argument with this name, or its default, regardless of how the call passes it.
  `{args[0]}` is the first positional argument, and `{task}` the name of the task.
- **A function** `(args, kwargs) -> key` computes the key, the tenant or the hint.
- **`None`** as the argument, or as the function's result: the call has no key, tenant or hint.
- **A call** replaces the key with a literal text, and removes it with `False`.
- **A size**, the option `size` of a task, a route or `affinity_task_rules`, is such a template or function too. It gives a number of at
  least 0, and `None` if it is unknown. Publisher and worker read it, for [run times](../how-to/monitoring.md#run-times); a call cannot set it.
- **Without the task code**: a producer sets the rule in `affinity_task_rules`, by a pattern of task names. Fields can then name only
  *keyword* arguments.
"""

QUEUES = """
## Arguments of a queue

Arguments of a kombu `Queue` that is scheduled:

| argument of `Queue` | stock Celery on Redis | celery_affinity |
|---|---|---|
| `expires=`, `x-expires` | drops the messages of a queue without traffic | no effect, and a warning: use `expires=` of a task or a call, which also notifies the caller |
| `message_ttl=`, `x-message-ttl` | no effect | no effect, and a warning: use `expires=` |
| `max_length=`, `max_length_bytes=` | no effect | no effect, and a warning: use [`affinity_max_pending`](../how-to/queue-length.md) |
| `max_priority=`, `x-max-priority` | no effect | no effect: there are always 11 steps |
| `no_ack=True` | a message is lost with its worker, also with `acks_late` | no effect: `acks_late` of the task decides |
| `durable=`, `exclusive=` | no effect | no effect |
| `auto_delete=True` | deletes the queue of a broadcast with its worker; other queues stay | the same |
"""

CANVAS = """
## Chains, groups and chords

A user waits for the end of a canvas. So `on_demand=True` or `on_demand=False` in the call of a canvas applies to all of its tasks:

```python canvas
from celery import chain

upload = chain(scan.s("a.pdf"), render.s(), archive.s().set(on_demand=False))
upload.apply_async(on_demand=True)  # scan and render; nobody waits for the archive
upload.apply_async()  # none of them: signatures are not changed
```

A signature can set its own mode, with `.set(on_demand=...)` or with an `Affinity`. A signature without a mode inherits it:

| signature | inherits the mode of |
|---|---|
| step | its chain |
| member, `chunks`, `map`, `starmap` | the group, chain or chord that contains it |
| header, body, and Celery's own tasks `celery.chord_unlock` and `celery.accumulate` | their chord |
| callback (`link`) | its task. A task with its own mode passes the mode to its callbacks, not to the next step |
| error callback (`link_error`) | its task, because the user waits for the error callback instead. Celery calls some error callbacks directly, without a message; these have no mode |
| a replacement of a task (`self.replace`), or an addition to its chord (`add_to_chord`) | the running task. A replacement inherits the mode, not the priority |
| retry | its first attempt |

A `deadline=` is inherited in the same way, as a time. A step of a chain has an earlier deadline, by the expected run times of the later
steps, which the client reads from Redis. Seconds in a step's own `deadline=` count from the publish of this step.

The mode is written into the signatures when the canvas is published. So any process can publish the next step, even a stock worker or an
app that does not define the task. A call that a task makes itself, for example with `delay`, is a new call without a mode.

- The mode of a call overrides the mode in a task's decorator: `@app.task(affinity=Affinity(on_demand=False))` applies only to
  calls that set no mode. To exclude a step, set the mode in its signature.
- A decorator and a handler of `before_task_publish` set the mode of one task. A route sets the mode of one task and its callbacks. The next
  steps of a chain or a chord get their mode from their own signatures or from the call.
- A type (`affinity="pdf"`, `queue=`) and a `priority=` apply where Celery applies the options of a canvas: to the first step of a chain,
  and to all members of a group or a chord, even to members with their own type or priority.
- With Celery's `task_inherit_parent_priority = True`, a step, callback or child has the priority of the task that publishes it, unless its
  own call or signature sets a priority.
- Write `import celery_affinity` next to the app. Otherwise the first connection imports `celery_affinity`, and a canvas that was made before
  ignores the rules of this section: the mode of a group or a chord overrides the modes of its members, and a group loses its
  mode if a signature is piped after it.
"""


def page() -> str:
    shown = {option: places for option, places in PLACES.items() if option in COLUMNS}
    ranks = [str(rank) for rank in range(1, max(map(len, shown.values())))]
    columns = [[*map(_cell, places), *[""] * (len(ranks) - len(places)), else_] for *places, else_ in shown.values()]
    rows = zip([*ranks, "otherwise"], *columns, strict=True)
    below = "\n".join(_in_a_row(name, option) for name, option in OPTIONS.items() if option.decides not in COLUMNS)
    return (
        MADE
        + BEFORE.format(options=_options())
        + table(("", *shown), rows)
        + MIDDLE.replace("{below}", below)
        + CANVAS
        + QUEUES
    )


def _in_a_row(name: str, option: Option) -> str:
    said_by = "" if name == option.decides else f" (`{name}`)"
    places = ", then ".join(map(_cell, option.places))
    note = f" {NOTES[option.decides]}" if option.decides in NOTES else ""
    return f"- **{option.decides}**{said_by}: {places}; otherwise {option.otherwise}.{note}"


def _options() -> str:
    rows = [
        (
            f"`{name}`",
            option.meaning,
            option.accepted,
            ", ".join(option.inherited_by),
            option.accepted_in_json or "-",
        )
        for name, option in OPTIONS.items()
    ]
    return table(("option of a call", "meaning", "accepted", "inherited by", "accepted over HTTP"), rows)


def _cell(place: tuple[str, str]) -> str:
    who, by = place
    if place == FIRST_ATTEMPT:
        return by
    return f"`{by}`" if who == "name" else f"{who}: `{by}`"
