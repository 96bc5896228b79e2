"""The affinity of a task: the type of worker, the urgency and the rule that it may ask for."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

from ..errors import OptionError, refuse
from ..schema.constants import MAX_PRIORITY
from ..schema.untrusted import clamp
from .did_you_mean import closest_names
from .key_templates import NamedKey
from .keys import Exclusive, Locality, Rate, Rule, TenantKey, ValueRule, as_exclusive, as_rate, as_tenant
from .merge import Merge, as_merge, merge_of_setting
from .type_names import ACCEPTED, is_type_name


def check_type(value: object) -> str:
    """Return *value* if it can name a type, else raise OptionError."""
    if not isinstance(value, str) or not is_type_name(value):
        raise refuse("affinity", ACCEPTED, value)
    return value


#: A whole number beyond it counts as this number.
_LARGEST = 2**62


def whole_priority(value: object) -> int:
    """Return *value* as a whole number, which `in_range` makes a priority. Raises OptionError for anything else.

    As with stock Celery ``"5"``, ``5.0`` and ``True`` are whole numbers as well.
    """
    number = clamp(value, -_LARGEST, _LARGEST, _LARGEST + 1)
    if number > _LARGEST or not (isinstance(value, str) or number == value or abs(number) == _LARGEST):
        raise refuse("priority", f"a whole number from 0 to {MAX_PRIORITY}", value)
    return number


def clamp_priority(priority: int) -> int:
    """Return the nearest priority to a whole number: kombu clamps priorities as well, and refuses none."""
    return max(0, min(priority, MAX_PRIORITY))


def check_priority(value: object) -> int:
    """Return *value* as a priority. Raises OptionError for anything else, also for a number out of range."""
    priority = whole_priority(value)
    if clamp_priority(priority) != priority:
        raise refuse("priority", f"a whole number from 0 to {MAX_PRIORITY}", value)
    return priority


def check_on_demand(value: object) -> bool:
    """Return *value* if it is a bool, else raise OptionError."""
    if not isinstance(value, bool):
        raise refuse("on_demand", "True or False", value)
    return value


def check_preemptible(value: object) -> bool:
    """Return *value* if it is a bool, else raise OptionError."""
    if not isinstance(value, bool):
        raise refuse("preemptible", "True or False", value)
    return value


#: Why a task may not say ``preemptible=True`` that is acked when it starts.
NEEDS_LATE_ACKS = "preemptible=True needs acks_late=True: a task that was acked early cannot be run again"


#: The rules of one word.
WORDS: tuple[type[ValueRule], ...] = (Locality,)


@dataclass(frozen=True)
class Affinity(NamedKey):
    """The needs of a task: a *type* of worker, and an urgency.

    *type*: the name of a Celery queue; None keeps the queue to which the task is routed. *priority*: 0..10, 10 is the
    highest (0 with ``affinity_priority_order = "lower-first"``); a number outside of this range counts as the nearest
    one, with a warning; None keeps the task's own priority. *on_demand*:
    whether a user waits for the answer; None leaves the choice to the caller. *exclusive*: a limited number of jobs
    with the same key run at a time; a text is the key or its template (`Exclusive`). *rate*: jobs with the same key
    start at a limited rate (`Rate`). A job with both starts when its rate lets it, and then its exclusive key.
    *tenant*: on whose behalf a job runs, a name or its template, such as ``"{customer}"`` (``affinity_tenants``).
    *preemptible*: whether a job of a tenant may be stopped while it runs, and run again later, for the job of a tenant
    that has fewer slots than its minimum; this requires ``acks_late=True``. *locality*: a hint, a word for what a job
    works with, or its template, such as ``"model:{name}"`` (``affinity_locality_bonus``).
    *merge*: waiting calls with the same key become one run (`Merge`); only a task can set it, not a call.

    Raises OptionError (a ValueError) for anything else.
    """

    type: str | None = field(default=None, metadata={"check": check_type})
    priority: int | None = field(default=None, metadata={"check": whole_priority})
    on_demand: bool | None = field(default=None, metadata={"check": check_on_demand, "is_attribute": True})
    exclusive: Exclusive | str | None = None
    rate: Rate | None = None
    tenant: TenantKey | str | None = field(default=None, metadata={"check": as_tenant})
    merge: Merge | None = None
    preemptible: bool | None = field(default=None, metadata={"check": check_preemptible, "is_attribute": True})
    locality: Locality | str | None = field(default=None, metadata={"check": Locality.of_task})
    keys: tuple[Rule, ...] = field(default=(), init=False, repr=False, compare=False)
    """What `rate` and `exclusive` say, as far as they do."""

    has_rules: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether it says a key of any kind, or that the job may be stopped."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check(value))
        if self.exclusive is not None or self.rate is not None:
            exclusive, rate = as_exclusive(self.exclusive), as_rate(self.rate)
            keys = tuple(filter(None, (rate, exclusive)))
            for name, value in (("exclusive", exclusive), ("rate", rate), ("keys", keys)):
                object.__setattr__(self, name, value)
        if (
            as_merge(self.merge)
            or self.keys
            or self.tenant
            or self.preemptible
            or any(getattr(self, each.option) for each in WORDS)
        ):
            object.__setattr__(self, "has_rules", True)

    def __json__(self) -> dict[str, object]:
        """Return the form of this affinity that kombu writes into a message with a signature.

        Raises OptionError for one that merges: its functions are the task's.
        """
        if self.merge is not None:
            raise only_tasks_merge(self.merge)
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}


def only_tasks_merge(merge: Merge) -> OptionError:
    """Return the error for a call whose ``affinity=`` has what only a task can say."""
    return OptionError(f"merge belongs to a task; a call can only give its key, with merge_key=, got: {merge!r}")


#: What ``affinity_task_rules`` may say of tasks by their names, in the order of the words for users.
OF_NAMES = (
    *(Exclusive.option, Rate.option, TenantKey.option, "preemptible", Merge.option),
    *(each.option for each in WORDS),
)

#: Options that make the rules of a job.
RULES = (Merge.option, *(each.option for each in WORDS), Rate.option, Exclusive.option, TenantKey.option)

_FIELDS = tuple(each.name for each in fields(Affinity) if each.init)

#: Field that has one value -> a function that returns it as it is kept, or raises OptionError.
_CHECKS = {each.name: each.metadata["check"] for each in fields(Affinity) if "check" in each.metadata}

#: Fields that a task may also have as an attribute of its own.
_ATTRIBUTES = tuple(each.name for each in fields(Affinity) if each.metadata.get("is_attribute"))


def _did_you_mean(name: object) -> str:
    close = closest_names(str(name).lower(), _FIELDS)
    return f"; did you mean {close!r}?" if close else ""


#: Affinity of a task that says nothing.
NOTHING = Affinity()


def as_affinity(value: object) -> Affinity:
    """Return the affinity of an ``affinity=`` option: a type, an Affinity, a mapping of its fields, or None."""
    if value is None:
        return NOTHING
    if isinstance(value, Affinity):
        return value
    if isinstance(value, str):
        return _of_type(value)
    refusal = refuse("affinity", "a type (str) or an Affinity", value)
    if isinstance(value, Mapping):
        for name in value:
            if name not in _FIELDS:
                raise OptionError(f"{refusal}{_did_you_mean(name)}")
        return Affinity(**value)
    raise refusal


def affinity_of_pattern(value: object) -> Affinity:
    """Return what a value of ``affinity_task_rules`` means: a mapping of some of `OF_NAMES`, such as
    ``{"exclusive": "{host}", "preemptible": True}``, or {} for no rule. Raises OptionError.
    """
    if isinstance(value, Affinity):
        value = {name: said for name in _FIELDS if (said := getattr(value, name)) is not None}
    elif isinstance(value, Rule | Merge | ValueRule):
        value = {value.option: value}
    elif value is None:
        value = {}
    if not isinstance(value, Mapping) or not value.keys() <= {*OF_NAMES}:
        rules = ", ".join(f"{{{name!r}: ...}}" for name in OF_NAMES)
        raise refuse("a rule of a name", f"{rules}, some of them together, or {{}}", value)
    return Affinity(**{**value, Merge.option: merge_of_setting(value.get(Merge.option))})


def affinity_of(task: object) -> Affinity:
    """Return the affinity of *task*. What it leaves out, other attributes of the task may say: ``on_demand``."""
    asked = as_affinity(getattr(task, "affinity", None))
    for name in _ATTRIBUTES:
        value = getattr(task, name, None)
        if value is not None and not callable(value) and getattr(asked, name) is None:  # callable: a user's method
            asked = replace(asked, **{name: value})
    return asked


@lru_cache(maxsize=4096)
def _of_type(name: str) -> Affinity:
    return Affinity(name)
