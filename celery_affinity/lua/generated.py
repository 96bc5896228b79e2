"""Lua made from the tables of `rules`: keys, the fields of a job, settings, and the numbers of both twins."""

from ..schema import constants, job_record, keys
from ..schema.job_record import FIELDS
from ..schema.keys import KEYS
from ..schema.rules_codec import KEYS as KEY_PLACE
from ..schema.rules_codec import MARKS, OF_KEYS, suffix_characters
from ..schema.values import NAMES, WITHDRAWN, encode_part
from ..settings import wire

_REDIS_TYPES = ("hash", "zset", "list", "string", "stream")
_ARGUMENTS = "abc"

#: Keys of types, lanes, workers and profiles, of which there are few beside jobs: their names are kept between calls of
#: one cohort. To join a name costs as much as a fifth of a command.
_KEPT_NAMES = ("lane", "metrics", "serving", "worker", "claims", "free")


def generated_modules() -> dict[str, str]:
    """Return the text of each generated module by its name."""
    return {
        "protocol": _protocol(),
        "key": _key(),
        "job_fields": _job_fields(),
        "lanes": _lanes(),
        "dead_reasons": _dead_reasons(),
        "defaults": _defaults(),
    }


def _protocol() -> str:
    numbers = {
        **constants.NUMBERS,
        "SCHEMA": keys.SCHEMA,
        # Before a type, in a profile: withdrawn from it for a moment.
        "WITHDRAWN": encode_part(WITHDRAWN),
        "SEVERAL": keys.SEVERAL.decode(),  # instead of the job of a task that has several
        "NONE": keys.NONE.decode(),  # of a revoked task that has none
    }
    numbers |= {name: mark.character for name, mark in MARKS.items()}
    return "".join(f"protocol.{name} = {_literal(value)}\n" for name, value in numbers.items()) + _marks()


def _marks() -> str:
    """Return Lua with the marks of keys; for each mark before these a pattern of the end of an id with it; and the
    rules of one word.
    """
    of_keys = "".join(f" [{_literal(mark)}] = true," for mark in OF_KEYS)
    ends = {
        name: f"%{mark.character}" + "".join(_maybe(place) for place in range(mark.place + 1, KEY_PLACE + 1)) + "$"
        for name, mark in MARKS.items()
        if mark.place != KEY_PLACE
    }
    words = "".join(
        f'    {{ says = "{mark.word}=([%w_.~%%-]*)", ends = {_literal(ends[name])} }},\n'
        for name, mark in MARKS.items()
        if mark.word
    )
    return (
        f"protocol.MARKS_OF_KEYS = {{{of_keys} }}\n"
        f"protocol.ENDS = {{ {', '.join(f'{name} = {_literal(end)}' for name, end in ends.items())} }}\n"
        f"protocol.WORDS = {{\n{words}}}\n"
    )


def _maybe(place: int) -> str:
    """Return a Lua pattern of at most one mark of *place*."""
    return "[" + "".join(f"%{character}" for character in suffix_characters(place)) + "]?"


def _key() -> str:
    """Return Lua for each key: a text if there is one key of the name, else a function of its encoded parts."""
    texts, functions, kinds = [], [], []
    for name, (template, kind, _) in KEYS.items():
        pieces = template.split("%s")
        parts = _ARGUMENTS[: len(pieces) - 1]
        spelled = f'base .. "{pieces[0]}"'
        for part, piece in zip(parts, pieces[1:], strict=True):
            spelled += f" .. {part}" + (f' .. "{piece}"' if piece else "")
        if name in _KEPT_NAMES:
            functions.append(_kept_name(name, parts, spelled))
        elif parts:
            functions.append(f"function key.{name}({', '.join(parts)})\n    return {spelled}\nend\n")
        else:
            texts.append(f"    key.{name} = {spelled}\n")
        if kind in _REDIS_TYPES and len(parts) < 2:
            of_each = "true" if parts else "false"
            kinds.append(f'    {{ name = "{template.removesuffix("%s")}", kind = "{kind}", of_each = {of_each} }},\n')
    new_caches = "".join(f"    of_{name} = memo.cache(protocol.MOST_NAMES)\n" for name in _KEPT_NAMES)
    return (
        f"local base, {', '.join(f'of_{name}' for name in _KEPT_NAMES)}\n"
        "-- Has all keys begin with `its_base`: those of a cohort.\n"
        "function key.begin(its_base)\n"
        "    base, key.base = its_base, its_base\n"
        f"{new_caches}"
        f"{''.join(texts)}"
        "end\n"
        f"{''.join(functions)}"
        f"protocol.KINDS = {{\n{''.join(kinds)}}}\n"
    )


