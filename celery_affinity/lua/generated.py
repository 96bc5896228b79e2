"""Lua modules made from the tables of `schema` and `settings`: keys, job fields, settings and shared constants."""

import re
from string import Formatter

from ..schema import constants, job_record, keys, rules_codec
from ..schema.job_record import FIELDS
from ..schema.keys import KEYS
from ..schema.rules_codec import FORMS, MARKS, OF_KEYS, STARTS, SUFFIX, VALUES, Form
from ..schema.values import NAMES, WITHDRAWN, encode_part
from ..settings import wire

_REDIS_TYPES = ("hash", "zset", "list", "string", "stream")
_ARGUMENTS = "abc"

#: Keys whose names are cached between invocations on one cohort. There are few of them, compared with jobs. Joining a
#: name costs as much as a fifth of a command.
_CACHED_NAMES = ("lane", "metrics", "serving", "worker", "claims", "free")


def generated_modules() -> dict[str, str]:
    """Return the text of each generated module by name."""
    announced = ", ".join(f"{name} = true" for name, reason in constants.REASONS.items() if reason.is_announced)
    return {
        "protocol": _protocol(),
        "rules_codec": _rules_codec(),
        "key": _key(),
        "job_fields": _job_fields(),
        "lanes": "lanes.NAMES = {{\n{}}}\n".format("".join(f"    {_literal(name)},\n" for name in NAMES)),
        # The dead-letter reasons that a dispatcher, not the worker, reports to the caller.
        "dead_reasons": f"dead_reasons.ARE_ANNOUNCED = {{ {announced} }}\n",
        "defaults": _defaults(),
    }


def _protocol() -> str:
    numbers = {
        **constants.NUMBERS,
        **MARKS,
        "SUFFIX": f"{SUFFIX}$",  # matches the suffix of an id
        "HINT_SUFFIX": f"{SUFFIX}$".replace("?", "", 1),  # matches a suffix with a hint
        "SCHEMA": keys.SCHEMA,
        # Prefix of a type in a profile that is temporarily withdrawn.
        "WITHDRAWN": encode_part(WITHDRAWN),
        "SEVERAL": keys.SEVERAL.decode(),  # instead of the job id, if a task has several jobs
        "NONE": keys.NONE.decode(),  # instead of the job id of a revoked task without a job
    }
    of_keys = "".join(f" [{_literal(mark)}] = true," for mark in OF_KEYS)
    texts = "".join(f"protocol.{name} = {_literal(value)}\n" for name, value in numbers.items())
    return f"{texts}protocol.MARKS_OF_KEYS = {{{of_keys} }}\n"


def _rules_codec() -> str:
    """Return Lua with the grammar of a job's rules, and how a text is split into rules."""
    forms = "".join(
        f"    [{_literal(rules_codec.words_of(form.template))}] = {_form(form)},\n" for form in FORMS.values()
    )
    starts = "".join(f' {word} = "\\n{word}=",' for word in STARTS)
    return f"rules_codec.FORMS = {{\n{forms}}}\nrules_codec.STARTS = {{{starts} }}\n"


def _form(form: Form) -> str:
    """Return a Lua table with the fields that ``lua/jobs/rules_codec.lua`` describes."""
    pattern, longest, excluded = "^", [], list[str]()
    for text, name, _, _ in Formatter().parse(form.template):
        pattern += _pattern_of(text)
        if name:
            value = VALUES[name]
            excluded += (f'"{pattern}{_pattern_of(excluded_text)}"' for excluded_text in value.excluded)
            begin = _pattern_of(value.prefix) or value.first
            pattern += f"({begin}{value.further}*)"
            longest.append(str(value.longest))
    place, is_key = rules_codec.KINDS[form.kind], str(form.kind in rules_codec.KINDS_OF_KEYS).lower()
    return (
        f'{{ kind = "{form.kind}", place = {place}, is_key = {is_key}, longest = {{ {", ".join(longest)} }},\n'
        f'        pattern = "{pattern}$",\n        excluded = {{ {", ".join(excluded)} }} }}'
    )


def _pattern_of(text: str) -> str:
    """Return the Lua pattern that matches exactly *text*."""
    return re.sub(r"([$%^*()\[\].+?-])", r"%\1", text)


