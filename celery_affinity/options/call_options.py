"""The options of a call, one row each: a new option is a row, a field of the job (`job_fields`), and its use.

Made from the rows: the check of values, misspelt names, who inherits an option, the properties that a message loses,
the options that HTTP takes, and the docs' page of options. Celery makes one dict of what a call, its signature, the
task and a route say of an option; `Option.places` says which of them counts.

A *plain* option is one value of the job: the rows say all there is to its way from the call to the job. The others
have code of their own: the type is a queue, to which Celery routes (`client.destination`); priority is Celery's own
option as well (`client.wish`); keys are filled with the arguments of the call (`client.stated_rules`).

The values of a call's options: which place counts, and what a retry, links and later steps inherit.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import OptionError
from . import type_names
from .affinity import NOTHING, Affinity, as_affinity, check_on_demand, check_preemptible, clamp_priority, whole_priority
from .keys import Exclusive, Locality, Rate, TenantKey, rule_of_call
from .merge import merge_key

#: Who may say an option, and by which option or setting.
OptionPlace = tuple[str, str]

#: The place of a retry's first try.
FIRST_TRY: OptionPlace = ("retry", "first try")

#: Who may inherit an option from the job that a user waits for.
RETRY, LINKS, WORKFLOW = "a retry", "links and error links", "the later steps of a workflow"
CHILDREN = "what the task publishes"

#: The place of the task that publishes a call while it runs.
PARENT: OptionPlace = ("parent", "the running task")


class Option(NamedTuple):
    """One option of a call. *check*: a function that raises OptionError for a value that is not accepted."""

    decides: str
    """What it decides of its job: a column of the docs' table of places."""
    meaning: str
    """What it is for, in a sentence of the docs."""
    accepted: str
    """The accepted values, in words."""
    check: Callable[[object], object]
    places: tuple[OptionPlace, ...]
    """The places that may say what it decides: the first of them that does so counts."""
    otherwise: str
    """In words, what counts if no place says anything."""
    field: str
    """The field of the job that carries it: a name of `job_fields.FIELDS`."""
    shown: str
    """Its name in `jobs`, in replies over HTTP, and in filters."""
    inherited_by: tuple[str, ...] = (RETRY,)
    is_plain: bool = False
    is_celerys: bool = False
    """Whether it is Celery's option as well: its property stays in the message, for stock workers."""
    is_of_calls: bool = False
    """Whether a task says it in its ``affinity=`` alone."""
    may_be_misspelt: bool = True
    in_json: Callable[[object], bool] | None = None
    """A test of a value from HTTP; None: no request may have the option."""
    accepted_in_json: str = ""
    """The values that HTTP accepts, in words."""


def _usual(option: str) -> tuple[OptionPlace, ...]:
    """Return the places of a plain option: call and route, first try, and task."""
    said = (("call", option), ("route", option), ("call", "affinity"), ("route", "affinity"))
    return (*said, FIRST_TRY, ("task", "affinity"), ("task", option))


def is_short_text(value: object) -> bool:
    """Return whether a value from HTTP is a text of up to 1,000 characters."""
    return isinstance(value, str) and 0 < len(value) <= 1000


_KEY_PLACES = (
    ("call", "exclusive"),
    FIRST_TRY,
    ("route", "exclusive"),
    ("call", "affinity"),
    ("route", "affinity"),
    ("task", "affinity"),
    ("name", "affinity_task_rules"),
)

#: Name of an option, as a call says it -> its row.
OPTIONS: dict[str, Option] = {
    "affinity": Option(
        "type",
        "The type of worker that the job needs; an `Affinity` may say priority, mode and key as well.",
        f"{type_names.ACCEPTED}, or an Affinity",
        as_affinity,
        (
            ("call", "affinity"),
            FIRST_TRY,
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
            FIRST_TRY,
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
        _usual("on_demand"),
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
        may_be_misspelt=False,  # four letters are next to too many other words (``date``, ``rates``)
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
            FIRST_TRY,
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
        (*_usual("preemptible"), ("name", "affinity_task_rules")),
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
            FIRST_TRY,
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
            FIRST_TRY,
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

#: Options that are one value of their job.
PLAIN = {name: option for name, option in OPTIONS.items() if option.is_plain}

#: Options that links and the later steps of a workflow inherit.
PASSED_ON = tuple(name for name, option in OPTIONS.items() if WORKFLOW in option.inherited_by)

#: Properties that no written message has: nobody but the transport reads them.
NOT_WRITTEN = tuple(name for name, option in OPTIONS.items() if not option.is_celerys)

#: Options by which a call says a key of exclusion or of a rate: a call has one of them.
KEYS = tuple(name for name, option in OPTIONS.items() if option.decides == "key")


def _sources(option: Option) -> tuple[int, ...]:
    """Return the arguments of `plain` that may say a plain option, in the order of its places."""
    said, asked, left, own = range(4)
    of_places = (
        left if place == FIRST_TRY else own if place[0] == "task" else asked if place[1] == "affinity" else said
        for place in option.places
    )
    return tuple(dict.fromkeys(of_places))


_SOURCES = {name: _sources(option) for name, option in PLAIN.items()}


def resolve_plain_options(
    said: Mapping[str, Any], asked: Affinity, left: Mapping[str, Any], own: Affinity
) -> dict[str, Any]:
    """Return the plain options of a call by name, without those that no place says; in the order of `Option.places`.

    *said*: the options of the call, and of its route. *asked*: its ``affinity=``. *left*: what the first try has left
    for a retry. *own*: what the task says. Raises OptionError for a value of *said* that is not accepted.
    """
    found = {}
    for name, option in PLAIN.items():
        of_call = said.get(name)
        if of_call is not None:
            option.check(of_call)
        values = (of_call, getattr(asked, name), left.get(name), getattr(own, name))
        value = next((values[source] for source in _SOURCES[name] if values[source] is not None), None)
        if value is not None:
            found[name] = value
    return found


def options_in(traces: object) -> dict[str, Any]:
    """Return the plain options that *traces* of a job keep for those who inherit them.

    Other programs may have written the traces: a value that is not accepted is none.
    """
    found: dict[str, Any] = {}
    if not isinstance(traces, Mapping):
        return found
    for name, option in PLAIN.items():
        value = traces.get(name)
        with suppress(OptionError):
            if value is not None:
                option.check(value)
                found[name] = value
    return found


def inherited_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what *options* of a call or a signature say that links and later steps inherit.

    A user's stamp may have the name of an option, and is none. Raises OptionError for a value that is not accepted.
    """
    if not any(name in options for name in (*PASSED_ON, "affinity")):
        return {}
    stamps = options.get("stamped_headers") or ()
    asked = NOTHING if "affinity" in stamps else as_affinity(options.get("affinity"))
    found = {}
    for name in PASSED_ON:
        value = None if name in stamps else options.get(name)
        if value is not None:
            OPTIONS[name].check(value)
        elif name in PLAIN:
            value = getattr(asked, name)
        if value is not None:
            found[name] = value
    return found
