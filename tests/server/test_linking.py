"""Linked scripts: text that is left out, moved, or spelt otherwise. The conformance test proves equal behaviour."""

import re

import pytest

from celery_affinity.server.scripts import assembling
from celery_affinity.server.scripts.assembling import ARROWS, assembled, load
from celery_affinity.server.scripts.deferring import deferred
from celery_affinity.server.scripts.linking import linked

PARTS = """local base = KEYS[1]
local lanes = {}
local traces = { KEEP_S = 60 }

-- Adds.
function lanes.add(id)
    return lanes.look(id)
end

function lanes.look(id)
    return key.lane(id, string.upper(id))
end

local function helper()
    return lanes.drop()
end

-- Drops.
function lanes.drop()
    return helper() -- lanes.add
end

function traces.add(id)
    return traces.KEEP_S
end

"""


def test_functions_that_nothing_calls_are_left_out_and_what_only_they_call():
    source = linked(PARTS + "return lanes.add(ARGV[1]) -- not lanes.drop\n")
    assert "drop()" not in source
    assert "helper" not in source
    assert "Drops" not in source, "what is said of them goes with them"
    assert "function lanes_add(id)\n    return lanes_look(id)\nend\n" in source


def test_functions_of_parts_are_locals_and_a_table_stays_while_there_is_more_in_it():
    source = linked(PARTS + "return lanes.add(ARGV[1]) .. traces.add(ARGV[1])\n")
    assert "local lanes_add, lanes_look\n" in source
    assert "local lanes = " not in source
    assert "local traces = { KEEP_S = 60 }\nlocal traces_add\n" in source


def test_keys_are_spelled_where_they_are_used():
    assert '(base .. "lane:" .. id .. ":" .. string.upper(id))' in linked(PARTS + "return lanes.add(ARGV[1])\n")
    assert linked("return key.heads\n") == 'return (base .. "heads")\n'


def test_numbers_of_both_twins_are_spelled_where_they_are_used():
    assert linked("return protocol.TICK_US -- protocol.TICKERS\n") == "return 1400000 -- 3\n"
    with pytest.raises(KeyError, match="MOST_SLOTS"):
        linked("return protocol.MOST_SLOTS\n")


def test_a_key_that_is_not_there_or_takes_other_parts_is_an_error():
    with pytest.raises(KeyError, match="haeds"):
        linked("return key.haeds\n")
    with pytest.raises(ValueError, match="job takes 1 parts, got: \\['a', 'b'\\]"):
        linked("return key.job(a, b)\n")


def test_numbers_and_texts_that_parts_name_are_spelled_where_they_are_used():
    source = 'local FIRST, LAST = 1, 20 -- places\nlocal SIGN = "+"\nlocal NONE = -math.huge\n'
    source += 'local t = { FIRST = LAST } -- FIRST\nreturn t.FIRST + LAST == FIRST, "LAST" .. SIGN, NONE\n'
    assert linked(source) == (
        'local NONE = -math.huge\nlocal t = { FIRST = 20 } -- FIRST\nreturn t.FIRST + 20 == 1, "LAST" .. "+", NONE\n'
    )


def test_a_constant_with_the_name_of_another_local_is_an_error():
    with pytest.raises(ValueError, match="more than one local has the name of a constant: \\['MANY'\\]"):
        linked(
            "local MANY = 80\nlocal function f()\n    local few, MANY = 1, 2\n    return few, MANY\nend\nreturn f()\n"
        )


def test_a_linked_script_runs_as_before(redis_client):
    source = linked(PARTS + "return { lanes.add(ARGV[1]), traces.add(ARGV[1]) }\n")
    assert redis_client.eval(source, 1, "base:", "x") == [b"base:lane:x:X", 60]


LATER = """local again = {}

function again.put(id)
    return lanes.look(id) .. again.mark
end

"""

WITH_A_BLOCK = (
    PARTS
    + "local reply = traces.add(ARGV[1])\n"
    + "if ARGV[1] ~= 'x' then -- rarely\n"
    + deferred(LATER, "if ARGV[1] ~= 'x' then -- rarely\n")
    + "    again.mark = #lanes.add(ARGV[1]) > 0 and '!'\n"
    + deferred("local more = {}\n\n", "if ARGV[1] ~= 'x' then -- rarely\n")
    + "    return again.put(ARGV[1])\n"
    + "end\n"
)


def test_what_only_a_block_uses_is_defined_in_it():
    before, after = linked(WITH_A_BLOCK + "return reply\n").split("if ARGV[1] ~= 'x' then")
    assert "function traces_add(" in before
    assert "function lanes_add(" in after
    assert "function" not in before.replace("function traces_add(", "")
    assert after.index("function lanes_look(") < after.index("function again_put("), "in the order in which they stood"


def test_what_is_used_beside_the_block_too_is_not():
    before, after = linked(WITH_A_BLOCK + "return lanes.look(ARGV[1])\n").split("if ARGV[1] ~= 'x' then")
    assert "function lanes_look(" in before
    assert "function lanes_add(" in after


def test_a_block_within_a_block_has_its_own():
    inner = deferred("local inner = {}\n", "    if ARGV[2] then\n")
    source = PARTS + "if ARGV[1] then\n" + deferred("local outer = {}\n", "if ARGV[1] then\n")
    source += "    if ARGV[2] then\n" + inner + "        return lanes.add(ARGV[1])\n    end\n"
    outside, outer, inner = linked(source + "    return traces.add(ARGV[1])\nend\n").split("if ARGV[")
    assert "function" not in outside
    assert "function traces_add(" in outer
    assert "function lanes_add(" in inner


def test_a_script_with_a_block_runs_as_before(redis_client):
    source = linked(WITH_A_BLOCK + "return reply\n")
    assert redis_client.eval(source, 1, "base:", "x") == 60
    assert redis_client.eval(source, 1, "base:", "y") == b"base:lane:y:Y!"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("if ARGV[1] then\n    x()\n-- @include lib/more.lua\nend\n", "must come before all code.*x().*say @deferred"),
        ("if ARGV[1] then\n-- @include lib/more.lua\nend\n", "must come before all code.*in a block, say @deferred"),
        ("-- @deferred lib/more.lua\nreturn 1\n", "must come first in a block; before all code, say @include"),
        ("if ARGV[1] then\n    x()\n-- @deferred lib/more.lua\nend\n", "must come first in a block, not after.*x()"),
        ("if ARGV[1] then\n\n-- @deferred lib/more.lua\nend\n", "must come first in a block"),
    ],
)
def test_an_include_or_a_deferred_part_in_the_others_place_is_an_error(monkeypatch, source, error):
    texts = {"arrows/odd.lua": source, "lib/more.lua": ""}
    monkeypatch.setattr(assembling, "_read", texts.__getitem__)
    with pytest.raises(ValueError, match=error):
        assembled("odd")


@pytest.mark.parametrize("name", ARROWS)
def test_every_script_is_linked(name):
    assert not re.search(r"\b(key|protocol)\.", load(name).source)
