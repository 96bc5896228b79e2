"""The table of a call's options. A new option is a row, a field of the job (`job_record.FIELDS`), and its use.

The rows generate the check of values, the detection of misspelt names, inheritance, the properties removed from a
message, the options accepted by HTTP, and the options page of the docs. Celery passes one dict with the options of the
call, its signature, the task and a route; `Option.places` defines which of these places takes precedence.

A *plain* option is one value of the job, completely described by its row. The other options have additional code: the
type is a queue, to which Celery routes (`publishing.routing`); priority is also a Celery option; keys are filled with
the call's arguments (`publishing.option_resolution`).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import OptionError
from . import type_names
from .affinity import NOTHING, Affinity, as_affinity, check_on_demand, check_preemptible, clamp_priority, whole_priority
from .keys import Exclusive, Locality, Rate, TenantKey, rule_of_call
from .merge import merge_key

#: Where an option can be set, and by which option or setting.
OptionPlace = tuple[str, str]
#: The place of a retry's first attempt.
FIRST_ATTEMPT: OptionPlace = ("retry", "first attempt")
#: Calls that inherit an option from a job.
RETRY, LINKS, WORKFLOW = "a retry", "links and error links", "the later steps of a workflow"
CHILDREN = "what the task publishes"
#: The place of the task that publishes a call while it runs.
PARENT: OptionPlace = ("parent", "the running task")


class Option(NamedTuple):
    """One option of a call."""

    decides: str
    """The property of the job that it sets: a column of the docs' table of places."""
    meaning: str
    """Its purpose, as a sentence for the docs."""
    accepted: str
    """The accepted values, as text."""
    #: Raises OptionError for a value that is not accepted.
    check: Callable[[object], object]
    places: tuple[OptionPlace, ...]
    """The places that can set the property, highest precedence first."""
    otherwise: str
    """The default, as text, if no place sets the property."""
    field: str
    """The field of the job that carries the value: a key of `job_record.FIELDS`."""
    shown: str
    """The name in `jobs`, in HTTP replies, and in filters."""
    inherited_by: tuple[str, ...] = (RETRY,)
    is_plain: bool = False
    is_celerys: bool = False
    """True if it is a Celery option too. Then its property stays in the message, for stock workers."""
    is_of_calls: bool = False
    """True if a task can set it only in its ``affinity=``."""
    may_be_misspelt: bool = True
    in_json: Callable[[object], bool] | None = None
    """Test of a value from HTTP. None: not accepted from HTTP."""
    accepted_in_json: str = ""
    """The values accepted from HTTP, as text."""


def _default_places(option: str) -> tuple[OptionPlace, ...]:
    """Return the places of a plain option: call and route, first attempt, task."""
    of_call = (("call", option), ("route", option), ("call", "affinity"), ("route", "affinity"))
    return (*of_call, FIRST_ATTEMPT, ("task", "affinity"), ("task", option))


def is_short_text(value: object) -> bool:
    """Return True if a value from HTTP is a string of 1 to 1,000 characters."""
    return isinstance(value, str) and 0 < len(value) <= 1000


_KEY_PLACES = (
    ("call", "exclusive"),
    FIRST_ATTEMPT,
    ("route", "exclusive"),
    ("call", "affinity"),
    ("route", "affinity"),
    ("task", "affinity"),
    ("name", "affinity_task_rules"),
)

