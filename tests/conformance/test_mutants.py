"""The program for mutation tests of the Lua library: its operators, keys, sample and list. `make mutants` runs it."""

from textwrap import dedent

import pytest

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lua.library import assemble

from .mutation import judge
from .mutation import replay as replaying
from .mutation.__main__ import all_mutants, as_markdown, digest_of, kept_verdicts, sample
from .mutation.judge import KILLED, SURVIVED, UNLOADED, Tree, Verdict, verdict_on
from .mutation.operators import OPERATORS, Mutant, mutants_of
from .mutation.replay import Replay, recorded
from .mutation.survivors import accepted, parsed
from .wire import walked

#: Operator -> some statements in a function, and the changes of their mutants.
CHANGES = {
    "drop a Redis write": ('redis.call("DEL", a) local b = redis.call("GET", a)', ['[redis.call("DEL", a) ->]']),
    "drop a call": ("f(a) return f(a)", ["[f(a) ->]"]),
    "drop an assignment": (
        "a, b.c = 1, 2 d = 3 e, f = g() local h = 4",
        ["[a, b.c = 1, 2 -> a = 1]", "[a, b.c = 1, 2 -> b.c = 2]", "[d = 3 ->]", "[e, f = g() ->]"],
    ),
    "drop an exit": ("if a then return b end for _ = 1, 2 do break end return c", ["[break ->]", "[return b ->]"]),
    "negate a condition": (
        "if a == 1 then f() elseif b then g() end",
        ["elseif [b -> not (b)] then", "if [a == 1 -> not (a == 1)] then"],
    ),
    "fix a condition": (
        "if a then f() end while b do g() end repeat h() until c",
        ["if [a -> false] then", "if [a -> true] then", "repeat until [c -> true]", "while [b -> false] do"],
    ),
    "drop an operand": (
        "a = b and c and d e = f and g or h i[#i + 1] = j",
        [
            "a = [b and c -> b] and d",
            "a = [b and c -> c] and d",
            "a = [b and c and d -> b and c]",
            "e = [f and g -> g] or h",
            "e = [f and g or h -> f and g]",
            "e = [f and g or h -> h]",
        ],
    ),
    "drop a not": ("a = not b", ["a = [not b -> b]"]),
    "swap < and <=": (
        "a = b < c d = e >= f g = h == i",
        ["a = b [< -> <=] c", "d = e [>= -> >] f"],
    ),
    "turn a comparison": (
        "if a == b then return c < d end",
        ["return c [< -> >] d"],
    ),
    "swap + and -": ("a = b + c * d e[#e + 1] = f", ["a = b + c [* -> /] d", "a = b [+ -> -] c * d"]),
    "shift a number": ('a, b, c = 1, "7", "x1"', ['a, b, c = 1, ["7" -> "8"], "x1"', 'a, b, c = [1 -> 2], "7", "x1"']),
    "flip true and false": ("a, b = true, false", ["a, b = [true -> false], false", "a, b = true, [false -> true]"]),
    "swap first and last": (
        'redis.call("LPUSH", a, math.min(b[1], c[#c]))',
        [
            'redis.call("LPUSH", a, [math.min -> math.max](b[1], c[#c]))',
            'redis.call("LPUSH", a, math.min(b[1], c[[#c -> 1]]))',
            'redis.call("LPUSH", a, math.min(b[[1 -> #b]], c[#c]))',
            'redis.call(["LPUSH" -> "RPUSH"], a, math.min(b[1], c[#c]))',
        ],
    ),
    "drop an argument": (
        'f(a, 1) f(a, b) redis.call("ZADD", a, "NX") redis.call("HSET", a, b, c, d, e) redis.call("HDEL", a, b)',
        [
            "f(a [, 1 ->])",
            'redis.call("HSET", a [, b, c ->], d, e)',
            'redis.call("HSET", a, b, c [, d, e ->])',
            'redis.call("ZADD", a [, "NX" ->])',
        ],
    ),
    "drop a field": (
        "a = { b, c = d, nil }",
        ["a = { [b, ->] c = d, nil }", "a = { b, [c = d, ->] nil }"],
    ),
    "drop min, max": ("a = math.max(b, 0)", ["a = [math.max(b, 0) -> 0]", "a = [math.max(b, 0) -> b]"]),
    "empty a text": ('if a == "b" then f("c") end', ['if a == ["b" -> ""] then']),
}


