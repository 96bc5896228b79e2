"""What a linked script leaves out, and what it spells otherwise; that it does the same is the conformance test's."""

import pytest

from celery_affinity.linking import linked
from celery_affinity.scripts import ARROWS, load

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


def test_a_key_that_is_not_there_or_takes_other_parts_is_an_error():
    with pytest.raises(KeyError, match="haeds"):
        linked("return key.haeds\n")
    with pytest.raises(ValueError, match="job takes 1 parts, got: \\['a', 'b'\\]"):
        linked("return key.job(a, b)\n")


def test_a_linked_script_runs_as_before(redis_client):
    source = linked(PARTS + "return { lanes.add(ARGV[1]), traces.add(ARGV[1]) }\n")
    assert redis_client.eval(source, 1, "base:", "x") == [b"base:lane:x:X", 60]


@pytest.mark.parametrize("name", ARROWS)
def test_every_script_is_linked(name):
    assert "key." not in load(name).source
