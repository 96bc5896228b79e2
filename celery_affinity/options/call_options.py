"""The table of a call's options. A new option is a row, a field of the job (`job_record.FIELDS`), and its use.

The rows generate the check of values, the detection of misspelt names, precedence, inheritance, the properties removed
from a message, the options accepted by HTTP, and the options page of the docs.

`Option.places` defines the precedence. When this module is imported, the places of each option become functions that
read a value from a `Sources`, and `resolve` returns the first value. Publishers, cohorts and `check` use no other
precedence. Celery makes two exceptions, in `publishing.routing`, which chooses the queue of a call: it has to know the
type before Celery merges the call's options with a route, and removes the keys of a route from a retry.

A *plain* option is one value of the job. The other options have additional code: the type is a queue, to which Celery
routes; priority is also a Celery option; rules are filled with the call's arguments (`publishing.option_resolution`).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

from ..errors import OptionError
from ..schema.values import SECONDS
from . import due_times, type_names
from .affinity import NOTHING, RULES, Affinity, as_affinity, check_bool, clamp_priority, whole_priority
from .due_times import DEADLINE, WITHIN
from .keys import Exclusive, Locality, Rate, TenantKey, check_tenant, rule_of_call
from .merge import Merge, merge_key

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
    read: Callable[[object], Any]
    """Returns the value that a call sets, "" for False if that removes a rule. Raises OptionError."""
    places: tuple[OptionPlace, ...]
    """The places that can set the property, highest precedence first."""
    otherwise: str
    """The default, as text, if no place sets the property."""
    field: str
    """The field of the job that carries the value: a key of `job_record.FIELDS`."""
    shown: str
    """The name in `jobs`, in HTTP replies, and in filters."""
    of_affinity: str = ""
    """The field of `Affinity` that sets it; "": the field with the option's name."""
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