def _key() -> str:
    """Return Lua for each key: a string if its name has no parts, otherwise a function of the encoded parts."""
    texts, functions, kinds = [], [], []
    for name, (template, kind, _) in KEYS.items():
        pieces = template.split("%s")
        parts = _ARGUMENTS[: len(pieces) - 1]
        spelled = f'base .. "{pieces[0]}"'
        for part, piece in zip(parts, pieces[1:], strict=True):
            spelled += f" .. {part}" + (f' .. "{piece}"' if piece else "")
        if name in _CACHED_NAMES:
            functions.append(_cached_name(name, parts, spelled))
        elif parts:
            functions.append(f"function key.{name}({', '.join(parts)})\n    return {spelled}\nend\n")
        else:
            texts.append(f"    key.{name} = {spelled}\n")
        if kind in _REDIS_TYPES and len(parts) < 2:
            of_each = "true" if parts else "false"
            kinds.append(f'    {{ name = "{template.removesuffix("%s")}", kind = "{kind}", of_each = {of_each} }},\n')
    new_caches = "".join(f"    of_{name} = memo.cache(protocol.MAX_NAMES)\n" for name in _CACHED_NAMES)
    return (
        f"local base, {', '.join(f'of_{name}' for name in _CACHED_NAMES)}\n"
        "-- Has all keys begin with `its_base`: those of a cohort.\n"
        "function key.begin(its_base)\n"
        "    base, key.base = its_base, its_base\n"
        f"{new_caches}"
        f"{''.join(texts)}"
        "end\n"
        f"{''.join(functions)}"
        f"protocol.KINDS = {{\n{''.join(kinds)}}}\n"
    )


def _cached_name(name: str, parts: str, spelled: str) -> str:
    """Return the Lua function of a key with cached names, by the last part and then by the part before it."""
    if len(parts) == 1:
        select_cache = f"    local its = of_{name}\n"
    else:
        select_cache = f"    local its = of_{name}.of[b] or memo.keep(of_{name}, b, memo.cache(protocol.MAX_NAMES))\n"
    lookup = f"    return its.of[a] or memo.keep(its, a, {spelled})\n"
    return f"function key.{name}({', '.join(parts)})\n{select_cache}{lookup}end\n"


def _job_fields() -> str:
    """Return Lua that makes a job table from arguments by `FIELDS`, and a job hash from a job table."""
    others = [
        f' or "{field.otherwise}"' if place >= job_record.LEAST_FIELDS else ""
        for place, field in enumerate(FIELDS.values())
    ]
    assignments = "".join(f"        {name} = arguments[first + {place}],\n" for place, name in enumerate(FIELDS))
    reused = "".join(f"    its.{name} = arguments[{place + 1}]{others[place]}\n" for place, name in enumerate(FIELDS))
    defaulted = "".join(
        f"        {name} = job.{name},\n" if field.otherwise is None else f'        {name} = "{field.otherwise}",\n'
        for name, field in FIELDS.items()
    )
    # The type is first, because a server searches a small hash from its first field.
    first, *others = (f'"{field.kept}", job.{name}' for name, field in FIELDS.items() if field.kept)
    fields = [first, '"lane", lane', '"enqueued", enqueued', *others, '"state", state']
    row = ",\n        ".join(fields)
    encoded = "".join(
        f'    elseif not string.find(job.{name}, "^[%w_.~%%-]*$") then\n        return "{name}"\n'
        for name, field in FIELDS.items()
        if field.pattern == job_record.TEXT
    ).removeprefix("    else")
    return (
        f"job_fields.COUNT, job_fields.LEAST = {len(FIELDS)}, {job_record.LEAST_FIELDS}\n"
        "-- RETURNS the job whose fields begin at `first` in `arguments`. Its `mark` is that of its id, which ends\n"
        "-- with `last`.\n"
        "function job_fields.at(arguments, first)\n"
        "    local mark, last = id_suffix.of(arguments[first])\n"
        f"    return {{\n        mark = mark, last = last,\n{assignments}    }}\nend\n"
        "-- RETURNS the job of a call that has no other one; where `arguments` end, defaults take their place.\n"
        "-- All such calls share the table: to make one costs a fiftieth of a publish.\n"
        "local its = {}\n"
        "function job_fields.alone(arguments)\n"
        "    its.mark, its.last = id_suffix.of(arguments[1])\n"
        f"{reused}    return its\nend\n"
        "-- RETURNS `job` with the default of every field that a message may leave out.\n"
        f"function job_fields.bare(job)\n    return {{\n{defaulted}    }}\nend\n"
        "-- RETURNS the fields of the hash of `job` and their values, then what follows `state`.\n"
        f"function job_fields.row(job, lane, enqueued, state, ...)\n    return {row}, ...\nend\n"
        "-- RETURNS the name of a field that is to be percent-encoded, and is not; else nil.\n"
        f"function job_fields.unencoded(job)\n    {encoded}    end\nend\n"
    )


def _defaults() -> str:
    """Return Lua with the default of each setting, and the names of the settings that a claim reads together."""
    values = "".join(f"    {name} = {_literal(_number_or_text(value))},\n" for name, value in wire.DEFAULTS.items())
    names = "".join(f'    "{name}",\n' for name in wire.FOR_A_CLAIM)
    return f"defaults.OF = {{\n{values}}}\ndefaults.FOR_A_CLAIM = {{\n{names}}}\n"


def _number_or_text(value: str) -> float | str:
    return float(value) if value.removeprefix("-").replace(".", "", 1).isdigit() else value


def _literal(value: float | str) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value).removesuffix(".0")