def in_function(body):
    return f"-- m: is about it\nfunction m.f()\n{body}\nend\n"


def statements_of(operator, body):
    found = mutants_of("m", in_function(body))
    return sorted(mutant.statement for mutant in found if mutant.operator == operator)


def test_each_operator_makes_exactly_its_own_changes():
    wanted = {name: sorted(statements) for name, (_, statements) in CHANGES.items()}
    assert {name: statements_of(name, body) for name, (body, _) in CHANGES.items()} == wanted
    assert CHANGES.keys() == OPERATORS.keys()


def test_mutant_changes_only_its_own_place():
    source = in_function("    a = 'é' -- comment\n    if b < c then a = 1 end")
    [mutant] = [mutant for mutant in mutants_of("m", source) if mutant.operator == "swap < and <="]
    assert mutant.applied(source) == source.replace("b < c", "b <= c")


def test_keys_survive_moves_and_formatting_of_a_file():
    source = dedent("""\
        -- m: is about it
        local function f(a)
            if not a[1] or #a < 3 then
                redis.call("HSET", key.of(a), "x", -1)
            end
            return g({ a = 1, [2] = "b  c" })
        end
        """)
    anew = "-- m: is\n\n\n" + dedent("""\
        local function f( a ) if not a[ 1 ] or -- the reason
            # a<3 then redis.call( "HSET",key.of( a ),
          --[[ long
          comment ]]
          "x",- 1 ) end return g({a=1,[2]="b  c"}) end
        """)
    keys = [mutant.key for mutant in mutants_of("old/name", source)]
    assert [mutant.key for mutant in mutants_of("new", anew)] == keys
    assert "f: drop a not: if [not a[1] -> a[1]] or #a < 3 then" in keys
    assert len(set(keys)) == len(keys)


def test_invalid_lua_is_refused():
    with pytest.raises(ValueError, match=r"m\.lua cannot be parsed"):
        mutants_of("m", "if if then")


def test_sample_is_same_for_one_seed_and_fair():
    mutants = all_mutants()
    picked = sample(mutants, 2 * len(OPERATORS), "7")
    assert picked == sample(list(mutants), 2 * len(OPERATORS), "7")
    assert picked != sample(mutants, 2 * len(OPERATORS), "8")
    assert sorted(mutant.operator for mutant in picked) == sorted([*OPERATORS, *OPERATORS])


def test_each_accepted_survivor_is_a_mutant_of_the_tree():
    keys = {mutant.key for mutant in all_mutants()}
    stale = [key for row in accepted() for key in row.keys - keys]
    assert not stale, f"no mutant has these keys of survivors.toml any more: {stale}"
    unused = [row.matching.pattern for row in accepted() if row.matching and not any(map(row.has, keys))]
    assert not unused, f"no mutant has a key with these patterns of survivors.toml: {unused}"


def test_accepted_survivor_without_a_reason_is_refused():
    for row in ('keys = ["a"]', 'reason = ""\nkeys = ["a"]', 'reason = "a"', 'reason = "a"\nkey = ["b"]'):
        with pytest.raises(ValueError, match="a row has a reason, and either keys or matching"):
            parsed(f"[[accepted]]\n{row}")


def test_judges_are_files_of_tests_and_name_lua_files():
    for test, judged in judge.judges().items():
        file, _, name = test.partition("::")
        assert not name or f"def {name.partition('[')[0]}(" in (judge.ROOT / file).read_text(), test
        assert (judge.ROOT / file).is_file(), test
        assert set(judged) <= judge.texts().keys(), test