def _kept_name(name: str, parts: str, spelled: str) -> str:
    """Return Lua of the function of a key whose names are kept: by its last part, then by the one before."""
    if len(parts) == 1:
        its = f"    local its = of_{name}\n"
    else:
        its = f"    local its = of_{name}.of[b] or memo.keep(of_{name}, b, memo.cache(protocol.MOST_NAMES))\n"
    found = f"    return its.of[a] or memo.keep(its, a, {spelled})\n"
    return f"function key.{name}({', '.join(parts)})\n{its}{found}end\n"


def _job_fields() -> str:
    """Return Lua that makes a job, a table by `FIELDS`, from arguments, and a row from a job."""
    others = [
        f' or "{field.otherwise}"' if place >= job_record.LEAST_FIELDS else ""
        for place, field in enumerate(FIELDS.values())
    ]
    at = "".join(f"        {name} = arguments[first + {place}],\n" for place, name in enumerate(FIELDS))
    alone = "".join(f"    its.{name} = arguments[{place + 1}]{others[place]}\n" for place, name in enumerate(FIELDS))
    bare = "".join(
        f"        {name} = job.{name},\n" if field.otherwise is None else f'        {name} = "{field.otherwise}",\n'
        for name, field in FIELDS.items()
    )
    # The type goes first: a server looks for the fields of a small hash from the first one on.
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
        f"    return {{\n        mark = mark, last = last,\n{at}    }}\nend\n"
        "-- RETURNS the job of a call that has no other one; where `arguments` end, defaults take their place.\n"
        "-- All such calls share the table: to make one costs a fiftieth of a publish.\n"
        "local its = {}\n"
        "function job_fields.alone(arguments)\n"
        "    its.mark, its.last = id_suffix.of(arguments[1])\n"
        f"{alone}    return its\nend\n"
        "-- RETURNS `job` with the default of every field that a message may leave out.\n"
        f"function job_fields.bare(job)\n    return {{\n{bare}    }}\nend\n"
        "-- RETURNS the fields of the hash of `job` and their values, then what follows `state`.\n"
        f"function job_fields.row(job, lane, enqueued, state, ...)\n    return {row}, ...\nend\n"
        "-- RETURNS the name of a field that is to be percent-encoded, and is not; else nil.\n"
        f"function job_fields.unencoded(job)\n    {encoded}    end\nend\n"
    )


def _lanes() -> str:
    """Return Lua with the names of all lanes of a type."""
    return "lanes.NAMES = {{\n{}}}\n".format("".join(f"    {_literal(name)},\n" for name in NAMES))


def _dead_reasons() -> str:
    """Return Lua with the reasons for a dead letter whose caller another process than the worker tells."""
    announced = [name for name, reason in constants.REASONS.items() if reason.is_announced]
    return "dead_reasons.ARE_ANNOUNCED = {{ {} }}\n".format(", ".join(f"{name} = true" for name in announced))


def _defaults() -> str:
    """Return Lua with the default of each setting, and with the names of those that a claim reads at once."""
    values = "".join(f"    {name} = {_literal(_number_or_text(value))},\n" for name, value in wire.DEFAULTS.items())
    names = "".join(f'    "{name}",\n' for name in wire.FOR_A_CLAIM)
    return f"defaults.OF = {{\n{values}}}\ndefaults.FOR_A_CLAIM = {{\n{names}}}\n"


def _number_or_text(value: str) -> float | str:
    return float(value) if value.removeprefix("-").replace(".", "", 1).isdigit() else value


def _literal(value: float | str) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value).removesuffix(".0")
