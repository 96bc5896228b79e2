"""The library: its files, the two ways to call it, function signatures, and its reload after data loss."""

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis._parsers.base import BaseParser

from celery_affinity import lua
from celery_affinity.errors import SettingError
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.lua import generated
from celery_affinity.lua.library import (
    _OFTEN_USED,
    BRING_JOBS,
    FUNCTION_NAMES,
    assemble,
    function_call,
    library_of,
    load_library,
    server_function,
)
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import KEYS, Keys

from ..support import passing_errors
from ..support.full_server import full_server


def test_file_begins_with_its_description(subtests):
    for path in sorted(Path(lua.__file__).parent.rglob("*.lua")):
        with subtests.test(path.stem):
            source = path.read_text()
            assert re.match(r"-- \w+: ", source)
            assert "math.random" not in source
            if path.parent.name == "functions":
                for name in re.findall(r"^function functions\.(\w+)\(ARGV\)", source, re.MULTILINE):
                    assert re.search(rf"^-- {name}: .*\n(--.*\n)*-- Returns ", source, re.MULTILINE), name


@pytest.mark.parametrize("by_script", [False, True])
def test_loaded_text_calls_redis_by_a_local_variable(by_script):
    library = load_library()
    text = library.script(brings_jobs=True) if by_script else library.functions
    assert "redis.call(" not in text
    assert text.count("\nredis_call = redis.call\n") == 1


@pytest.mark.parametrize("by_script", [False, True])
def test_loaded_text_has_often_used_names_as_local_variables(by_script):
    library = load_library()
    text = library.script(brings_jobs=True) if by_script else library.functions
    names = {f"{table}_{name}" for table, names in _OFTEN_USED.items() for name in names.split()}
    assert {"call_now", *names} <= set(re.findall(r"^local (\w+)$", text, re.MULTILINE))
    assert re.findall(r"(?<![\w.])(?:call\.\w+|key\.job)\b", text) == []
    assert "protocol.MAX_MOVES" not in text


def test_text_is_made_only_for_a_server_without_the_functions():
    library = library_of(assemble())
    library.by_function.command("tick", "base", ())
    assert "functions" not in vars(library), "it takes a process 30 ms"
    assert library.by_function.loading("tick")[-1] == library.functions


def test_table_belongs_to_the_files_of_one_folder():
    files = re.findall(r"^do -- (?!functions/|generated)(.*)/.*\n((?s:.*?))(?=^do -- |\Z)", assemble(), re.MULTILINE)
    tables = {(name, folder) for folder, text in files for name in re.findall(r"^function (\w+)\.", text, re.MULTILINE)}
    assert len(tables) > 50
    shared = {name for name, times in Counter(name for name, _ in tables).items() if times > 1}
    assert shared == {"hooks"}, "a hook is in the file of its rule"


def test_rule_has_every_hook_and_is_found_by_suffix():
    text = assemble()
    hooks = re.findall(r"^function default_hooks\.(\w+)\(", text, re.MULTILINE)
    assert len(hooks) > 10
    rules = re.findall(r"^(\w+)\.MARK\b", text, re.MULTILINE)
    assert {"merge", "batches"} <= set(rules)
    for rule in rules:
        assert f"hooks.by_mark[{rule}.MARK] = {rule}\n" in text
        for hook in hooks:
            assert f"{rule}.{hook} = {rule}.{hook} or default_hooks.{hook}\n" in text


def test_hook_files_define_only_known_hooks():
    hooks = set(re.findall(r"^function default_hooks\.(\w+)\(", assemble(), re.MULTILINE))
    for path in Path(lua.__file__).parent.glob("*/*_hooks.lua"):
        found = set(re.findall(r"^function \w+\.(\w+)\(", path.read_text(), re.MULTILINE))
        assert found <= hooks, path


def test_each_function_is_defined_once():
    found = Counter(re.findall(r"^function ([\w.]+)\(", assemble(), re.MULTILINE))
    assert found["hooks.turn"] == 1
    assert [name for name, times in found.items() if times > 1] == []


#: Folders of rules, and the server functions and files that belong to a rule. All others name no rule.
FOLDERS_OF_RULES = ("keys", "merging", "recurring", "types")
PARTS_OF_RULES = {
    "ack_batch_reports",
    "batch_calls",
    "declare_recurring",
    "decline_recurring",
    "due_recurring",
    "fire_recurring",
    "pause",
    "pause_recurring",
    "recurring",
    "remove_recurring",
    "repair",
    "resume",
    "split_batch",
}


def test_other_files_reach_rules_only_through_the_registry():
    folder = Path(lua.__file__).parent
    texts = "".join(path.read_text() for name in FOLDERS_OF_RULES for path in (folder / name).glob("*.lua"))
    rules = {*re.findall(r"^function (\w+)\.", texts, re.MULTILINE), "max_pending"} - {"hooks"}
    uses_rule = re.compile(rf"^(?!\s*--).*(?<![\w.])({'|'.join(sorted(rules))})\.\w", re.MULTILINE)
    assert uses_rule.search("    if gate.reevaluate(its_key) then")
    others = [path for name in ("functions", "base", "workers", "matching") for path in (folder / name).glob("*.lua")]
    section = re.compile(r"^-- (\w+): ((?s:.*?))(?=^-- \w+: |\Z)", re.MULTILINE)
    parts = [part for path in others for part in section.findall(path.read_text())]
    assert len(parts) > len(others)
    used = {name: uses_rule.findall(text) for name, text in parts if name not in PARTS_OF_RULES}
    assert {name: rules for name, rules in used.items() if rules} == {}


