"""Merging: calls of one task that mean alike, and wait together, are one run; each caller gets the result.

`Merge` says which calls these are, by a key, mostly a template that each call fills with its arguments. The text, first
part of field "rules" of a job, has the key encoded, and the bounds that the arrows go by (`job_fields`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Literal

from ..clock import SECOND_US
from ..errors import OptionError, printable, refuse
from ..schema.constants import USUAL_MOST, USUAL_MOST_BYTES
from ..schema.rules_codec import merge_in
from ..schema.values import COUNT, check_whole, decode_part, is_number_between
from .key_templates import KeyFunction, NamedKey, check_template, encoded_key

#: The dotted name of a function, as ``proj.plans.union`` or ``proj.plans:union``.
_DOTTED = re.compile(r"[^\W\d]\w*(\.\w+)*[.:]\w+(\.\w+)*")

#: Values of ``keep=``: whose arguments a run has.
KEEPS = ("first", "last", "all")

#: Longest patience, s: a hundred days.
_LONGEST_S = 8_640_000

#: How many times as long as for one call a run waits for all of them, if the task does not say.
_TIMES = 5

_TIME = is_number_between("a number of seconds, 0 or more", lambda value: value >= 0, _LONGEST_S)

#: The calls of one run.
_MOST = check_whole("a whole number, 2 or more", lambda value: value >= 2)

_WAYS = 'one of keep="first", "last", "all", or fold='


@dataclass(frozen=True)
class Call:
    """One call of a merged run, as passed to `fold`, to `split`, and to a task that keeps all calls.

    *args*, *kwargs*: the arguments. If the task's function names all of its arguments, and the task does not keep all
    calls, *kwargs* has every argument, with defaults. *task_id*: the id of the caller's task. *priority*, *headers*:
    from the call's message.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    task_id: str
    on_demand: bool = False
    priority: int = 0
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def replace(self, *args: Any, **kwargs: Any) -> "Call":
        """Return this call with other arguments: *args* replace its positional ones, if given; *kwargs* by name."""
        return replace(self, args=args or self.args, kwargs={**self.kwargs, **kwargs})


#: A function that makes one call of two; the first is the older one.
Fold = Callable[[Call, Call], Call]

#: A function that makes a result for each call out of the result of their run.
Split = Callable[[Any, Sequence[Call]], Sequence[Any]]


@dataclass(frozen=True)
class Merge(NamedKey):
    """Waiting calls of a task with the same *key* become one run, and each caller gets the result of that run.

    *key*: as the *key* of `Exclusive`; a call without a key runs alone. *keep*: which arguments the run gets: those of
    the "first" or "last" published call, or, with "all", one argument: the list of the calls (`Call`). *fold*,
    instead of *keep*: an associative function that combines two calls into one; the worker calls it just before the
    task. *most*, *most_bytes*: the largest number of calls of a run, and the largest size of their messages; further
    calls begin the next run. *wait*: seconds for which a run waits for more calls, counted anew from each call, but
    at most *at_most* seconds after the first call (by default 5 times *wait*); an on-demand call, or a call that fills
    the run, ends the wait. *split*: a function of the result and the list of calls, which returns one result for each
    call; without it all calls get the same result. A function may be given by its dotted name, which the worker
    imports.

    Raises OptionError (a ValueError) for anything else.
    """

    key: str | KeyFunction
    keep: Literal["first", "last", "all"] | None = None
    _: KW_ONLY
    fold: Fold | str | None = None
    most: int = USUAL_MOST
    most_bytes: int = USUAL_MOST_BYTES
    wait: float = 0.0
    at_most: float | None = None
    split: Split | str | None = None

    option: ClassVar[str] = "merge"

    def __post_init__(self) -> None:
        check_template(self.option, self.key)
        if (self.keep is None) == (self.fold is None) or (self.keep is not None and self.keep not in KEEPS):
            said = ", ".join(f"{name}={value!r}" for name in ("keep", "fold") if (value := getattr(self, name)))
            raise OptionError(f"Merge takes {_WAYS}, got: {said or 'neither'}")
        for name, value in self.functions:
            if not callable(value) and not (isinstance(value, str) and _DOTTED.fullmatch(value)):
                raise refuse(f"{name} of merge", "a function, or the dotted name of one", value)
        for name, check in (("most", _MOST), ("most_bytes", COUNT)):
            value = getattr(self, name)
            if (accepted := check(value)) is not None:
                raise refuse(f"{name} of merge", accepted, value)
        self._check_patience()

    def _check_patience(self) -> None:
        if (accepted := _TIME(self.wait)) is not None:
            raise refuse("wait of merge", accepted, self.wait)
        if self.at_most is None:
            return
        if not self.wait:
            raise OptionError(
                "at_most of merge says how long wait= may take in all, and there is no wait=, got: "
                f"{printable(self.at_most)}"
            )
        if _TIME(self.at_most) is not None or self.at_most < self.wait:
            accepted = f"a number of seconds, wait ({self.wait!r}) to {_LONGEST_S:,}"
            raise refuse("at_most of merge", accepted, self.at_most)

    @property
    def functions(self) -> list[tuple[str, object]]:
        """The functions that are given, each after its name."""
        return [(name, value) for name in ("fold", "split") if (value := getattr(self, name)) is not None]

    def text(self, key: str) -> str:
        """Return the rules of a job with *key*, which fills the template. Raises OptionError for an invalid key."""
        text = f"merge={encoded_key(self.option, key)} most={self.most} bytes={self.most_bytes}"
        if not self.wait:
            return text
        at_most = min(_TIMES * self.wait, _LONGEST_S) if self.at_most is None else self.at_most
        return f"{text} wait={_as_us(self.wait)}/{_as_us(at_most)}"


def _as_us(seconds: float) -> int:
    return max(1, round(seconds * SECOND_US))


def merge_key_in(rules: str) -> str | None:
    """Return the merge key that *rules* say, decoded; None if they say none."""
    found = merge_in(rules)
    return decode_part(found.key) if found else None


def as_merge(value: object) -> Merge | None:
    """Return the rule of ``merge=`` of an Affinity: a Merge, or None. Raises OptionError for anything else."""
    if value is None or isinstance(value, Merge):
        return value
    raise refuse(Merge.option, 'a Merge, such as Merge("{city}", keep="last")', value)


def merge_of_setting(value: object) -> Merge | None:
    """Return the rule of ``merge`` of a name: a Merge, or a mapping of its fields. Raises OptionError.

    Its functions must be dotted names: only the worker has their code.
    """
    if isinstance(value, Mapping):
        with suppress(TypeError):  # the key is missing, or a name is no text
            value = Merge(**value)
    merge = as_merge(value)
    for name, function in merge.functions if merge else ():
        if not isinstance(function, str):
            raise refuse(f"{name} of merge", "the dotted name of a function, such as 'proj.plans.union'", function)
    return merge


def merge_key(value: object) -> str | bool | None:
    """Return ``merge_key=`` of a call: the key itself; False: the call runs alone; None: the task says the key.

    Raises OptionError for anything else.
    """
    if value is None or value is False:
        return value
    if not isinstance(value, str):
        raise refuse("merge_key", "a key (str), or False", value)
    encoded_key("merge_key", value)
    return value