def _key_places(option: str) -> tuple[OptionPlace, ...]:
    """Return the places of an exclusive key or of a rate."""
    of_route = (("route", option), ("call", "affinity"), ("route", "affinity"))
    return (("call", option), FIRST_ATTEMPT, *of_route, ("task", "affinity"), ("name", "affinity_task_rules"))


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
        of_affinity="type",
        in_json=type_names.is_type_name,
        accepted_in_json=type_names.ACCEPTED,
    ),
    "priority": Option(
        "priority",
        "The rank among the jobs of a mode: 10 is the highest, unless `affinity_priority_order` reverses that.",
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
        "True if a user waits for the result: such jobs get a bonus in the order.",
        "True or False",
        lambda value: check_bool("on_demand", value),
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
        "The key whose running jobs are limited.",
        "a key (str), an Exclusive, or False",
        lambda value: rule_of_call(Exclusive.option, value),
        _key_places("exclusive"),
        "no key",
        field="rules",
        shown="keys",
        is_of_calls=True,
        in_json=is_short_text,
        accepted_in_json="a text of up to 1,000 characters",
    ),
    "rate": Option(
        "key",
        "The key whose starts per period are limited.",
        "a Rate, such as Rate('100/m', 'crawl:{host}'), or False",
        lambda value: rule_of_call(Rate.option, value),
        _key_places("rate"),
        "no key",
        field="rules",
        shown="keys",
        is_of_calls=True,
        may_be_misspelt=False,  # a name of four letters resembles many other words (``date``, ``rates``)
    ),
    "tenant": Option(
        "tenant",
        "The tenant for whom the job runs: settings limit the running jobs of each tenant.",
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
        lambda value: check_bool("preemptible", value),
        (*_default_places("preemptible"), ("name", "affinity_task_rules")),
        "not stopped",
        field="rules",
        shown="keys",
        in_json=lambda value: isinstance(value, bool),
        accepted_in_json="true or false",
    ),
    "locality": Option(
        "hint",
        "The data or model that the job uses: a worker that has lately ended a job with the same hint is preferred.",
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
        lambda value: merge_key(value) or "",
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
        of_affinity=Merge.option,
        in_json=lambda value: value is False or is_short_text(value),
        accepted_in_json="a text of up to 1,000 characters, or false",
    ),
    WITHIN: Option(
        "start within",
        "The time within which the job should start, from when it becomes pending, or from its ETA. A job that is due "
        "earlier than `affinity_target_wait` overtakes others.",
        str(SECONDS(None)),
        due_times.check_within,
        (*_default_places(WITHIN), ("name", "affinity_task_rules")),
        "`affinity_target_wait`, or less with `affinity_stretch`",
        field="times",
        shown="start_within_s",
        is_plain=True,
        in_json=lambda value: SECONDS(value) is None,
        accepted_in_json=str(SECONDS(None)),
    ),
    DEADLINE: Option(
        "deadline",
        "The time at which the job should have ended: it is due earlier by its expected run time. No job expires at "
        "its deadline.",
        f"{due_times.ACCEPTED}; repeated calls (`beat_schedule`, recurring) accept only seconds",
        due_times.read_deadline,
        (("call", DEADLINE), FIRST_ATTEMPT),
        "no deadline",
        field="times",
        shown="deadline_s",
        inherited_by=(RETRY, LINKS, WORKFLOW),
        is_plain=True,
        is_of_calls=True,
        in_json=due_times.is_deadline,
        accepted_in_json="seconds, or a time in ISO 8601 with an offset",
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


#: Options that become rules of a job, except `preemptible`, in the order of their rules without a first attempt.
RULE_OPTIONS = tuple(name for rule in RULES for name in OPTIONS if (OPTIONS[name].of_affinity or name) == rule)


class Sources(NamedTuple):
    """Everything that sets options of one call, or, without a call, of a task's calls."""

    #: Options of the call and of its route, which Celery merges.
    options: Mapping[str, Any] = {}
    #: ``affinity=`` of the call or of its route.
    call_affinity: Affinity = NOTHING
    #: Values by option that a retry inherits from its first attempt.
    first_attempt: Mapping[str, Any] = {}
    #: Affinity of the task, including its attributes.
    task_affinity: Affinity = NOTHING
    #: Celery's options that the task sets.
    task_options: Mapping[str, Any] = {}
    #: Tenant of the task that publishes the call while it runs, or "".
    parent: str = ""
    #: Options that the settings set for a pattern of the task's name.
    named: Affinity = NOTHING


#: Sources that belong to one call, in contrast to all calls of a task.
OF_CALL = ("options", "call_affinity", "first_attempt")


def _source_of(place: OptionPlace) -> tuple[str, str]:
    """Return the field of `Sources` that contains *place*, and the option's name in a field with options by name."""
    who, by = place
    if who in ("call", "route"):
        return ("call_affinity", "") if by == "affinity" else ("options", by)
    if who == "task":
        return ("task_options", by) if by in ("priority", "queue") else ("task_affinity", "")
    return {FIRST_ATTEMPT[0]: "first_attempt", PARENT[0]: "parent", "name": "named"}[who], ""


def _reader(name: str, option: Option, source: str, by: str) -> Callable[[Sources], Any]:
    """Return the function that reads the option from *source*; its result is None if the option is unset there."""
    if by:
        mapping, read = attrgetter(source), queue_name if by == "queue" else option.read
        return lambda sources: None if (value := mapping(sources).get(by)) is None else read(value)
    if source == "first_attempt":
        return lambda sources: sources.first_attempt.get(name)
    if source == "parent":
        return lambda sources: check_tenant(sources.parent) if sources.parent else None
    return attrgetter(f"{source}.{option.of_affinity or name}")


def _compiled(name: str, option: Option) -> tuple[tuple[str, Callable[[Sources], Any]], ...]:
    """Return (source, reader) for the places of an option, highest precedence first.

    A first attempt comes after all options of the retry itself, because `publishing.routing` removes the options of a
    route that would otherwise precede the first attempt.
    """
    places = [place for place in option.places if place != FIRST_ATTEMPT]
    last_of_call = max(index for index, (who, _) in enumerate(places) if who == "call")
    places.insert(last_of_call + 1, FIRST_ATTEMPT)
    sources = dict.fromkeys(map(_source_of, places))
    return tuple((source, _reader(name, option, source, by)) for source, by in sources)


def queue_name(queue: Any) -> str | None:
    """Return the name of a Celery queue, or None."""
    name = queue if isinstance(queue, str) else getattr(queue, "name", None)
    return name or None


_COMPILED = {name: _compiled(name, option) for name, option in OPTIONS.items()}
_READERS = {name: tuple(read for _, read in compiled) for name, compiled in _COMPILED.items()}


def resolve_source(name: str, sources: Sources) -> tuple[str, Any]:
    """Return the first of *sources* that sets an option, and the value; ("", None) if it is unset.

    Raises OptionError for an invalid value.
    """
    for source, read in _COMPILED[name]:
        value = read(sources)
        if value is not None:
            return source, value
    return "", None


def resolve(name: str, sources: Sources) -> Any:
    """Return the value of an option, or None if it is unset. Raises OptionError for an invalid value."""
    for read in _READERS[name]:  # like `resolve_source`, without a call: every publish resolves several options
        value = read(sources)
        if value is not None:
            return value
    return None


def resolve_plain_options(sources: Sources) -> dict[str, Any]:
    """Return the plain options of a call by name, without unset options. Raises OptionError for an invalid option."""
    return {name: value for name in PLAIN if (value := resolve(name, sources)) is not None}


def options_in(retry_state: object) -> dict[str, Any]:
    """Return the plain options in *retry_state*. Invalid values are ignored: other programs can write that data."""
    options: dict[str, Any] = {}
    if not isinstance(retry_state, Mapping):
        return options
    for name, option in PLAIN.items():
        value = retry_state.get(name)
        with suppress(OptionError):
            if value is not None:
                option.read(value)
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
            OPTIONS[name].read(value)
        elif name in PLAIN:
            value = getattr(affinity, name, None)
        if value is not None:
            inherited[name] = value
    return inherited
