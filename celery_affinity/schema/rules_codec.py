"""The field ``rules`` of a job (how it merges, its hint and its keys), and the suffix of a job id.

`FORMS` is the grammar of the field. Encoding, decoding and validation follow from it here. In Lua, validation follows
from it (`lua.generated`, ``lua/jobs/rules_codec.lua``). A job has at most one rule of each kind, in the order of
`KINDS`. An exclusive key can also precede the rate: the job passes its keys in their order, and the key that fewer jobs
share comes first, since a job that waits for it blocks no others.

The id suffix names the kinds of rules, so that server functions select the rules from the id. It has at most one
character per place, in this order: hint, merge rule, keys. `MARKS` has the characters, and `SUFFIX` their places.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from .constants import (
    BY_SETTINGS,
    MAX_KEY_LENGTH,
    MAX_NUMBER_LENGTH,
    MAX_PATIENCE_LENGTH,
    PREEMPTIBLE,
    RATE_PREFIX,
    TENANT_PREFIX,
    USUAL_BOUNDS,
)

#: Name -> suffix character, in the order of the suffix.
MARKS = {
    "HINTED": "~",  # `locality`
    "MERGES": "+",  # a call that merges with others
    "BATCH": "*",  # several such calls, combined by the server functions; no message has this suffix
    "KEYED": "!",  # one key
    "MANY_KEYED": "&",  # several keys
    "TENANTED": "$",  # only the key of a tenant
}

#: All suffix characters, and the suffix characters of keys.
ALL = HINTED, MERGES, BATCH, KEYED, MANY_KEYED, TENANTED = tuple(MARKS.values())
OF_KEYS = KEYED, MANY_KEYED, TENANTED
#: Pattern of a suffix, for Python and for Lua.
SUFFIX = f"[{HINTED}]?[{MERGES}{BATCH}]?[{''.join(OF_KEYS)}]?"


class RuleValue(NamedTuple):
    """The accepted texts of a value."""

    #: Lua patterns of the first character, and of any further character.
    first: str
    further: str
    longest: int
    #: Text with which the value must begin.
    prefix: str = ""
    #: Texts with which the value, or the value and the text after it, must not begin.
    excluded: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        """The Python pattern."""
        excluded = "".join(f"(?!{re.escape(text)})" for text in self.excluded)
        characters = f"{self.first}{self.further}{{0,{self.longest - 1}}}"
        for lua, python in (("%w", "A-Za-z0-9"), ("%d", "[0-9]"), ("%%", "%")):
            characters = characters.replace(lua, python)
        return f"{excluded}(?={self.prefix}){characters}"


_KEY = RuleValue("[%w_.~%%-]", "[%w_.~%%-]", MAX_KEY_LENGTH)
_COUNT = RuleValue("[1-9]", "%d", MAX_NUMBER_LENGTH)
#: µs. Short enough that its sum with a time is exact, in Lua as well.
_TIME = _COUNT._replace(longest=MAX_PATIENCE_LENGTH)

VALUES = {
    "merge_key": _KEY,
    "most": _COUNT._replace(excluded=("1 ",)),  # calls per run
    "most_bytes": _COUNT,  # size of a run's messages
    "wait_us": _TIME,  # time by which each call extends the merge window
    "at_most_us": _TIME,  # maximum length of the merge window
    "hint": _KEY,
    "rate_key": _KEY._replace(prefix=RATE_PREFIX),
    "tokens": _COUNT,
    "period_us": _COUNT,
    "key": _KEY._replace(excluded=(RATE_PREFIX, TENANT_PREFIX)),
    "limit": _COUNT,
    "tenant_key": _KEY._replace(prefix=TENANT_PREFIX),
}


class Form(NamedTuple):
    """One form of a rule: tokens ``word=text`` with names of `VALUES` in braces."""

    kind: str
    template: str

    @property
    def pattern(self) -> str:
        """The Python pattern, with a group for each value."""
        return self.template.format_map({name: f"({value.pattern})" for name, value in VALUES.items()})

    @property
    def max_length(self) -> int:
        """The maximum length of a rule in this form, and of the blank before it."""
        return len(self.template.format_map({name: "x" * value.longest for name, value in VALUES.items()})) + 1


MERGE, LOCALITY, RATE, EXCLUSIVE, TENANT = "merge", "locality", "rate", "exclusive", "tenant"
#: Kind of a rule (the name of the option that sets it) -> place in the field. Two keys can have any order.
KINDS = {MERGE: 1, LOCALITY: 2, RATE: 3, EXCLUSIVE: 3, TENANT: 4}
KINDS_OF_KEYS = (RATE, EXCLUSIVE, TENANT)

FORMS = {
    "merge": Form(MERGE, "merge={merge_key} most={most} bytes={most_bytes}"),
    "merge_window": Form(MERGE, "merge={merge_key} most={most} bytes={most_bytes} wait={wait_us}/{at_most_us}"),
    "hint": Form(LOCALITY, "near={hint}"),
    "rate": Form(RATE, "key={rate_key} rate={tokens}/{period_us}"),
    "limit": Form(EXCLUSIVE, "key={key} limit={limit}"),
    "ordered": Form(EXCLUSIVE, "key={key} limit=1 order=1"),
    "tenant": Form(TENANT, f"key={{tenant_key}} quota={BY_SETTINGS}"),
    "preemptible": Form(TENANT, f"key={{tenant_key}} quota={BY_SETTINGS} {PREEMPTIBLE}"),
}

#: No valid field is longer.
MAX_RULES_LENGTH = sum(max(form.max_length for form in FORMS.values() if form.kind == kind) for kind in KINDS)


def words_of(rule: str) -> str:
    """Return the words of the tokens of a rule, which determine the form."""
    return re.sub(r"=\S*", "", rule)


_FORM_OF_WORDS = {words_of(form.template): name for name, form in FORMS.items()}
_MATCHES = {name: re.compile(form.pattern).fullmatch for name, form in FORMS.items()}
#: First words of the rules. No encoded value has an equals sign, so such a word begins a rule.
STARTS = tuple(dict.fromkeys(words.partition(" ")[0] for words in _FORM_OF_WORDS))
_BOUNDARY = re.compile(f" (?={'|'.join(f'{word}=' for word in STARTS)})")


def _pattern() -> str:
    """Return the pattern of the whole field."""
    # A blank precedes each rule except the first one. The field can be a line of a longer text.
    separator = "(?:(?<=[!-~]) |(?<![!-~]))"
    rules = {
        kind: f"{separator}(?:{'|'.join(form.pattern for form in FORMS.values() if form.kind == kind)})"
        for kind in KINDS
    }
    both = f"(?:(?:{rules[RATE]})?(?:{rules[EXCLUSIVE]})?|{rules[EXCLUSIVE]}{rules[RATE]})"
    pattern = f"(?:{rules[MERGE]})?(?:{rules[LOCALITY]})?{both}(?:{rules[TENANT]})?"
    return re.sub(r"\((?!\?)", "(?:", pattern)


#: Pattern of all valid texts of the field.
PATTERN = _pattern()
_VALID = re.compile(PATTERN).fullmatch


class StatedRate(NamedTuple):
    """At most *tokens* jobs of a key start in *period_us*: in a burst, or one per interval."""

    tokens: int
    period_us: int

    @property
    def interval_us(self) -> int:
        """Interval in µs at which single starts become available again."""
        return max(1, self.period_us // self.tokens)

    def room(self, ahead_us: int) -> int:
        """Return the number of jobs that can start if all starts are available in *ahead_us* µs (0 or less: now).

        Generic cell rate algorithm (ITU-T I.371): one time replaces a number of tokens and a time.
        """
        return min(self.tokens, (self.period_us - max(0, ahead_us)) // self.interval_us)


class StatedKey(NamedTuple):
    #: Encoded.
    key: str
    #: The limit (number of jobs that can hold the key) or the rate. None for a tenant, whose limit is in the settings.
    stated: int | StatedRate | None
    keeps_order: bool = False

    @property
    def is_of_tenant(self) -> bool:
        return self.stated is None

    @property
    def is_exclusive(self) -> bool:
        return isinstance(self.stated, int)


class StatedMerge(NamedTuple):
    """How a call merges. For the units see `VALUES`."""

    #: Encoded.
    key: str
    most: int
    most_bytes: int
    #: 0 without a merge window.
    wait_us: int = 0
    at_most_us: int = 0


class JobRules(NamedTuple):
    #: Kind -> text of the rule, in the order of the field.
    texts: Mapping[str, str]
    merge: StatedMerge | None
    #: Encoded, or "".
    hint: str
    #: In the order in which the job passes them.
    keys: tuple[StatedKey, ...]
    #: True if the job can be preempted for another tenant's job.
    is_preemptible: bool

    @property
    def text_of_keys(self) -> str:
        return join_rules(*(text for kind, text in self.texts.items() if kind in KINDS_OF_KEYS))

    @property
    def suffix(self) -> str:
        """The id suffix of the job."""
        of_keys = {0: "", 1: TENANTED if TENANT in self.texts else KEYED}.get(len(self.keys), MANY_KEYED)
        return (HINTED if self.hint else "") + (MERGES if self.merge else "") + of_keys


def decode_rules(text: str) -> JobRules:
    """Return the rules in *text*, from a message or a job hash. Invalid rules and a text too long are left out."""
    return _decode(text if len(text) <= MAX_RULES_LENGTH else "")


@lru_cache(maxsize=1024)
def _decode(text: str) -> JobRules:
    texts: dict[str, str] = {}
    merge, hint, keys, is_preemptible = None, "", list[StatedKey](), False
    for rule in _BOUNDARY.split(readable_rules(text)):
        name = _FORM_OF_WORDS.get(words_of(rule), "")
        match = _MATCHES[name](rule) if name else None
        if match is None:
            continue
        key, *numbers = match[1], *map(int, match.groups()[1:])
        kind = FORMS[name].kind
        texts[kind] = rule
        if kind == MERGE:
            merge = StatedMerge(key, *numbers)
        elif kind == LOCALITY:
            hint = key
        elif kind == RATE:
            keys.append(StatedKey(key, StatedRate(*numbers)))
        elif kind == EXCLUSIVE:
            keys.append(StatedKey(key, numbers[0] if numbers else 1, name == "ordered"))
        else:
            keys.append(StatedKey(key, None))
            is_preemptible = name == "preemptible"
    return JobRules(texts, merge, hint, tuple(keys), is_preemptible)


def encode_rule(form: str, **values: str | int) -> str:
    """Return the text of a rule in a form of `FORMS`."""
    return FORMS[form].template.format(**values)


def join_rules(*rules: str) -> str:
    """Return the field with the non-empty *rules*, which must be in the order of the field."""
    return " ".join(filter(None, rules))


def is_valid(text: object) -> bool:
    """Return True if *text* is a valid field, such as "" for no rules."""
    return isinstance(text, str) and _VALID(text) is not None


def readable_rules(kept: str) -> str:
    """Return the complete rules for the rules *kept* in a job hash."""
    return re.sub(r"^(merge=[^ ]+)(?= |$)(?! most=)", rf"\1{USUAL_BOUNDS}", kept, count=1)


def as_preemptible(text: str, preemptible: bool) -> str:
    """Return rules that set whether the job is preemptible. A job without a tenant is never preemptible."""
    text = text.removesuffix(f" {PREEMPTIBLE}")
    return f"{text} {PREEMPTIBLE}" if preemptible and TENANT in decode_rules(text).texts else text


_RATE = re.compile(f"({_COUNT.pattern})/({_COUNT.pattern})")


def rate_in(stated: str) -> StatedRate | None:
    """Return the rate ``tokens/period_us``, or None if *stated* is a limit or invalid."""
    match = _RATE.fullmatch(stated)
    return StatedRate(int(match[1]), int(match[2])) if match else None
