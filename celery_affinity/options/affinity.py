"""The affinity of a task: its type of worker, its urgency and its rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial

from ..errors import OptionError, refuse
from ..schema.constants import MAX_PRIORITY
from ..schema.untrusted import clamp
from .did_you_mean import closest_question
from .due_times import WITHIN, check_within
from .key_templates import NamedKey
from .keys import (
    Exclusive,
    Locality,
    Rate,
    Rule,
    Size,
    SizeFunction,
    TenantKey,
    as_exclusive,
    as_rate,
    as_size,
    as_tenant,
)
from .merge import Merge, as_merge, merge_of_setting
from .type_names import ACCEPTED, is_type_name


def check_type(value: object) -> str:
    """Return *value* if it is a valid type. Raises OptionError."""
    if not isinstance(value, str) or not is_type_name(value):
        raise refuse("affinity", ACCEPTED, value)
    return value


#: Integers beyond this limit are clamped to it.
_MAX_NUMBER = 2**62


def whole_priority(value: object) -> int:
    """Return *value* as an integer for `clamp_priority`. Raises OptionError for anything else.

    Like stock Celery, it accepts ``"5"``, ``5.0`` and ``True``.
    """
    number = clamp(value, -_MAX_NUMBER, _MAX_NUMBER, _MAX_NUMBER + 1)
    if number > _MAX_NUMBER or not (isinstance(value, str) or number == value or abs(number) == _MAX_NUMBER):
        raise refuse("priority", f"a whole number from 0 to {MAX_PRIORITY}", value)
    return number


def clamp_priority(priority: int) -> int:
    """Return the priority nearest to an integer, like kombu, which clamps priorities instead of rejecting them."""
    return max(0, min(priority, MAX_PRIORITY))


def check_priority(value: object) -> int:
    """Return *value* as a priority. Raises OptionError for anything else, including numbers out of range."""
    priority = whole_priority(value)
    if clamp_priority(priority) != priority:
        raise refuse("priority", f"a whole number from 0 to {MAX_PRIORITY}", value)
    return priority


def check_bool(option: str, value: object) -> bool:
    """Return *value* if it is a bool. Raises OptionError, which names *option*."""
    if not isinstance(value, bool):
        raise refuse(option, "True or False", value)
    return value


#: Error for a task with ``preemptible=True`` that is acked when it starts.
NEEDS_LATE_ACKS = "preemptible=True needs acks_late=True: a task that was acked early cannot be run again"


@dataclass(frozen=True)
class Affinity(NamedKey):
    """The needs of a task: a *type* of worker, an urgency, and rules.

    *type*: the name of a Celery queue. None keeps the queue to which the task is routed.
    *priority*: 0 to 10; 10 is the highest (0 with ``affinity_priority_order = "lower-first"``). A number outside of
    this range is clamped, with a warning. None keeps the task's own priority.
    *on_demand*: True if a user waits for the result. None leaves the choice to the caller.
    *exclusive*: a limited number of jobs with the same key run at a time; a str is the key or its template
    (`Exclusive`).
    *rate*: jobs with the same key start at a limited rate (`Rate`). A job with both starts when its rate and then its
    exclusive key permit it.
    *tenant*: on whose behalf a job runs: a name or its template, such as ``"{customer}"`` (``affinity_tenants``).
    *preemptible*: True if a tenant's running job can be stopped, and run again later, for a tenant with fewer slots
    than its minimum. Requires ``acks_late=True``.
    *locality*: a hint that names the data a job works with, or its template, such as ``"model:{name}"``
    (``affinity_locality_bonus``).
    *size*: a number that predicts the run time of a call, such as ``"{pages}"``, or a function ``(args, kwargs) ->
    float | None``: run times are learned by size. A task, a route or a name pattern sets it; a call cannot.
    *merge*: waiting calls with the same key become one run (`Merge`). Only a task can set it, not a call.
    *start_within*: seconds within which a job should start, counted from when it becomes pending.

    Raises OptionError (a ValueError) for anything else.
    """

    type: str | None = field(default=None, metadata={"check": check_type})
    priority: int | None = field(default=None, metadata={"check": whole_priority})
    on_demand: bool | None = field(
        default=None, metadata={"check": partial(check_bool, "on_demand"), "is_attribute": True}
    )
    exclusive: Exclusive | str | None = None
    rate: Rate | None = None
    tenant: TenantKey | str | None = field(default=None, metadata={"check": as_tenant})
    merge: Merge | None = None
    preemptible: bool | None = field(
        default=None, metadata={"check": partial(check_bool, "preemptible"), "is_attribute": True}
    )
    locality: Locality | str | None = field(default=None, metadata={"check": Locality.of_task})
    size: Size | str | SizeFunction | None = field(default=None, metadata={"check": as_size})
    start_within: float | None = field(default=None, metadata={"check": check_within, "is_attribute": True})
    keys: tuple[Rule, ...] = field(default=(), init=False, repr=False, compare=False)
    """The rules of `rate` and `exclusive`, if set."""
    has_rules: bool = field(default=False, init=False, repr=False, compare=False)
    """True if there is a key of any kind, or the job is preemptible."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check(value))
        if self.exclusive is not None or self.rate is not None:
            exclusive, rate = as_exclusive(self.exclusive), as_rate(self.rate)
            keys = tuple(filter(None, (rate, exclusive)))
            for name, value in (("exclusive", exclusive), ("rate", rate), ("keys", keys)):
                object.__setattr__(self, name, value)
        if as_merge(self.merge) or self.keys or self.tenant or self.preemptible or self.locality:
            object.__setattr__(self, "has_rules", True)

    def __json__(self) -> dict[str, object]:
        """Return the form that kombu writes into a message with a signature.

        Raises OptionError if `merge` is set, because its functions belong to the task.
        """
        if self.merge is not None:
            raise only_tasks_merge(self.merge)
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}


