"""Merging: waiting calls of one task with the same key become one run, and each caller gets its result.

`Merge` defines the key, usually a template that each call fills with its arguments. The first part of the job field
"rules" contains the encoded key and the limits for the server functions (`rules_codec`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Literal

from ..clock import SECOND_US
from ..errors import OptionError, printable, refuse
from ..schema.constants import USUAL_MOST, USUAL_MOST_BYTES
from ..schema.rules_codec import decode_rules, encode_rule
from ..schema.values import COUNT, check_whole, decode_part, is_number_between
from .key_templates import KeyFunction, NamedKey, check_template, encoded_key

#: The dotted name of a function: ``proj.plans.union`` or ``proj.plans:union``.
_DOTTED = re.compile(r"[^\W\d]\w*(\.\w+)*[.:]\w+(\.\w+)*")
#: Values of ``keep=``: which calls' arguments a run gets.
KEEPS = ("first", "last", "all")
#: Maximum merge window in seconds: a hundred days.
_MAX_WAIT_S = 8_640_000
#: Default of ``at_most=``, as a multiple of ``wait=``.
_MAX_WAIT_FACTOR = 5
_TIME = is_number_between("a number of seconds, 0 or more", lambda value: value >= 0, _MAX_WAIT_S)
#: Check of ``most=``.
_CALL_COUNT = check_whole("a whole number, 2 or more", lambda value: value >= 2)
_METHODS = 'one of keep="first", "last", "all", or fold='


@dataclass(frozen=True)
class Call:
    """One call of a merged run, as passed to `fold`, to `split`, and to a task that keeps all calls.

    *args*, *kwargs*: the arguments. *kwargs* has every argument, with defaults, if the task's function names all of its
    arguments and the task does not keep all calls.
    *task_id*: the id of the caller's task.
    *priority*, *headers*: from the call's message.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    task_id: str
    on_demand: bool = False
    priority: int = 0
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def replace(self, *args: Any, **kwargs: Any) -> "Call":
        """Return this call with other arguments. *args*, if given, replace the positional ones; *kwargs* by name."""
        return replace(self, args=args or self.args, kwargs={**self.kwargs, **kwargs})


#: A function that combines two calls into one. The first argument is the older call.
Fold = Callable[[Call, Call], Call]
#: A function that derives a result for each call from the result of their run.
Split = Callable[[Any, Sequence[Call]], Sequence[Any]]


@dataclass(frozen=True)
class Merge(NamedKey):
    """Waiting calls of a task with the same *key* become one run, and each caller gets the result of that run.

    *key*: like the *key* of `Exclusive`. A call without a key runs alone.
    *keep*: whose arguments the run gets: the "first" or "last" published call; or "all", which passes one argument, the
    list of calls (`Call`).
    *fold*: instead of *keep*, an associative function that combines two calls into one. The worker calls it just before
    the task.
    *most*, *most_bytes*: the maximum number of calls per run, and the maximum size of their messages. Further calls
    start the next run.
    *wait*: seconds for which a run waits for more calls, restarted by each call. It ends no later than *at_most*
    seconds after the first call (default: 5 times *wait*). An on-demand call, or a call that fills the run, ends the
    wait.
    *split*: a function of the result and the list of calls that returns one result per call. If omitted, all calls get
    the same result.

    A function can be given by its dotted name, which the worker imports. Raises OptionError (a ValueError) for anything
    else.
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
            given = ", ".join(f"{name}={value!r}" for name in ("keep", "fold") if (value := getattr(self, name)))
            raise OptionError(f"Merge takes {_METHODS}, got: {given or 'neither'}")
        for name, value in self.functions:
            if not callable(value) and not (isinstance(value, str) and _DOTTED.fullmatch(value)):
                raise refuse(f"{name} of merge", "a function, or the dotted name of one", value)
        for name, check in (("most", _CALL_COUNT), ("most_bytes", COUNT)):
            value = getattr(self, name)
            if (accepted := check(value)) is not None:
                raise refuse(f"{name} of merge", accepted, value)
        self._check_window()

    def _check_window(self) -> None:
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
            accepted = f"a number of seconds, wait ({self.wait!r}) to {_MAX_WAIT_S:,}"
            raise refuse("at_most of merge", accepted, self.at_most)

    @property
    def functions(self) -> list[tuple[str, object]]:
        """The given functions, as (name, function)."""
        return [(name, value) for name in ("fold", "split") if (value := getattr(self, name)) is not None]

    def text(self, key: str) -> str:
        """Return the rules of a job whose filled template is *key*. Raises OptionError for an invalid key."""
        at_most = min(_MAX_WAIT_FACTOR * self.wait, _MAX_WAIT_S) if self.at_most is None else self.at_most
        return encode_rule(
            "merge_window" if self.wait else "merge",
            merge_key=encoded_key(self.option, key),
            most=self.most,
            most_bytes=self.most_bytes,
            wait_us=_as_us(self.wait),
            at_most_us=_as_us(at_most),
        )


def _as_us(seconds: float) -> int:
    return max(1, round(seconds * SECOND_US))


def merge_key_in(rules: str) -> str | None:
    """Return the decoded merge key in *rules*, or None."""
    merge = decode_rules(rules).merge
    return decode_part(merge.key) if merge else None


def as_merge(value: object) -> Merge | None:
    """Return *value* if it is a Merge or None. Raises OptionError for anything else."""
    if value is None or isinstance(value, Merge):
        return value
    raise refuse(Merge.option, 'a Merge, such as Merge("{city}", keep="last")', value)


def merge_of_setting(value: object) -> Merge | None:
    """Return the rule ``merge`` of a pattern in the settings: a Merge, or a mapping of its fields. Raises OptionError.

    The functions must be dotted names, because only the worker has their code.
    """
    if isinstance(value, Mapping):
        with suppress(TypeError):  # the key is missing, or a field name is not a str
            value = Merge(**value)
    merge = as_merge(value)
    for name, function in merge.functions if merge else ():
        if not isinstance(function, str):
            raise refuse(f"{name} of merge", "the dotted name of a function, such as 'proj.plans.union'", function)
    return merge


def merge_key(value: object) -> str | bool | None:
    """Return ``merge_key=`` of a call: a key, False (the call runs alone), or None (the task sets the key).

    Raises OptionError for anything else.
    """
    if value is None or value is False:
        return value
    if not isinstance(value, str):
        raise refuse("merge_key", "a key (str), or False", value)
    encoded_key("merge_key", value)
    return value