#: Name of an option of a call -> its row.
OPTIONS: dict[str, Option] = {
    "affinity": Option(
        "type",
        "The type of worker that the job needs; an `Affinity` may say priority, mode and key as well.",
        f"{type_names.ACCEPTED}, or an Affinity",
        as_affinity,
        (
            ("call", "affinity"),
            FIRST_ATTEMPT,
            ("route", "affinity"),
            ("task", "affinity"),
            ("name", "affinity_task_types"),
            ("task", "queue"),
            ("route", "queue"),
        ),
        "`task_default_queue`: `celery`",
        field="type",
        shown="type",
        in_json=type_names.is_type_name,
        accepted_in_json=type_names.ACCEPTED,
    ),
    "priority": Option(
        "priority",
        "The rank among the jobs of a mode: 10 goes first, unless `affinity_priority_order` reverses that.",
        "a whole number from 0 to 10; one outside of this range counts as the nearest one, with a warning",
        whole_priority,
        (
            ("call", "affinity"),
            ("route", "affinity"),
            ("call", "priority"),
            FIRST_ATTEMPT,
            ("task", "affinity"),
            ("task", "priority"),
            ("route", "priority"),
        ),
        "0, or 10 if 0 is the highest",
        field="priority",
        shown="priority",
        is_celerys=True,
        in_json=lambda value: type(value) is int and clamp_priority(value) == value,
        accepted_in_json="a whole number from 0 to 10",
    ),
    "on_demand": Option(
        "mode",
        "Whether a user waits for the result: such jobs get a bonus, and go first.",
        "True or False",
        check_on_demand,
        _default_places("on_demand"),
        "queued",
        field="mode",
        shown="mode",
        inherited_by=(RETRY, LINKS, WORKFLOW),
        is_plain=True,
        in_json=lambda value: isinstance(value, bool),
        accepted_in_json="true or false",
    ),
    "exclusive": Option(
        "key",
        "The key of which only so many jobs run at a time.",
        "a key (str), an Exclusive, or False",
        lambda value: rule_of_call(Exclusive.option, value),
        _KEY_PLACES,
        "no key",
        field="rules",
        shown="keys",
        is_of_calls=True,
        in_json=is_short_text,
        accepted_in_json="a text of up to 1,000 characters",
    ),
    "rate": Option(
        "key",
        "The key of which only so many jobs start in a period.",
        "a Rate, such as Rate('100/m', 'crawl:{host}'), or False",
        lambda value: rule_of_call(Rate.option, value),
        _KEY_PLACES,
        "no key",
        field="rules",
        shown="keys",
        is_of_calls=True,
        may_be_misspelt=False,  # a name of four letters resembles many other words (``date``, ``rates``)
    ),
    "tenant": Option(
        "tenant",
        "On whose behalf the job runs: settings say how many jobs of a tenant may run at a time.",
        "a name (str), or False",
        lambda value: rule_of_call(TenantKey.option, value),
        (
            ("call", "tenant"),
            ("route", "tenant"),
            ("call", "affinity"),
            ("route", "affinity"),
            FIRST_ATTEMPT,
            ("task", "affinity"),
            PARENT,
            ("name", "affinity_task_rules"),
        ),
        "no tenant",
        field="rules",
        shown="keys",
        inherited_by=(RETRY, LINKS, WORKFLOW, CHILDREN),
        is_of_calls=True,
        in_json=is_short_text,
        accepted_in_json="a text of up to 1,000 characters",
    ),
    "preemptible": Option(
        "preemption",
        "Whether the running job may be stopped, and run again later, for a tenant below its minimum.",
        "True or False; True needs `acks_late`",
        check_preemptible,
        (*_default_places("preemptible"), ("name", "affinity_task_rules")),
        "not stopped",
        field="rules",
        shown="keys",
        in_json=lambda value: isinstance(value, bool),
        accepted_in_json="true or false",
    ),
    "locality": Option(
        "hint",
        "What the job works with: a worker that has lately ended a job with the same hint is preferred.",
        "a hint (str), or False",
        Locality.of_call,
        (
            ("call", "locality"),
            ("route", "locality"),
            ("call", "affinity"),
            ("route", "affinity"),
            FIRST_ATTEMPT,
            ("task", "affinity"),
            ("name", "affinity_task_rules"),
        ),
        "no hint",
        field="rules",
        shown="hint",
        is_of_calls=True,
        in_json=is_short_text,
        accepted_in_json="a text of up to 1,000 characters",
    ),
    "merge_key": Option(
        "merge key",
        "The key of the calls that become one run, of a task that merges.",
        "a key (str), or False",
        merge_key,
        (
            ("call", "merge_key"),
            ("route", "merge_key"),
            FIRST_ATTEMPT,
            ("task", "affinity"),
            ("name", "affinity_task_rules"),
        ),
        "not merged",
        field="rules",
        shown="merge_key",
        in_json=lambda value: value is False or is_short_text(value),
        accepted_in_json="a text of up to 1,000 characters, or false",
    ),
}

#: Plain options.
PLAIN = {name: option for name, option in OPTIONS.items() if option.is_plain}
#: Options inherited by links and by the later steps of a workflow.
PASSED_ON = tuple(name for name, option in OPTIONS.items() if WORKFLOW in option.inherited_by)
#: Properties that are removed from published messages, because only the transport reads them.
NOT_WRITTEN = tuple(name for name, option in OPTIONS.items() if not option.is_celerys)
#: Options that set an exclusive key or a rate key. A call can have only one of them.
KEYS = tuple(name for name, option in OPTIONS.items() if option.decides == "key")


def _sources(option: Option) -> tuple[int, ...]:
    """Return the arguments of `resolve_plain_options` that can set the option, in the order of its places."""
    call_options, call_affinity, first_attempt, task_affinity = range(4)
    sources = (
        first_attempt
        if place == FIRST_ATTEMPT
        else task_affinity
        if place[0] == "task"
        else call_affinity
        if place[1] == "affinity"
        else call_options
        for place in option.places
    )
    return tuple(dict.fromkeys(sources))


_SOURCES = {name: _sources(option) for name, option in PLAIN.items()}


def resolve_plain_options(
    options: Mapping[str, Any], call_affinity: Affinity, first_attempt: Mapping[str, Any], task_affinity: Affinity
) -> dict[str, Any]:
    """Return the plain options of a call by name, without unset options. Raises OptionError for an invalid option.

    Args:
        options: the options of the call and of its route.
        call_affinity: the call's ``affinity=``.
        first_attempt: the options that a retry inherits from its first attempt.
        task_affinity: the affinity of the task.
    """
    resolved = {}
    for name, option in PLAIN.items():
        of_call = options.get(name)
        if of_call is not None:
            option.check(of_call)
        values = (of_call, getattr(call_affinity, name), first_attempt.get(name), getattr(task_affinity, name))
        value = next((values[source] for source in _SOURCES[name] if values[source] is not None), None)
        if value is not None:
            resolved[name] = value
    return resolved


def options_in(retry_state: object) -> dict[str, Any]:
    """Return the plain options in *retry_state*. Invalid values are ignored: other programs can write that data."""
    options: dict[str, Any] = {}
    if not isinstance(retry_state, Mapping):
        return options
    for name, option in PLAIN.items():
        value = retry_state.get(name)
        with suppress(OptionError):
            if value is not None:
                option.check(value)
                options[name] = value
    return options


def inherited_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in *options* (of a call or a signature) that links and later steps inherit.

    A user's stamp with the name of an option is not an option. Raises OptionError for an invalid value.
    """
    if not any(name in options for name in (*PASSED_ON, "affinity")):
        return {}
    stamps = options.get("stamped_headers") or ()
    affinity = NOTHING if "affinity" in stamps else as_affinity(options.get("affinity"))
    inherited = {}
    for name in PASSED_ON:
        value = None if name in stamps else options.get(name)
        if value is not None:
            OPTIONS[name].check(value)
        elif name in PLAIN:
            value = getattr(affinity, name)
        if value is not None:
            inherited[name] = value
    return inherited