def only_tasks_merge(merge: Merge) -> OptionError:
    """Return the error for a call whose ``affinity=`` sets an option reserved to tasks."""
    return OptionError(f"merge belongs to a task; a call can only give its key, with merge_key=, got: {merge!r}")


#: Options that ``affinity_task_rules`` can set for tasks by name, in the order of messages to users.
OF_NAMES = (
    *(Exclusive.option, Rate.option, TenantKey.option, "preemptible"),
    *(Merge.option, Locality.option, Size.option, WITHIN),
)

#: Options that become rules of a job.
RULES = (Merge.option, Locality.option, Rate.option, Exclusive.option, TenantKey.option)
_FIELDS = tuple(option.name for option in fields(Affinity) if option.init)
#: Field with a single value -> function that returns the stored value, or raises OptionError.
_CHECKS = {option.name: option.metadata["check"] for option in fields(Affinity) if "check" in option.metadata}
#: Fields that a task can also set as its own attribute.
_ATTRIBUTES = tuple(option.name for option in fields(Affinity) if option.metadata.get("is_attribute"))


#: Affinity of a task without options.
NOTHING = Affinity()


def as_affinity(value: object) -> Affinity:
    """Return the affinity for ``affinity=``: a type, an Affinity, a mapping of its fields, or None."""
    if value is None:
        return NOTHING
    if isinstance(value, Affinity):
        return value
    if isinstance(value, str):
        return _affinity_of_type(value)
    refusal = refuse("affinity", "a type (str) or an Affinity", value)
    if isinstance(value, Mapping):
        for name in value:
            if name not in _FIELDS:
                raise OptionError(f"{refusal}{closest_question(str(name).lower(), _FIELDS)}")
        return Affinity(**value)
    raise refusal


def affinity_of_pattern(value: object) -> Affinity:
    """Return the affinity for a value of ``affinity_task_rules``: a mapping of some of `OF_NAMES`, such as
    ``{"exclusive": "{host}", "preemptible": True}``, or {} for no rule. Raises OptionError.
    """
    if isinstance(value, Affinity):
        value = {name: field_value for name in _FIELDS if (field_value := getattr(value, name)) is not None}
    elif isinstance(value, Rule | Merge | Locality | Size):
        value = {value.option: value}
    elif value is None:
        value = {}
    if not isinstance(value, Mapping) or not value.keys() <= {*OF_NAMES}:
        rules = ", ".join(f"{{{name!r}: ...}}" for name in OF_NAMES)
        raise refuse("a rule of a name", f"{rules}, some of them together, or {{}}", value)
    return Affinity(**{**value, Merge.option: merge_of_setting(value.get(Merge.option))})


def affinity_of(task: object) -> Affinity:
    """Return the affinity of *task*. Attributes of the task, such as ``on_demand``, supply options that it omits."""
    affinity = as_affinity(getattr(task, "affinity", None))
    for name in _ATTRIBUTES:
        value = getattr(task, name, None)
        if value is not None and not callable(value) and getattr(affinity, name) is None:  # callable: a user's method
            affinity = replace(affinity, **{name: value})
    return affinity


@lru_cache(maxsize=4096)
def _affinity_of_type(name: str) -> Affinity:
    return Affinity(name)
