"""Every number in a setting, an option or a command has bounds. The tests iterate over the package's tables."""

import math
from dataclasses import fields

import click

from celery_affinity import OptionError, SettingError
from celery_affinity.admin.submit import ACCEPTED, Submission
from celery_affinity.cli import PRIORITY, affinity, framework
from celery_affinity.options.call_options import OPTIONS
from celery_affinity.options.keys import Exclusive, Rate
from celery_affinity.options.merge import Merge
from celery_affinity.options.recurring import Recurring
from celery_affinity.schema.bounds import Bound
from celery_affinity.settings.limits import typed_limit
from celery_affinity.settings.loader import CHANGEABLE, parse_change
from celery_affinity.settings.table import Settings
from celery_affinity.settings.tenants import Tenant
from celery_affinity.settings.wire import NAME_IN_REDIS, is_setting

#: Numbers that every option must reject, because none of them is a valid time or count.
NUMBERS = (1e308, -1e308, math.inf, -math.inf, math.nan, 10**400, -(10**400), 10**5000, 2**63)

#: The same numbers as strings.
TEXTS = ("1e308", "-1e308", "inf", "-inf", "nan", "1" + "0" * 400, "9" * 5000, "9223372036854775808")

#: Setting that contains numbers -> functions that create a value with a given number.
NESTED = {
    "limits": [lambda n: {"k": n}, lambda n: {"type:pdf": n}, lambda n: {"rate:k": n}],
    "tenants": [lambda n: {"a": {"max": n}}, lambda n: {"a": {"min": n}}, lambda n: {"a": {"weight": n}}],
    "reserve": [lambda n: {"pdf": {"queued": n}}, lambda n: {"pdf": {"0-4": n}}],
    "max_pending": [lambda n: {"pdf": n}],
    "recurring": [lambda n: {"a": {"task": "t", "stale_after": n}}],
    "task_rules": [
        lambda n: {"*": {"exclusive": {"key": "k", "limit": n}}},
        lambda n: {"*": {"rate": {"key": "k", "rate": n}}},
        lambda n: {"*": {"merge": {"key": "k", "keep": "last", "most": n}}},
        lambda n: {"*": {"merge": {"key": "k", "keep": "last", "wait": n}}},
        lambda n: {"*": {"merge": {"key": "k", "keep": "last", "wait": 1, "at_most": n}}},
    ],
}

#: Rule or field in code -> function that creates a rule with a given number.
IN_CODE = {
    "Exclusive": lambda n: Exclusive("k", n),
    "Rate": lambda n: Rate(n, "k"),
    "rate of 1/n": lambda n: Rate(f"1/{written(n)}", "k"),
    "rate of n/m": lambda n: Rate(f"{written(n)}/m", "k"),
    "most": lambda n: Merge("k", "last", most=n),
    "most_bytes": lambda n: Merge("k", "last", most_bytes=n),
    "wait": lambda n: Merge("k", "last", wait=n),
    "at_most": lambda n: Merge("k", "last", wait=1, at_most=n),
    "Bound": Bound,
    "max": Tenant,
    "min": lambda n: Tenant(min=n),
    "weight": lambda n: Tenant(weight=n),
    "Recurring": lambda n: Recurring("t", stale_after=n),
}


def written(number):
    """Return a number as a string. Python refuses to convert an integer with 5,000 digits."""
    return "9" * 5000 if number == 10**5000 else str(number)


#: Setting -> templates of values that operators type.
TYPED = {
    "limits": ["k={}", "type:pdf={}", "rate:k={}/m", "rate:k=1/{}"],
    "reserve": ["pdf:queued={}", "pdf:queued={}%", "pdf:{}=1", "pdf:0-{}=1"],
    "tenants": ["a=max:{}", "a=max:none,min:{}", "a=max:none,weight:{}"],
}


def refused(error, call, *args):
    """Return None if *call* raises *error* with the standard wording; otherwise describe the outcome."""
    try:
        call(*args)
    except error as exc:
        message = str(exc)
        return None if " must be " in message or "got: " in message else f"refused without reason: {message[:200]}"
    except Exception as exc:
        return f"{type(exc).__name__}: {str(exc)[:200]}"
    return "accepted"


def failures(error, cases):
    """Return the failures by case. *cases*: tuples of name, callable and arguments."""
    tried = {(name, repr_of(args)): refused(error, call, *args) for name, call, args in cases}
    assert tried
    return {case: outcome for case, outcome in tried.items() if outcome}


def repr_of(args):
    try:
        return repr(args)[:60]
    except ValueError:
        return "of 5,000 digits"


def test_settings_reject_unbounded_numbers():
    cases = [(each.name, set_to, (each.name, value)) for each in fields(Settings) for value in (*NUMBERS, *TEXTS)]
    cases += [(name, set_to, (name, make(n))) for name, makers in NESTED.items() for make in makers for n in NUMBERS]
    cases += [(name, set_to, (name, make(n))) for name, makers in NESTED.items() for make in makers for n in TEXTS]
    assert not failures(SettingError, cases)


def set_to(name, value):
    return Settings(**{name: value})


def test_settings_reject_unbounded_numbers_at_run_time_and_in_redis():
    cases = [(name, parse_change, (name, text)) for name in CHANGEABLE for text in TEXTS]
    typed = [(name, form.format(text)) for name, forms in TYPED.items() for form in forms for text in TEXTS]
    cases += [(name, parse_change, (name, text)) for name, text in typed]
    wrong = failures(SettingError, cases)
    in_redis = [*typed, *((name, text) for name in NAME_IN_REDIS for text in TEXTS)]
    wrong |= {(name, text[:60]): "is a value in Redis" for name, text in in_redis if is_setting(name, text)}
    assert not wrong


def test_rules_in_code_reject_unbounded_numbers():
    cases = [(name, make, (n,)) for name, make in IN_CODE.items() for n in (*NUMBERS, *TEXTS)]
    wrong = failures((OptionError, SettingError), cases)
    for limit in TEXTS:
        typed_limit(limit)
    assert not wrong


def test_call_options_reject_unbounded_numbers():
    numbers = [n for n in NUMBERS if n != 10**5000]  # Python cannot write this number as JSON
    # A priority out of range is clamped: see `tests/publishing/test_priority_range.py`.
    cases = [(name, option.read, (n,)) for name, option in OPTIONS.items() if name != "priority" for n in NUMBERS]
    cases += [
        (name, lambda name, n: Submission("task", options={name: n}), (name, n)) for name in ACCEPTED for n in numbers
    ]
    assert not failures(OptionError, cases)


def test_command_options_reject_unbounded_numbers():
    wrong, tried = {}, 0
    context = click.Context(affinity)
    for path, option in [*options_of(affinity, ()), (("worker",), PRIORITY)]:
        is_number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
        if not is_number and option.callback is not framework.parse_seconds:
            continue
        for text in TEXTS:
            tried += 1
            try:
                option.process_value(context, text if not option.multiple else [text])
                wrong[" ".join((*path, option.name)), text[:60]] = "accepted"
            except click.BadParameter:
                continue
    assert tried > 100
    assert not wrong


def options_of(command, path):
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from options_of(command.get_command(click.Context(command), name), (*path, name))
        return
    for option in command.params:
        yield path, option