@pytest.mark.parametrize("by_script", [False, True])
def test_function_without_new_jobs_runs_on_a_full_server(fleet, redis_client, by_script):
    if by_script:
        fleet.scheduler.way = fleet.scheduler.library.by_script
    fleet.join("worker", "pdf")
    redis_client.config_resetstat()
    with full_server(redis_client):
        for name in set(FUNCTION_NAMES) - set(BRING_JOBS):
            function = server_function(name)
            # The meaning of these arguments is irrelevant, because the test checks only that the server runs the
            # function.
            with suppress(redis.ResponseError):
                fleet.scheduler._attempt([(function, function.arguments(**dict.fromkeys(function.names, "0")))])
            refused = [each["rejected_calls"] for each in _calls(redis_client)]
            assert not any(refused), name
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            fleet.publish("job", "pdf")


def _calls(client):
    stats = client.info("commandstats")
    return [stats[name] for name in ("cmdstat_fcall", "cmdstat_evalsha") if name in stats]


@pytest.mark.parametrize("has_ended", [True, False])
def test_full_server_accepts_releases_of_any_claim(fleet, redis_client, has_ended):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.publish("next", "pdf")
    (claim,) = fleet.inbox("worker")
    if not has_ended:
        fleet.scheduler.requeue("worker", [claim[:2]], counted=False)
        fleet.inbox("worker")
    with full_server(redis_client):
        following = fleet.end("worker", claim)
    assert [each.job_id for each in following] == (["next"] if has_ended else [])


def test_invocation_with_other_argument_names_is_refused():
    with pytest.raises(TypeError, match=re.escape("leave takes ('worker',), got: ('wroker',)")):
        server_function("leave").arguments(wroker="w")
    with pytest.raises(TypeError, match="takes nothing after"):
        server_function("leave").arguments(worker="w", rest=["more"])


def test_function_header_names_the_values_of_its_reply(redis_client):
    assert server_function("tick").reply[7:] == ("{list, ...}", "unfilled", "now", "ticked")
    assert server_function("publish").reply == ("state", "unfilled", "served", "state", "served")
    assert server_function("ack").reply == ()
    scheduler = FakeClockScheduler(redis_client, Keys())
    for name in ("heartbeat", "leave", "recover", "purge", "tick", "resume", "configure", "requeue", "sync", "revoke"):
        call = function_call(name, **dict.fromkeys(server_function(name).names, "1"))
        (reply,) = scheduler._attempt([call])
        assert len(reply) == len(call[0].reply), name
        place = call[0].reply.index("unfilled") if "unfilled" in call[0].reply else None
        assert place is None or reply[place] == b"", name


@pytest.mark.parametrize("by_script", [False, True])
def test_lost_library_is_loaded_again(fleet, redis_client, by_script):
    if by_script:
        fleet.scheduler.way = fleet.scheduler.library.by_script

    def lose():
        redis_client.script_flush()
        redis_client.function_flush()

    fleet.publish("job", "pdf")
    lose()
    claim = fleet.join_and_claim("worker", "pdf")
    lose()
    fleet.scheduler.release_and_claim("worker", acks=[(claim.job_id, claim.fence)], ends=[], sequence=1, inline=True)
    lose()
    fleet.sequence = 1
    assert fleet.end("worker", claim) == []
    assert fleet.state("job") == "done"


@pytest.mark.parametrize(
    "reply",
    [
        "NOSCRIPT No matching script.",
        "ERR Function not found",  # the second time in a row: lost again
        *passing_errors.PASSING,
    ],
)
def test_transient_error_is_raised_as_a_connection_error(redis_client, monkeypatch, reply):
    def answer(*_):
        raise BaseParser.parse_error(reply)

    monkeypatch.setattr(redis_client, "execute_command", answer)
    with pytest.raises(redis.ConnectionError):
        Scheduler(redis_client, Keys()).tick()


def test_python_and_lua_spell_the_same_keys(redis_client):
    keys = Keys(global_keyprefix="p:", namespace="n", cohort="c")
    spelled = {
        name: f"key.{name}" + (f"({', '.join(map(repr, 'xyz'[: template.count('%s')]))})" if "%s" in template else "")
        for name, (template, _, _) in KEYS.items()
    }
    table = ", ".join(f'"{name}", {spelling}' for name, spelling in spelled.items())
    modules = (
        "local key, call, memo, last_use, idle_libraries, protocol = {}, {}, {}, {}, {}, { MAX_KEPT = 9 }\n"
        + Path(lua.__file__).with_name("base").joinpath("call.lua").read_text()
    )
    found = redis_client.eval(
        f"{modules}{generated.generated_modules()['key']}key.begin(KEYS[1])\nreturn {{ {table} }}",
        1,
        keys.base,
    )
    of_lua = dict(zip(map(bytes.decode, found[::2]), map(bytes.decode, found[1::2]), strict=True))
    assert of_lua == {name: keys.key(name, *"xyz"[: template.count("%s")]) for name, (template, _, _) in KEYS.items()}


def test_braces_would_break_the_hash_tag():
    with pytest.raises(SettingError, match="namespace must be a str that holds no braces"):
        Keys(namespace="a{b}")


def test_full_server_refuses_a_whole_publish_but_releases(fleet, redis_client):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.publish("next", "pdf")
    (claim,) = fleet.inbox("worker")
    before = sorted(redis_client.keys())
    with full_server(redis_client):
        with pytest.raises(Exception, match="maxmemory"):
            fleet.publish("refused", "pdf")
        assert sorted(redis_client.keys()) == before
        assert fleet.sync("worker").is_registered
        (following,) = fleet.end("worker", claim)
        assert following.job_id == "next"
    assert fleet.publish("refused", "pdf")