def test_verdicts_of_an_ended_run_are_kept(tmp_path):
    one, other = all_mutants()[:2]
    path = tmp_path / "verdicts.jsonl"
    assert kept_verdicts(path, again=False) == {}
    path.write_text(
        f'{{"digest": "{digest_of(one)}", "verdict": "killed", "by": "step 7", "file": "old"}}\n'
        f'{{"digest": "{digest_of(other)}", "verdict": "survived", "by": ""}}\n'
    )
    assert digest_of(one) != digest_of(other)
    assert kept_verdicts(path, again=False)[digest_of(one)] == Verdict(KILLED, "step 7")
    assert kept_verdicts(path, again=False)[digest_of(other)] == Verdict(SURVIVED)
    assert kept_verdicts(path, again=True) == {digest_of(one): Verdict(KILLED, "step 7")}


def _verdict(file, operator, statement, *judges):
    [mutant] = [each for each in mutants_of(file, judge.texts()[file]) if each[2:4] == (operator, statement)]
    return verdict_on(mutant, *judges)


def test_mutant_is_killed_by_steps_or_test_or_survives(tmp_path, monkeypatch):
    test = "tests/scheduler/test_part.py::test_split_off_calls_are_their_own_run_in_order"
    monkeypatch.setattr(judge, "judges_of", lambda file: [test])
    with EmbeddedServer() as server:
        runs = recorded(server, 200, 9)
        assert len(runs) == 2, "the library as it is makes the same bytes twice"
        judges = Replay(server, runs), Tree(tmp_path), ()
        noticed = _verdict(
            "jobs/enqueue", "negate a condition", "if [delay_us > 0 -> not (delay_us > 0)] then", *judges
        )
        assert noticed.verdict == KILLED
        assert noticed.by.startswith("SEED=9 step ")
        runs.clear()
        moved = '[redis.call("ZADD", key.callers(part), number, id) ->]'
        assert _verdict("functions/results", "drop a Redis write", moved, *judges) == Verdict(KILLED, f"{test}[valkey]")
        returned = "call.text(enqueued), bytes, merge.common_head(enqueued, rank, rank), due"
        always = f'return [lane or "queued.0" -> lane], {returned}'
        assert _verdict("functions/results", "drop an operand", always, *judges) == Verdict(SURVIVED)


def test_mutant_that_cannot_be_loaded_is_not_counted():
    with EmbeddedServer() as server:
        replay = Replay(server, [])
        mutant = Mutant("functions/claim", "functions.ack", "an operator", "", 0, 0, "-- ack: is no Lua\nif if ")
        assert verdict_on(mutant, replay, None) == Verdict(UNLOADED)


def test_mutant_with_an_endless_loop_is_killed(monkeypatch):
    monkeypatch.setattr(replaying, "REPLY_S", 1)
    begins = "function call.begin(base)\n"
    endless = walked(assemble().replace(begins, f"{begins}while true do end\n"))
    with EmbeddedServer() as server:
        replay = Replay(server, recorded(server, 100, 9))
        for _ in range(2):
            assert replay.notices(endless).startswith("SEED=9 step ")
        assert replay.notices(walked(assemble())) == ""


def test_table_counts_killed_and_survived_mutants_by_operator():
    mutants = [mutant for mutant in all_mutants() if mutant.operator == "swap < and <="][:4]
    verdicts = dict(zip(mutants, map(Verdict, (KILLED, KILLED, SURVIVED)), strict=False))
    lines = as_markdown(mutants, mutants, verdicts, "seed 7").splitlines()
    assert "| swap < and <= | 4 | 2 | 1 | 1 | 67% |" in lines
    assert "| drop a not | 0 | 0 | 0 | 0 |  |" in lines
    assert lines[-1] == "| all | 4 | 2 | 1 | 1 | 67% |"
